"""What runs in every Ray Train worker, from its start to the end of its group."""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalestudy.experiments.spec.reaching import Mode, arrival
from scalestudy.orchestration.groups.actor import PoolClient
from scalestudy.orchestration.groups.events import (
    Beat,
    Begun,
    EpochDone,
    GivenBack,
    Left,
    Member,
    RankFailed,
    Started,
    TrainingEnded,
    WorkerPost,
)
from scalestudy.orchestration.groups.failures import LONGEST_TRACEBACK, classify, describe, kills_so_far, traceback_of
from scalestudy.orchestration.groups.model import EndGroup, NextTrial
from scalestudy.training.exceptions import InputError, readable
from scalestudy.training.fingerprint import Fingerprint
from scalestudy.training.own_code import named_modules, own_files
from scalestudy.training.process import end_children, exits_told
from scalestudy.training.pulse import Pulse

if TYPE_CHECKING:
    from scalestudy.training.config import TrainConfig
    from scalestudy.training.distributed import Worker
    from scalestudy.training.gpu_state import GpuState
    from scalestudy.training.loop.hooks import Hook
    from scalestudy.training.loop.train import TrainResult
    from scalestudy.training.loop.trial import Trial
    from scalestudy.training.process_state import ProcessState
    from scalestudy.training.records import EpochRecord


BEAT_SECONDS = 2.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """What every worker of a group needs to know."""

    pool: Any  # handle of the pool's actor
    group_id: str
    threads: int
    device: str  # `cpu` or `cuda`
    logs: Path  # the folder for tracebacks of trials' exceptions
    modules: tuple[str, ...] = ()  # the user's that the study names, in the order in which they are imported


class NotFreshError(Exception):
    """Earlier trials have left something in some rank's process that would change this trial."""


def serve(config: dict[str, Any]) -> None:
    """Take trials from the pool one after another and train them, until the pool ends the group.

    config: `settings`, the WorkerSettings; Ray Train passes a mapping to a function.

    Without its pool a group has nothing to do: it ends as if the pool had ended it.

    Raises:
        Exception: whatever a trial raised, after it was reported; Ray Train then restarts the group's workers.
    """
    import socket

    import ray
    import ray.train
    import torch.distributed as dist
    from ray.exceptions import ActorDiedError

    from scalestudy.orchestration.groups.ray_train import given_gpus, incarnation, own_device
    from scalestudy.training.distributed import Worker
    from scalestudy.training.process_state import ProcessState

    settings: WorkerSettings = config["settings"]
    context = ray.train.get_context()
    node = ray.get_runtime_context().get_node_id()
    worker = Worker(
        rank=context.get_world_rank(),
        world_size=context.get_world_size(),
        device=own_device(settings.device),
        threads=settings.threads,
    )
    member = Member(
        rank=worker.rank,
        node=node,
        host=socket.gethostname(),
        pid=os.getpid(),
        cores=os.cpu_count() or 1,
        device=str(worker.device),
        threads=worker.threads,
        backend=dist.get_backend() if worker.world_size > 1 else None,
        gpus=given_gpus(),
    )
    client = PoolClient(settings.pool, settings.group_id, incarnation(), worker.rank)
    process, served = ProcessState(settings.modules), 0
    try:
        client.register(member)
        while not isinstance(given := client.next_trial(served), EndGroup):
            served = given.sequence
            if kills := kills_so_far(node):
                client.send(served, Begun(kernel_kills=kills))
            with beating(client, served) as pulse:
                if given.order.config.loop:
                    train_loop(client, worker, given, settings.logs, pulse)
                    return  # to Ray Train, which then knows that every report has arrived
                train_trial(client, worker, given, process, settings.logs, pulse)
    except ActorDiedError as error:
        logger.warning("the pool of %s is gone: %s", settings.group_id, error)


def train_trial(
    client: PoolClient, worker: Worker, given: NextTrial, process: ProcessState, logs: Path, pulse: Pulse
) -> None:
    """Train one trial and report it. Give it back if this process would not train it as a fresh one does.

    Whatever the user's code raises, such as SystemExit, is reported; then this raises it, or a RuntimeError in place of
    what would end more than a trial.
    """
    from scalestudy.orchestration.storage.arrow_store import open_byte_store
    from scalestudy.training.checkpoint.hook import Checkpoints
    from scalestudy.training.loop.gpu_watch import GpuWatch
    from scalestudy.training.loop.noise_scale import NoiseScale
    from scalestudy.training.loop.train import train

    def report(record: EpochRecord) -> None:
        client.send_in_order(given.sequence, EpochDone(record=record))

    order, config = given.order, given.order.config
    with faults_told(client, given, worker, logs) as tell:
        fresh = fresh_hook(process, worker, called_by(config))
        code = code_of(config) if worker.rank == 0 else {}
        checkpoints = None
        if order.checkpoints is not None:
            store, every = open_byte_store(order.checkpoints), config.checkpoint_every
            checkpoints = Checkpoints(store, every_epochs=every, preemptible=True, say=logger.warning)
        choices = checkpoints.find(config, worker) if checkpoints else None
        watch = GpuWatch()
        on_gpu = [watch] if worker.device.type == "cuda" else []  # the same on all ranks
        hooks: list[Hook] = [fresh, *([checkpoints] if checkpoints else []), NoiseScale(), *on_gpu]
        if order.stop_at is not None:
            hooks.append(target_hook(order.stop_at, config.metric_mode))
        if worker.rank == 0:
            resumed = checkpoints is not None and checkpoints.resumed
            hooks.append(exit_hook(client, given.sequence, checkpointed=checkpoints is not None, resumed=resumed))
        with exits_told(tell):
            result = train(config, worker, hooks=hooks, on_epoch=report, choices=choices, pulse=pulse)
        process.end(result.model)
        if worker.rank == 0:
            with pulse.during("checkpointing"):
                save_if_best(given, result)
            client.wait_for(client.send_in_order(given.sequence, last_post(given, result, watch.states, code)))


def train_loop(client: PoolClient, worker: Worker, given: NextTrial, logs: Path, pulse: Pulse) -> None:
    """Call a user's loop on this rank. Its reports, and that it has returned, reach the pool through the controller.

    Raises as `train_trial` does. What the loop leaves running ends here.
    """
    import torch

    from scalestudy.orchestration.groups.user_loop import run_loop

    config = given.order.config
    torch.set_num_threads(worker.threads)
    with faults_told(client, given, worker, logs) as tell:
        if worker.rank == 0:
            client.send(given.sequence, Started(code=code_of(config)))
        ended = client.exit_asked("stop", given.sequence)
        threading.Thread(target=_end_process_once, args=(ended,), name="exit", daemon=True).start()
        try:
            with exits_told(tell):
                run_loop(config, worker.world_size, given.checkpoint, pulse)
        finally:
            end_children()


def _end_process_once(asked: threading.Event) -> None:
    """End this process, with what the user's loop has started, once the pool asks for that or is gone."""
    asked.wait()
    end_children()
    os._exit(1)


@contextmanager
def faults_told(
    client: PoolClient, given: NextTrial, worker: Worker, logs: Path
) -> Iterator[Callable[[BaseException], None]]:
    """Report whatever the block raises, such as SystemExit, to the pool. Yield the function that does.

    Raises it then, or a RuntimeError in place of what would end more than a trial.
    """

    def tell(error: BaseException) -> None:
        client.wait_for(client.send(given.sequence, failed_post(given, worker.rank, error, logs)))

    try:
        yield tell
    except NotFreshError as found:  # on all ranks
        if worker.rank == 0:
            client.wait_for(client.send(given.sequence, GivenBack(why=str(found))))
    except BaseException as raised:
        if ends_process(raised):
            raise
        error = readable(raised)
        tell(error)
        if isinstance(error, Exception):
            raise error from error.__cause__
        raise RuntimeError(describe(error)) from error


def ends_process(error: BaseException) -> bool:
    """Return whether Ray raised this to end the process: code of Ray's, and not what it called, raised it.

    A signal can't: Python handles it in the main thread, and Ray Train runs `serve` in another one.
    """
    if isinstance(error, Exception):
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    raised_in = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__"))
    return raised_in.partition(".")[0] == "ray"


def called_by(config: TrainConfig) -> str:
    """Return what a trial calls, with the arguments."""
    called = (
        "model",
        "model_args",
        "data",
        "data_args",
        "loss",
        "metric",
        "task",
        "task_args",
        "optimizer",
        "schedule",
    )
    return repr([getattr(config, name) for name in (*called, "gradient_sync", "compile", "precision")])


def fresh_hook(process: ProcessState, worker: Worker, code: str = "") -> Any:
    """Make the process ready for a trial; return a hook that raises NotFreshError on all ranks if one is not fresh.

    code: what the trial calls.
    """
    from scalestudy.training.distributed import gather_texts
    from scalestudy.training.loop.hooks import Hook

    is_used, found = process.is_used, process.begin()

    class Fresh(Hook):
        def train_starts(self, trial: Trial) -> None:
            mine = found or process.found_in(trial.model, code)
            for why in gather_texts(mine, worker) if is_used else [mine]:
                if why:
                    raise NotFreshError(why)

    return Fresh()


def code_of(config: TrainConfig) -> dict[str, str]:
    """Return a digest of each module of the user's that a trial names, as this process has it.

    A process keeps what it has imported. So a trial in a used group is of the code that the group began with, whatever
    has been edited since.
    """
    plain = config.to_dict()
    code = {module: _files_at_first(module) for module in named_modules(plain)}
    return Fingerprint(code={module: files for module, files in code.items() if files}).digests(plain)


@cache
def _files_at_first(module: str) -> Mapping[str, str]:
    return own_files(module)


def failed_post(given: NextTrial, rank: int, error: BaseException, logs: Path) -> RankFailed:
    """Return an exception as the pool takes it. Write its whole traceback into a file of the rank."""
    kind, message = classify(error), describe(error)
    if kind == "collective":  # it shows only that another rank is gone
        return RankFailed(kind=kind, message=message)
    if kind == "device_lost":
        message = message.partition("\n")[0]  # the rest is PyTorch's advice on how to debug a kernel
    text = traceback_of(error)
    failed = RankFailed(kind=kind, message=message, traceback=text[-LONGEST_TRACEBACK:])
    file = logs / f"{given.order.trial_id}-rank-{rank}.log"
    try:
        logs.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as log:
            log.write(f"attempt {given.attempt}, rank {rank}:\n{text}\n")
    except OSError as failure:
        logger.warning("%s can't be written (%s):\n%s", file, failure, text)
        return failed
    return replace(failed, log=str(file))


@contextmanager
def beating(client: PoolClient, sequence: int) -> Iterator[Pulse]:
    """Yield a pulse, and report its state to the pool every two seconds, from a thread; at the end, that it ended.

    A beat is sent once the previous one has arrived, so that none pile up at a pool that does not answer. A call that
    holds Python's global lock keeps the thread from beating: to the pool the process looks frozen.
    """
    pulse, over = Pulse(), threading.Event()

    def beat() -> None:
        while not over.wait(BEAT_SECONDS):
            stage = pulse.stage
            seconds = time.monotonic() - stage.since
            post = Beat(activity=stage.activity, stage=stage.number, seconds=seconds, count=stage.count)
            client.wait_for(client.send(sequence, post))

    threading.Thread(target=beat, name="beats", daemon=True).start()
    try:
        yield pulse
    finally:
        over.set()
        client.send(sequence, Beat(activity="ended", stage=0, seconds=0.0, count=0))


def exit_hook(client: PoolClient, sequence: int, *, checkpointed: bool, resumed: bool) -> Any:
    """Return a hook that tells the pool that the steps begin.

    It also ends the training when the pool asks for that, with a checkpoint if it asks for one.
    """
    from scalestudy.training.loop.hooks import Hook

    class Exit(Hook):
        def train_starts(self, trial: Trial) -> None:
            trial.should_stop = client.exit_asked("stop", sequence).is_set
            if checkpointed:
                trial.should_preempt = client.exit_asked("leave", sequence).is_set
            client.send(sequence, Started(resumed=resumed))

    return Exit()


def target_hook(target: float, mode: Mode) -> Any:
    """Return a hook that ends the training once it has reached the target.

    All ranks end together, since they have the same records.
    """
    from scalestudy.training.loop.hooks import Hook

    class StopAtTarget(Hook):
        def train_starts(self, trial: Trial) -> None:
            values = [record.test_metric for record in trial.progress.records]  # of a training that is resumed
            trial.complete = arrival(list(filter(math.isfinite, values)), target, mode) is not None

        def epoch_ends(self, trial: Trial, record: EpochRecord) -> None:
            self.train_starts(trial)

    return StopAtTarget()


def last_post(
    given: NextTrial,
    result: TrainResult,
    gpus: tuple[GpuState, ...] = (),
    code: Mapping[str, str] | None = None,
) -> WorkerPost:
    """Return rank 0's last report on a training that no exception has broken.

    gpus: of all ranks, at its end. code: from `code_of`.
    """
    if result.status == "left":
        return Left(message=result.message or "")
    for name, value in result.details.items():  # a user's strategy may have given them
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            problem = f"details: {name}: {value!r} can't be written as JSON ({error})"
            raise InputError(problem, "give plain, finite values") from None
    recorded = sum(record.train_seconds for record in result.records)
    cut = given.order.stop_at is not None and len(result.records) < given.order.config.evaluations
    return TrainingEnded(
        status="at_target" if cut and result.status == "finished" else result.status,
        score=score_of(given, result),
        lost_seconds=result.train_seconds - recorded,
        message=result.message,
        details=dict(result.details),
        gpus=gpus,
        code=dict(code or {}),
    )


def score_of(given: NextTrial, result: TrainResult) -> float | None:
    """Return the metric after the last epoch, turned so that more is better; None: it is absent or not finite."""
    value = result.records[-1].test_metric if result.records else math.nan
    if not math.isfinite(value):
        return None
    return -value if given.order.config.metric_mode == "min" else value


def save_if_best(given: NextTrial, result: TrainResult) -> None:
    """Keep the model of a trial that ended by itself and beats every one before it: storage holds one."""
    from scalestudy.orchestration.storage.trial_states import written_to
    from scalestudy.training.state import save_state

    score, path = score_of(given, result), given.order.model_path
    beats = score is not None and (given.best_score is None or score > given.best_score)
    if path is None or result.status != "finished" or not beats:
        return
    try:
        with written_to(path) as file:
            save_state(result.model, file)
    except (OSError, ValueError) as error:  # a full disk must not cost the trial
        logger.warning("the model of %s is not kept: %s", given.order.trial_id, error)
