"""What a plan will cost, from epochs that were measured earlier. Pure."""

import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from scalestudy.experiments.plan.plan import Plan, TrialPlan, at_size, without
from scalestudy.experiments.plan.timing_runs import TIMING_RUNS, timed_steps, timing_kinds
from scalestudy.experiments.spec.sections import OUTSIDE_STEP


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a plan will cost.

    worker_epochs: epochs times workers, summed. seconds: training and evaluation, one trial at a time, without
    start-up. gpu_seconds: each trial's seconds times its num_gpus, summed. Both are None if nothing alike was measured;
    `why` tells it. timings: number of timing runs that follow a factorised study's trials; seconds include them.
    grid: the cost of the whole grid.
    """

    trials: int
    epochs: int
    worker_epochs: int
    seconds: float | None
    gpu_seconds: float | None
    why: str | None = None
    timings: int = 0
    grid: "Estimate | None" = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for --json."""
        return asdict(self)


class Measured(NamedTuple):
    """Seconds that were measured earlier: of an epoch with its evaluation, and of a step."""

    epoch: float
    step: float


def estimate(plan: Plan, earlier_trials: Iterable[Mapping[str, Any]], timing_runs: int = TIMING_RUNS) -> Estimate:
    """Estimates what the plan will cost, from epochs measured earlier: at most, if a search makes the trials or stops
    some, or if they stop at a target.

    earlier_trials: lines of trials.jsonl, each with its `workload` and `train` (`StudyFolder.measured_trials`).
    A trial's epochs count for every trial with the same workload, num_gpus, batch_size and way of training. Learning
    rate, schedule, seed and number of epochs may differ: they don't change the time of an epoch.
    """
    coming = plan.to_suggest
    if coming:
        epochs = coming.trials * coming.epochs
        return Estimate(
            trials=coming.trials,
            epochs=epochs,
            worker_epochs=epochs * max(coming.sizes),
            seconds=None,
            gpu_seconds=None,
            why=f"{coming.method} chooses the points while the study runs; these figures are the maximum",
        )
    measured = _measured(earlier_trials)
    return _of_factorised(plan, measured, timing_runs) if plan.factorised else _of_trials(plan.trials, measured)


def trial_seconds(trials: Iterable[TrialPlan], earlier_trials: Iterable[Mapping[str, Any]]) -> list[float | None]:
    """Seconds of training and evaluation of each trial, as `estimate` finds them. None if nothing alike was measured.

    earlier_trials: as for `estimate`.
    """
    return _seconds(trials, _measured(earlier_trials))


def _of_trials(trials: Iterable[TrialPlan], measured: Mapping[str, Measured]) -> Estimate:
    trials = list(trials)
    epochs = [trial.train["epochs"] for trial in trials]
    workers = [trial.num_gpus for trial in trials]
    totals = [each for each in _seconds(trials, measured) if each is not None]
    complete = bool(totals) and len(totals) == len(trials)
    unknown = len(trials) - len(totals)
    return Estimate(
        trials=len(trials),
        epochs=sum(epochs),
        worker_epochs=sum(count * number for count, number in zip(epochs, workers, strict=True)),
        seconds=sum(totals) if complete else None,
        gpu_seconds=sum(total * number for total, number in zip(totals, workers, strict=True)) if complete else None,
        why=None if complete else f"no earlier timing for {unknown} of {len(trials)} trials",
    )


def _of_factorised(plan: Plan, measured: Mapping[str, Measured], timing_runs: int) -> Estimate:
    """Estimates trainings, held-out cells and timing runs.

    The held-out cells are not chosen yet. Their epochs are counted with the most workers, their seconds as the mean
    of all candidates. A timing run counts 0 seconds if no step like its own was measured.
    """
    assert plan.factorised is not None
    trainings, others = plan.swept, [size for size in plan.factorised.sizes if size != plan.factorised.train_on]
    trained, count = _of_trials(trainings, measured), plan.held_out_trials
    candidates = _of_trials([at_size(trial, size) for trial in trainings for size in others], measured)
    longest = max((trial.train["epochs"] for trial in trainings), default=0)
    whole = _with_share(trained, candidates, share=count / max(candidates.trials, 1))
    seconds, gpu_seconds = whole.seconds, whole.gpu_seconds
    kinds = [at_size(trial, size) for trial in timing_kinds(trainings) for size in plan.factorised.sizes] * timing_runs
    if seconds is not None and gpu_seconds is not None:
        timings = [measured.get(_timing_key(trial.workload, trial.train, trial.params)) for trial in kinds]
        timed = [known.step * timed_steps(trial) if known else 0.0 for trial, known in zip(kinds, timings, strict=True)]
        seconds += sum(timed)
        gpu_seconds += sum(each * trial.num_gpus for each, trial in zip(timed, kinds, strict=True))
    return replace(
        whole,
        trials=trained.trials + count,
        epochs=trained.epochs + count * longest,
        worker_epochs=trained.worker_epochs + count * longest * max(others, default=0),
        seconds=seconds,
        gpu_seconds=gpu_seconds,
        timings=len(kinds),
        grid=_with_share(trained, candidates, share=1.0),
    )


def _with_share(trained: Estimate, others: Estimate, share: float) -> Estimate:
    """The trainings, plus a share of the grid's other trials."""
    known = trained.seconds is not None and others.seconds is not None
    return Estimate(
        trials=trained.trials + round(share * others.trials),
        epochs=trained.epochs + round(share * others.epochs),
        worker_epochs=trained.worker_epochs + round(share * others.worker_epochs),
        seconds=(trained.seconds or 0.0) + share * (others.seconds or 0.0) if known else None,
        gpu_seconds=(trained.gpu_seconds or 0.0) + share * (others.gpu_seconds or 0.0) if known else None,
        why=None if known else trained.why or f"{others.why} with another num_gpus",
    )


def _seconds(trials: Iterable[TrialPlan], measured: Mapping[str, Measured]) -> list[float | None]:
    timings = [(trial, measured.get(_timing_key(trial.workload, trial.train, trial.params))) for trial in trials]
    return [None if known is None else known.epoch * trial.train["epochs"] for trial, known in timings]


def _measured(earlier_trials: Iterable[Mapping[str, Any]]) -> dict[str, Measured]:
    """Median seconds of an epoch and of a step, by `_timing_key`."""
    epochs: dict[str, list[Mapping[str, Any]]] = {}
    for trial in earlier_trials:
        if "workload" in trial and "train" in trial:
            key = _timing_key(trial["workload"], trial["train"], trial["params"])
            epochs.setdefault(key, []).extend(trial.get("epochs", ()))
    return {
        key: Measured(
            epoch=statistics.median(epoch["train_seconds"] + (epoch.get("eval_seconds") or 0.0) for epoch in found),
            step=statistics.median(epoch["train_seconds"] / (epoch.get("steps") or 1) for epoch in found),
        )
        for key, found in epochs.items()
        if found
    }


def _timing_key(workload: Mapping[str, Any], train: Mapping[str, Any], params: Mapping[str, Any]) -> str:
    """What trials with equally long epochs have in common: workload, way of training, num_gpus and batch_size."""
    way = without(train, OUTSIDE_STEP)
    return json.dumps([workload, way, params["num_gpus"], params["batch_size"]], sort_keys=True)
