"""A user's `train_loop_per_worker` in a group: how it is called, and how its reports reach the pool.

The loop runs unchanged. `ray.train.report` looks up Ray's `TrainFnUtils` at each call; ours add a stamp to the metrics,
which Ray Train brings to the controller. Once all ranks have made a report, the controller reduces their stamps to one
`LoopReport` and asks the pool whether the loop goes on.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pyarrow.fs import FileType
from ray.train import Checkpoint, UserCallback
from ray.train.v2._internal.execution.callback import ControllerCallback
from ray.train.v2._internal.execution.context import get_train_context
from ray.train.v2._internal.execution.train_fn_utils import DistributedTrainFnUtils, set_train_fn_utils

from scalestudy.experiments.spec.addresses import child
from scalestudy.orchestration.groups.events import LoopEnded, LoopReport, TrialError
from scalestudy.orchestration.groups.failures import LONGEST_TRACEBACK, describe, traceback_of
from scalestudy.orchestration.groups.loop_progress import wanted_keys
from scalestudy.orchestration.groups.ray_train import ANSWER_SECONDS, NotWantedError, incarnation
from scalestudy.training.config import SAMPLES, TrainConfig
from scalestudy.training.exceptions import InputError, readable
from scalestudy.training.pulse import AT_A_REPORT, Pulse
from scalestudy.training.steps import METER

if TYPE_CHECKING:
    from ray.train.v2.api.result import Result

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.1
"""Time between two looks of the controller for a report; it takes one report a look. 2 s as shipped."""
DATASET_SECONDS = 180.0
"""How long a function may take to make a Ray data set, which is read later. A group's start may take a minute more."""
STAMP = "scalestudy"
"""Key of our stamp among the metrics of a report."""


# --- on every rank ------------------------------------------------------------------------------------------------
def loop_config(config: TrainConfig, num_gpus: int) -> dict[str, Any]:
    """Return what a loop is called with: what the trial sets, and `loop_args`."""
    return {
        **config.loop_args,
        "num_gpus": num_gpus,
        "batch_size": config.batch_size,
        "batch_size_per_worker": config.batch_size // num_gpus,
        "learning_rate": config.learning_rate,
        "seed": config.seed,
        "epochs": config.epochs,
    }


def run_loop(config: TrainConfig, num_gpus: int, checkpoint: str | None, pulse: Pulse) -> None:
    """Call a trial's loop on this rank.

    checkpoint: address of the one that `ray.train.get_checkpoint` gives until the loop has reported another.
    """
    from scalestudy.training.registry import resolve

    loop: Callable[[dict[str, Any]], Any] = resolve(str(config.loop), {})
    METER.take()
    set_train_fn_utils(StampedReports(config, pulse, _found(checkpoint)))
    with pulse.during("in the user's loop"):
        try:
            loop(loop_config(config, num_gpus))
        finally:
            wait_for_reports()


def _found(address: str | None) -> Checkpoint | None:
    """Return a checkpoint that is still there. Ray keeps the last two, and the journal may name an earlier one."""
    if address is None:
        return None
    checkpoint = Checkpoint(address)
    if checkpoint.filesystem.get_file_info(checkpoint.path).type == FileType.Directory:
        return checkpoint
    logger.warning("%s is gone, so the loop begins anew", address)
    return None


def wait_for_reports(seconds: float = 2.0) -> None:
    """Wait until the controller has taken this rank's last report: what the rank says next must not overtake it."""
    reports, give_up_at = get_train_context().get_result_queue(), time.monotonic() + seconds
    while reports.unfinished_tasks and time.monotonic() < give_up_at:
        time.sleep(POLL_SECONDS)
    time.sleep(POLL_SECONDS)


class StampedReports(DistributedTrainFnUtils):
    """Ray's functions for a loop, with a stamp in each report. Made right before the loop's first line."""

    def __init__(self, config: TrainConfig, pulse: Pulse, checkpoint: Checkpoint | None) -> None:
        """Begin to count the loop's seconds. checkpoint: of an earlier attempt."""
        self._keys, self._pulse, self._checkpoint = wanted_keys(config), pulse, checkpoint
        self._resumed = self._has_reported_one = False
        self._began = time.monotonic()

    def report(
        self, metrics: dict[str, Any], checkpoint: Checkpoint | None = None, *arguments: Any, **named: Any
    ) -> None:
        """Report to Ray Train. Raises InputError for a metric of the study that is no number."""
        stamp = self._stamp(metrics)
        with self._pulse.during(AT_A_REPORT):
            super().report({**metrics, STAMP: stamp}, checkpoint, *arguments, **named)
        self._has_reported_one |= checkpoint is not None

    def get_checkpoint(self) -> Checkpoint | None:
        """Return the last checkpoint of the trial: of an earlier attempt, until this one has reported one."""
        if self._has_reported_one:
            return super().get_checkpoint()
        self._resumed = self._checkpoint is not None
        return self._checkpoint

    def _stamp(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Return what our controller needs of a report, as plain data: Ray writes it beside a checkpoint."""
        seconds = time.monotonic() - self._began
        values = {name: _number(key, metrics[key]) for name, key in self._keys.items() if metrics.get(key) is not None}
        seen = values.pop(SAMPLES, None)
        if seen is not None and not math.isfinite(seen):
            raise InputError(f"ray.train.report: {self._keys[SAMPLES]}: {seen} counts no examples", "report a number")
        keys = sorted(str(key) for key, value in metrics.items() if value is not None)
        return {
            "seconds": seconds,
            "keys": keys,
            "values": values,
            "seen": seen,
            "resumed": self._resumed,
            **asdict(METER.take()),
        }


def _number(key: str, value: Any) -> float:
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        problem = f"ray.train.report: {key}: {value!r} is no number"
        raise InputError(problem, "report a float, or name another metric in workload.metrics") from None


# --- in the controller --------------------------------------------------------------------------------------------
def reduced(stamps: Sequence[Mapping[str, Any]], checkpoint: str | None) -> LoopReport:
    """Return the report that these stamps, by rank, are of. checkpoint: its address."""
    first = stamps[0]
    return LoopReport(
        seconds=first["seconds"],  # not the longest: a rank that began first has waited for the others
        keys=tuple(first["keys"]),
        values=first["values"],
        seen=first["seen"],
        steps=max(stamp["steps"] for stamp in stamps),
        samples=sum(stamp["samples"] for stamp in stamps),
        timed_samples=sum(stamp["timed_samples"] for stamp in stamps),
        timed_seconds=max(stamp["timed_seconds"] for stamp in stamps),
        resumed=any(stamp["resumed"] for stamp in stamps),
        checkpoint=checkpoint,
    )


class LoopReports(UserCallback):
    """A callback that tells the pool each report. Its exception ends `fit()`."""

    def __init__(self, pool: Any, group_id: str) -> None:
        """Keep the handle of the pool's actor and the group's id."""
        self._pool, self._group_id = pool, group_id

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Checkpoint | None) -> None:
        """Tell the pool a report that every rank has made. Raises if the trial is over: at its target, or stopped."""
        import ray

        stamps = [each[STAMP] for each in metrics if STAMP in each]
        if not stamps:
            return  # code of the user's has called Ray's function behind ours
        run = run_context.run_config
        address = None
        if checkpoint is not None:
            address = child(child(str(run.storage_path), run.name), checkpoint.path.rstrip("/").rpartition("/")[2])
        told = self._pool.loop_report.remote(self._group_id, incarnation(), reduced(stamps, address))
        if not ray.get(told, timeout=ANSWER_SECONDS):
            raise NotWantedError(f"the trial of {self._group_id} is over")


class LoopEnd(ControllerCallback):
    """A callback that tells the pool that the loop has returned on every rank."""

    def __init__(self, pool: Any, group_id: str) -> None:
        """Keep the handle of the pool's actor and the group's id."""
        self._pool, self._group_id = pool, group_id

    def after_controller_finish(self, result: Result) -> None:
        """Tell the pool, unless the run has failed. Every report has arrived by now."""
        import ray

        if result.error is None:
            ray.get(self._pool.loop_report.remote(self._group_id, incarnation(), LoopEnded()), timeout=ANSWER_SECONDS)


class OwnDataset:
    """A function of the user's that makes a Ray data set, which Ray Train's controller calls for each trial."""

    def __init__(self, pool: Any, group_id: str, function: str) -> None:
        """Keep the handle of the pool's actor, the group's id, and `package.module:function`."""
        self._pool, self._group_id, self._function = pool, group_id, function

    def __call__(self) -> Any:
        """Return the data set. What the function raises ends the trials of the study: none can be trained."""
        import ray

        from scalestudy.training.registry import resolve

        made: Future[Any] = Future()

        def make() -> None:
            try:
                made.set_result(resolve(self._function, {})())
            except BaseException as raised:
                made.set_exception(raised)

        threading.Thread(target=make, daemon=True).start()
        try:
            return made.result(DATASET_SECONDS)
        except BaseException as raised:
            late = isinstance(raised, TimeoutError) and not made.done()
            said = f"did not return within {DATASET_SECONDS:g} s" if late else describe(readable(raised))
            error = TrialError(
                kind="exception",
                message=f"workload.datasets: {self._function}: {said}",
                traceback=traceback_of(raised)[-LONGEST_TRACEBACK:],
            )
            ray.get(self._pool.datasets_failed.remote(self._group_id, error), timeout=ANSWER_SECONDS)
            raise NotWantedError(error.message) from None
