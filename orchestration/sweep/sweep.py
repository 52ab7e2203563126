"""The run of a search's trials through Tune and the pool. It delivers events: journal first, then search, then ASHA."""

from __future__ import annotations

import json
import logging
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalestudy.orchestration.base.errors import StudyError
from scalestudy.orchestration.groups.events import (
    Ended,
    EpochDone,
    JournalEvent,
    Lost,
    Retried,
    Suggested,
    TrialError,
    TrialEvent,
    from_plain,
    to_plain,
)
from scalestudy.orchestration.groups.trial_record import TrialRecord

if TYPE_CHECKING:
    from scalestudy.experiments.plan.plan import TrialPlan
    from scalestudy.orchestration.groups.model import TrialOrder
    from scalestudy.orchestration.sweep.search import Search


logger = logging.getLogger(__name__)

Record = Callable[[str, TrialEvent], JournalEvent | None]
"""Writes a trial's event into the journal; returns what it wrote. None: the event was no news, or the study closes."""

HEAD_SHARE = {"CPU": 0, "node:__internal_head__": 0.001}
"""Tune trials take no CPU. With one each, a two-core machine would have no room for two workers."""
FOLLOWERS = 5
"""Tune processes that one trial may lose. The pool decides first, by its own budget."""


class LeaseOverError(RuntimeError):
    """Another process follows the trial by now. If Tune still waits for this one, it starts one that asks anew."""


def follow_trial(config: dict[str, Any], pool: Any) -> None:
    """Ask for workers for one trial, and report its events to the last. This is the Tune trainable.

    It never gives the workers back: it may be stopped or killed at any moment, and its reports may come late. Either
    Tune starts another process in its place, and the training goes on; or Tune is done with the trial, and the sweep
    gives the workers back. It also returns when the trial is put off.

    Args:
        config: `trial_id`, and `order`, the TrialOrder.
        pool: handle of the pool's actor.

    Raises:
        LeaseOverError: another process of Tune follows the trial, or its lease was given back.
    """
    import ray
    from ray import tune

    trial_id = config["trial_id"]
    lease = ray.get(pool.request.remote(config["order"]))
    seen, ended = 0, False
    while not ended:
        events = ray.get(pool.events.remote(trial_id, lease, seen))
        if events is None:
            raise LeaseOverError(f"trial {trial_id}: lease {lease} is over")
        seen += len(events)
        for event in events:
            ended = isinstance(event, Ended)
            tune.report({"of": trial_id, "event": json.dumps(to_plain(event), allow_nan=False)})
        if events and isinstance(events[-1], Retried):
            ended = not ray.get(pool.follows.remote(trial_id, lease))


class Sweep:
    """One search's trials, from the first to the last."""

    def __init__(
        self, search: Search, *, pool: Any, order_of: Callable[[TrialPlan], TrialOrder], record: Record
    ) -> None:
        """Make a sweep over one search.

        Args:
            search: gives the trials, and learns from them; it serves this sweep only.
            pool: handle of the pool's actor.
            order_of: returns the order for the pool, just before a trial starts. A ValueError or StudyError from it is
                the trial's failure, not the study's.
            record: called in this process, with the events of each trial in their order. A trial that the search has
                made comes first as `Suggested`.
        """
        self._search, self._pool, self._order_of, self._record = search, pool, order_of, record

    def deliver(self, trial_id: str, event: TrialEvent) -> bool:
        """Hand an event of a trial on, to journal, then search, then ASHA; return whether the trial stops here.

        An event counts once it is in the journal. An event that is no news goes no further.
        """
        written = self._record(trial_id, event)
        if written is None:
            return False
        self._search.take(trial_id, written)
        if not isinstance(written, EpochDone) or not self._search.stops(trial_id, written):
            return False
        self._end_after(trial_id, written.record.epoch)
        return True

    def run(
        self,
        *,
        concurrency: int,
        folder: Path,
        should_stop: Callable[[], bool],
        at_a_time: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """Run every trial; return when all have ended or the study is stopped.

        Args:
            concurrency: trials at a time, at the most.
            at_a_time: called before each trial: how many may run now.
            folder: where Tune keeps its files.
            should_stop: called between steps of the sweep; True ends it.
        """
        from ray import tune

        self.end_cut_short()
        tuner = tune.Tuner(
            tune.with_resources(tune.with_parameters(follow_trial, pool=self._pool), HEAD_SHARE),
            tune_config=tune.TuneConfig(
                search_alg=_searcher(self, at_a_time),
                num_samples=sys.maxsize,  # the search ends the trials
                max_concurrent_trials=concurrency,
                reuse_actors=True,
                trial_name_creator=lambda trial: trial.config["trial_id"],
                trial_dirname_creator=lambda trial: trial.config["trial_id"],
            ),
            run_config=tune.RunConfig(
                name="tune",
                storage_path=str(folder),
                stop=_stopper(self, should_stop),
                failure_config=tune.FailureConfig(max_failures=FOLLOWERS),
                callbacks=[_callback(self)],
                verbose=0,
            ),
        )
        analysis = logging.getLogger("ray.tune.analysis.experiment_analysis")
        analysis.setLevel(logging.ERROR)  # it would complain about each trial's missing result files
        tuner.fit()

    def next_order(self) -> TrialOrder | None:
        """Return the order of the next trial that has one; None: there is none now, or `is_over`."""
        while (suggestion := self._search.next()) is not None:
            trial, point = suggestion
            if point is not None:
                self.deliver(trial.trial_id, Suggested(trial=trial, point=point))
            try:
                return self._order_of(trial)
            except (ValueError, StudyError) as error:
                refused = TrialError(kind="config", message=str(error))
                ended = TrialRecord().end("failed", attempts=1, error=refused, at=time.time())
                self.deliver(trial.trial_id, ended)
        return None

    def end_cut_short(self) -> None:
        """End the trials that ASHA has stopped and that no group has."""
        for trial_id, epoch in self._search.cut_short().items():
            self.deliver(trial_id, Lost(status="stopped", last_epoch=epoch))

    def follower_failed(self, trial_id: str) -> None:
        """End a trial whose process Tune has given up, with what is recorded of it."""
        message = "the Tune process that followed this trial ended without a result; see driver.log"
        self.deliver(trial_id, Lost(error=TrialError(kind="tune_trial", message=message)))
        self.release(trial_id)

    @property
    def running(self) -> int:
        """The number of trials that run."""
        return self._search.running

    @property
    def is_over(self) -> bool:
        """Whether no trial comes any more, after `next_order` has given none."""
        return self._search.is_over

    def follower_ended(self, trial_id: str) -> None:
        """Give a trial's lease back once Tune is done with its process, unless the trial was put off."""
        if self._search.runs(trial_id):
            self._search.put_off(trial_id)
        else:
            self.release(trial_id)

    def release(self, trial_id: str) -> None:
        """Give a trial's lease back."""
        self._pool.release.remote(trial_id)

    def _end_after(self, trial_id: str, epoch: int) -> None:
        """Stop a trial in the pool, and deliver its end."""
        import ray

        try:
            ended = ray.get(self._pool.stop.remote(trial_id, epoch))
        except ray.exceptions.RayError:
            logger.exception("the pool is gone: the next sweep ends %s", trial_id)
            return
        if ended is None:  # it was released
            self.end_cut_short()
        else:
            self.deliver(trial_id, ended)


# --- the sweep as Tune asks for it --------------------------------------------------------------------------------
# Tune saves what it is given. What lives in this process stays out of that: each class says what to save instead.
def _searcher(sweep: Sweep, at_a_time: Callable[[], float]) -> Any:
    from ray.tune.search import Searcher

    class StudySearcher(Searcher):
        def __reduce__(self) -> tuple[type, tuple[()]]:
            return Searcher, ()

        def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
            if sweep.running >= at_a_time():
                return None
            order = sweep.next_order()
            if order is None:
                return Searcher.FINISHED if sweep.is_over else None
            return {"trial_id": order.trial_id, "order": order}

        def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
            """Do nothing: the search has learnt it from the trial's events."""

        def save(self, checkpoint_path: str) -> None:
            Path(checkpoint_path).touch()  # Tune saves what it would restore; a study is resumed from its journal

        def restore(self, checkpoint_path: str) -> None:
            """Do nothing: Tune never asks for it."""

    return StudySearcher()


def _stopper(sweep: Sweep, should_stop: Callable[[], bool]) -> Any:
    """Return a Tune stopper that delivers every event, once, before anything reacts to it.

    Tune asks its stopper about each result before all others. Rejected: its scheduler, which it skips for a trial that
    is done already. When a process ends, Tune asks about its last result once more: that is no news.
    """
    from ray.tune.stopper import NoopStopper, Stopper

    class StudyStopper(Stopper):
        def __reduce__(self) -> tuple[type, tuple[()]]:
            return NoopStopper, ()

        def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
            if "event" not in result:  # the process ended without a report
                return False
            return sweep.deliver(result["of"], from_plain(json.loads(result["event"])))

        def stop_all(self) -> bool:
            return should_stop()

    return StudyStopper()


def _callback(sweep: Sweep) -> Any:
    """Return a Tune callback that ends trials whose process died before reporting an end, and gives leases back."""
    from ray import tune

    class StudyCallback(tune.Callback):
        def __reduce__(self) -> tuple[type, tuple[()]]:
            return tune.Callback, ()

        def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
            sweep.follower_failed(trial.config["trial_id"])

        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
            sweep.follower_ended(trial.config["trial_id"])

    return StudyCallback()
