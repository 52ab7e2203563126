"""What a plan costs before it is run, from epochs that were measured earlier. Pure."""

import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from scalestudy.experiments.plan.plan import NO_EFFECT, NO_TIME, Plan, TrialPlan, at_size, without
from scalestudy.experiments.plan.timing_runs import timed_steps, timing_kinds
from scalestudy.experiments.spec.search_space import ToSuggest


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a plan costs before it is run.

    worker_epochs: epochs times workers, summed. seconds: training and evaluation one trial at a time, without
    start-up; gpu_seconds: the same times num_gpus; both None, with a why, where nothing like it was measured.
    timings: the timing runs that follow a factorised study's trials, in its seconds too; grid: what the whole grid
    would cost.
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


def estimate(plan: Plan, earlier_trials: Iterable[Mapping[str, Any]]) -> Estimate:
    """What the plan costs, from epochs measured earlier; where a search makes the trials, at most.

    earlier_trials: trials as in trials.jsonl, each with its `workload` and `train` (`StudyFolder.measured_trials`). A
    trial counts for another of the same workload, num_gpus, batch_size and way of training: the learning rate, its
    schedule, the seed and the number of epochs don't change the time of an epoch.
    """
    if plan.to_suggest:
        return _at_most(plan.to_suggest)
    measured = _measured(earlier_trials)
    return _factorised(plan, measured) if plan.factorised else _of(plan.trials, measured)


def trial_seconds(trials: Iterable[TrialPlan], earlier_trials: Iterable[Mapping[str, Any]]) -> list[float | None]:
    """Seconds of training and evaluation of each trial, by earlier ones as `estimate` takes them; None: none alike."""
    return _seconds(trials, _measured(earlier_trials))


def _of(trials: Iterable[TrialPlan], measured: Mapping[str, Measured]) -> Estimate:
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


def _factorised(plan: Plan, measured: Mapping[str, Measured]) -> Estimate:
    """Trainings, held-out cells and timing runs. Which cells are held out is not known yet: their epochs are counted
    with the most workers, their seconds as the mean of all that may be."""
    assert plan.factorised is not None
    trainings, others = plan.swept, [size for size in plan.factorised.sizes if size != plan.factorised.train_on]
    candidates = _of([at_size(trial, size) for trial in trainings for size in others], measured)
    trained, count = _of(trainings, measured), plan.held_out_trials
    longest = max((trial.train["epochs"] for trial in trainings), default=0)
    kinds = [at_size(trial, size) for trial in timing_kinds(trainings) for size in plan.factorised.sizes]
    grid = _together(trained, candidates, share=1.0)
    whole = _together(trained, candidates, share=count / max(candidates.trials, 1))
    timed = [_timing_seconds(trial, measured) for trial in kinds]
    return replace(
        whole,
        trials=trained.trials + count,
        epochs=trained.epochs + count * longest,
        worker_epochs=trained.worker_epochs + count * longest * max(others, default=0),
        seconds=None if whole.seconds is None else whole.seconds + sum(timed),
        gpu_seconds=None
        if whole.gpu_seconds is None
        else whole.gpu_seconds + sum(each * trial.num_gpus for each, trial in zip(timed, kinds, strict=True)),
        timings=len(kinds),
        grid=grid,
    )


def _together(trained: Estimate, others: Estimate, share: float) -> Estimate:
    """The trainings, and a share of the grid's other trials."""
    known = trained.seconds is not None and others.seconds is not None
    return Estimate(
        trials=trained.trials + round(share * others.trials),
        epochs=trained.epochs + round(share * others.epochs),
        worker_epochs=trained.worker_epochs + round(share * others.worker_epochs),
        seconds=(trained.seconds or 0.0) + share * (others.seconds or 0.0) if known else None,
        gpu_seconds=(trained.gpu_seconds or 0.0) + share * (others.gpu_seconds or 0.0) if known else None,
        why=None if known else trained.why or f"{others.why} with another num_gpus",
    )


def _timing_seconds(trial: TrialPlan, measured: Mapping[str, Measured]) -> float:
    """Of a timing run; 0 where no step like its own was measured."""
    known = measured.get(_timing_key(trial.workload, trial.train, trial.params))
    return known.step * timed_steps(trial) if known else 0.0


def _at_most(coming: ToSuggest) -> Estimate:
    epochs = coming.trials * coming.epochs
    return Estimate(
        trials=coming.trials,
        epochs=epochs,
        worker_epochs=epochs * max(coming.sizes),
        seconds=None,
        gpu_seconds=None,
        why=f"{coming.method} chooses the points while the study runs; these are the most that it can come to",
    )


def _timing_key(workload: Mapping[str, Any], train: Mapping[str, Any], params: Mapping[str, Any]) -> str:
    way = without(train, NO_EFFECT | NO_TIME)
    return json.dumps([workload, way, params["num_gpus"], params["batch_size"]], sort_keys=True)


def _seconds(trials: Iterable[TrialPlan], measured: Mapping[str, Measured]) -> list[float | None]:
    found = [(trial, measured.get(_timing_key(trial.workload, trial.train, trial.params))) for trial in trials]
    return [None if known is None else known.epoch * trial.train["epochs"] for trial, known in found]


def _measured(earlier_trials: Iterable[Mapping[str, Any]]) -> dict[str, Measured]:
    """Median seconds of an epoch and of a step, by workload, num_gpus, batch_size and way of training."""
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
