"""Stage 3, Ray Tune: runs the plan's trials, each through a leased worker group, and hands on their events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from experiments.plan import Plan
from orchestration.outcomes import error_of

Event = dict[str, Any]
OnEvent = Callable[[str, Event], None]

HEAD_SHARE = {"CPU": 0, "node:__internal_head__": 0.001}
"""A Tune trial's own share: a fraction of a CPU would leave a two-core machine one core short of two workers."""


def follow_trial(config: dict[str, Any], groups: Any, orders: Mapping[str, dict[str, Any]]) -> None:
    """The Tune trainable: leases workers for one trial, reports its events, gives the workers back.

    Args:
        config: `trial_id`, from the grid.
        groups: the actor that keeps the worker groups' books.
        orders: what to train, by trial id.
    """
    import ray
    from ray import tune

    trial_id = config["trial_id"]
    ray.get(groups.lease.remote(orders[trial_id]))
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
    plan: Plan,
    *,
    groups: Any,
    orders: Mapping[str, dict[str, Any]],
    concurrency: int,
    folder: Path,
    on_event: OnEvent,
    should_stop: Callable[[], bool],
) -> None:
    """Runs every trial of the plan, in its order, and returns when all have ended or the study is stopped.

    Args:
        plan: the trials.
        groups: handle of the `WorkerGroups` actor.
        orders: what to train, by trial id.
        concurrency: trials at a time.
        folder: where Tune keeps its own files.
        on_event: called in this process with (trial_id, event), in the order of each trial's events.
        should_stop: asked between steps of the sweep; True ends it.
    """
    from ray import tune

    trainable = tune.with_resources(tune.with_parameters(follow_trial, groups=groups, orders=dict(orders)), HEAD_SHARE)
    tuner = tune.Tuner(
        trainable,
        param_space={"trial_id": tune.grid_search([trial.trial_id for trial in plan.trials])},
        tune_config=tune.TuneConfig(
            max_concurrent_trials=concurrency,
            reuse_actors=True,
            trial_name_creator=lambda trial: trial.config["trial_id"],
            trial_dirname_creator=lambda trial: trial.config["trial_id"],
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=str(folder),
            stop=_stopper(should_stop),
            callbacks=[_events_callback(groups, on_event)],
            verbose=0,
        ),
    )
    tuner.fit()


def _stopper(should_stop: Callable[[], bool]) -> Any:
    from ray.tune.stopper import NoopStopper, Stopper

    class StudyStopper(Stopper):
        def __reduce__(self) -> tuple[type, tuple[()]]:
            return NoopStopper, ()  # Tune saves its settings; what lives in this process stays out of them

        def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
            return False

        def stop_all(self) -> bool:
            return should_stop()

    return StudyStopper()


def _events_callback(groups: Any, on_event: OnEvent) -> Any:
    """Tune's results as events; the reaper of leases whose Tune trial is gone without having said so."""
    from ray import tune

    class Events(tune.Callback):
        def __reduce__(self) -> tuple[type, tuple[()]]:
            return tune.Callback, ()

        def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: Any, **_: Any) -> None:
            on_event(trial.config["trial_id"], result["event"])

        def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
            message = "the Tune process that followed this trial ended without a result; see driver.log"
            trial_id = trial.config["trial_id"]
            on_event(trial_id, {"type": "lost", "error": error_of("tune_trial", message)})
            groups.release.remote(trial_id)

        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
            groups.release.remote(trial.config["trial_id"])

    return Events()
