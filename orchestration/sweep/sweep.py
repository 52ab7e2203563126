"""Runs a search's trials, each through a leased worker group, and hands on their events."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scalestudy.experiments.plan.plan import TrialPlan
from scalestudy.orchestration.base.errors import StudyError
from scalestudy.orchestration.groups.trial_record import Outcome, error_of
from scalestudy.orchestration.sweep.asha import Rungs
from scalestudy.orchestration.sweep.search import Search

logger = logging.getLogger(__name__)

Event = dict[str, Any]
OnEvent = Callable[[str, Event], None]
OrderOf = Callable[[TrialPlan], dict[str, Any]]

HEAD_SHARE = {"CPU": 0, "node:__internal_head__": 0.001}
"""A Tune trial's own share: a fraction of a CPU would leave a two-core machine one core short of two workers."""


FOLLOWERS = 5
"""Tune processes that may be lost to one trial; the books, whose word comes first, have a budget of their own."""


def follow_trial(config: dict[str, Any], groups: Any) -> None:
    """The Tune trainable: leases workers for one trial, reports its events, gives the workers back.

    Args:
        config: `trial_id`, and `order`, what to train.
        groups: the actor that keeps the worker groups' books.
    """
    import ray
    from ray import tune

    trial_id = config["trial_id"]
    ray.get(groups.lease.remote(config["order"]))
    try:
        seen = 0
        ended = False
        while not ended:
            events = ray.get(groups.events.remote(trial_id, seen))
            seen += len(events)
            for event in events:
                ended = event["type"] == "ended"
                tune.report({"event": event})
    finally:
        groups.release.remote(trial_id)


def run_sweep(
    search: Search,
    *,
    groups: Any,
    order_of: OrderOf,
    concurrency: int,
    folder: Path,
    on_event: OnEvent,
    should_stop: Callable[[], bool],
) -> None:
    """Runs every trial of a search and returns when all have ended or the study is stopped.

    Args:
        search: gives the trials, and learns from them; it serves this sweep only.
        groups: handle of the `WorkerGroups` actor.
        order_of: what to hand the worker groups for a trial, asked when it is about to start. A ValueError or
            StudyError of it is the trial's failure, not the study's.
        concurrency: trials at a time.
        folder: where Tune keeps its own files.
        on_event: called in this process with (trial_id, event), in the order of each trial's events. A trial that the
            search has made is told first, as {"type": "suggested", "trial": its plan, "point": its point's number}.
        should_stop: asked between steps of the sweep; True ends it.
    """
    from ray import tune

    events = _Events(search, on_event)
    events.end_cut_short()
    tuner = tune.Tuner(
        tune.with_resources(tune.with_parameters(follow_trial, groups=groups), HEAD_SHARE),
        tune_config=tune.TuneConfig(
            search_alg=_searcher(search, order_of, events),
            scheduler=_scheduler(search.rungs) if search.rungs else None,
            num_samples=sys.maxsize,  # the search says when there are no more
            max_concurrent_trials=concurrency,
            reuse_actors=True,
            trial_name_creator=lambda trial: trial.config["trial_id"],
            trial_dirname_creator=lambda trial: trial.config["trial_id"],
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=str(folder),
            stop=_stopper(should_stop),
            failure_config=tune.FailureConfig(max_failures=FOLLOWERS),
            callbacks=[_callback(groups, events)],
            verbose=0,
        ),
    )
    analysis = logging.getLogger("ray.tune.analysis.experiment_analysis")
    analysis.setLevel(logging.ERROR)  # it misses each trial's result files, which are not written
    tuner.fit()


class _Events:
    """Hands events to the study first, which writes them down, and then to the search."""

    def __init__(self, search: Search, on_event: OnEvent) -> None:
        self._search, self._on_event = search, on_event

    def tell(self, trial_id: str, event: Event) -> None:
        self._on_event(trial_id, event)
        self._search.take(trial_id, event)

    def end_cut_short(self) -> None:
        """Ends the trials that are to stop and that no worker group has."""
        for trial_id, epochs in self._search.cut_short().items():
            self.tell(trial_id, {"type": "lost", "status": "stopped", "last_epoch": len(epochs), "error": None})


def _refused(message: str) -> Event:
    """The `ended` event of a trial that was never tried."""
    facts = Outcome().to_dict(
        status="failed", attempts=1, started_at=None, now=time.time(), error=error_of("config", message)
    )
    return {"type": "ended", **facts}


def _searcher(search: Search, order_of: OrderOf, events: _Events) -> Any:
    """The search as Tune asks for it."""
    from ray.tune.search import Searcher

    class StudySearcher(Searcher):
        def __reduce__(self) -> tuple[type, tuple[()]]:
            return Searcher, ()  # Tune saves its settings; what lives in this process stays out of them

        def suggest(self, trial_id: str) -> dict[str, Any] | str:
            while (suggestion := search.next()) is not None:
                trial, point = suggestion
                if point is not None:
                    events.tell(trial.trial_id, {"type": "suggested", "trial": trial.to_dict(), "point": point})
                try:
                    return {"trial_id": trial.trial_id, "order": order_of(trial)}
                except (ValueError, StudyError) as error:
                    events.tell(trial.trial_id, _refused(str(error)))
            return Searcher.FINISHED

        def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
            """The search has learnt it from the trial's own events."""

        def save(self, checkpoint_path: str) -> None:
            Path(checkpoint_path).touch()  # Tune saves what it would restore; a study is resumed from its journal

        def restore(self, checkpoint_path: str) -> None:
            """Never asked for."""

    return StudySearcher()


def _scheduler(rungs: Rungs) -> Any:
    """The rungs as Tune asks them: after each epoch, before anybody else sees it."""
    from ray.tune.schedulers import FIFOScheduler, TrialScheduler

    class RungScheduler(FIFOScheduler):
        def __reduce__(self) -> tuple[type, tuple[()]]:
            return FIFOScheduler, ()

        def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
            prefix = "event/epoch/"  # Tune hands a scheduler the result with its nested names joined
            epoch = {key.removeprefix(prefix): value for key, value in result.items() if key.startswith(prefix)}
            stops = bool(epoch) and rungs.stops(trial.config["trial_id"], epoch)
            return str(TrialScheduler.STOP if stops else TrialScheduler.CONTINUE)

    return RungScheduler()


def _stopper(should_stop: Callable[[], bool]) -> Any:
    from ray.tune.stopper import NoopStopper, Stopper

    class StudyStopper(Stopper):
        def __reduce__(self) -> tuple[type, tuple[()]]:
            return NoopStopper, ()

        def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
            return False

        def stop_all(self) -> bool:
            return should_stop()

    return StudyStopper()


def _callback(groups: Any, events: _Events) -> Any:
    """Tune's results as events; the reaper of leases whose Tune trial is gone without having said so."""
    import ray
    from ray import tune

    class Results(tune.Callback):
        def __reduce__(self) -> tuple[type, tuple[()]]:
            return tune.Callback, ()

        def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: Any, **_: Any) -> None:
            trial_id, event = trial.config["trial_id"], result["event"]
            events.tell(trial_id, event)
            if event["type"] == "epoch" and result.get("done"):  # Tune will stop it: nothing after this epoch counts
                self._stop(trial_id, event["epoch"]["epoch"])

        def _stop(self, trial_id: str, epoch: int) -> None:
            try:
                ended = ray.get(groups.stop.remote(trial_id, epoch))
            except ray.exceptions.RayError:
                logger.exception("the books are gone: %s is ended by the next sweep", trial_id)
                return
            if ended is None:  # it has no lease any more
                events.end_cut_short()
            else:
                events.tell(trial_id, ended)

        def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
            message = "the Tune process that followed this trial ended without a result; see driver.log"
            trial_id = trial.config["trial_id"]
            events.tell(trial_id, {"type": "lost", "error": error_of("tune_trial", message)})
            groups.release.remote(trial_id)

        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
            groups.release.remote(trial.config["trial_id"])

    return Results()
