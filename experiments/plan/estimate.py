"""How long each of a plan's trials will take, by the last timings of comparable trials. Pure."""

import itertools
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scalestudy.experiments.plan.plan import Plan, TrialPlan
from scalestudy.experiments.plan.timing_runs import (
    TIMING_RUNS,
    timed_reports,
    timing_kinds,
    timing_run_seconds,
)
from scalestudy.experiments.spec.sections import length_of, step_keys
from scalestudy.training.config import Train, Workload


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One timed training, from which the times of others are estimated."""

    source: str  # the study that timed it, as people read it
    way: str  # see `way_of`
    num_gpus: int
    batch_size: int
    nodes: int = 1  # that its workers lay on
    example_seconds: float  # of training, by all workers together
    evaluation_seconds: float | None = None  # of one evaluation; None: there was none
    epoch_examples: float | None = None  # None: it had no whole epoch
    example_tokens: float | None = None  # None: they were not counted

    @classmethod
    def of(cls, record: Mapping[str, Any], source: str) -> "Timing | None":
        """Read a record of `StudyFolder.measured_trials`. None: it has no time of a step.

        A timing run counts by its rate after the warm-up, a training by all of its steps.
        """
        epochs: Sequence[Mapping[str, Any]] = record.get("epochs") or ()
        length, examples = length_of(record["train"]), sum(epoch["samples"] or 0 for epoch in epochs)
        tokens = sum(epoch.get("tokens") or 0 for epoch in epochs)
        whole = record.get("kind") != "timing"
        if whole and examples:
            example_seconds = sum(epoch["train_seconds"] for epoch in epochs) / examples
        elif rates := [epoch["samples_per_second"] for epoch in epochs if epoch["samples_per_second"]]:
            example_seconds = 1 / rates[-1]
        else:
            return None
        evaluations = [epoch["eval_seconds"] for epoch in epochs if whole and epoch["eval_seconds"] is not None]
        in_epochs = whole and length.unit == "epochs" and length.period <= length.length
        return cls(
            source=source,
            way=way_of(record["workload"], record["train"]),
            num_gpus=record["params"]["num_gpus"],
            batch_size=record["params"]["batch_size"],
            nodes=(record.get("world") or {}).get("nodes") or 1,
            example_seconds=example_seconds,
            evaluation_seconds=statistics.fmean(evaluations) if evaluations else None,
            epoch_examples=epochs[0]["samples"] / length.period if in_epochs else None,
            example_tokens=tokens / examples if tokens else None,
        )


class LastTimings:
    """The last timings of each cell, and of each way of training."""

    def __init__(self, studies: Iterable[Iterable[Timing]]) -> None:
        """Take the timings of studies, the last study's first.

        In a cell the timings on the fewest nodes count: a study places its workers on as few as can hold them.
        """
        self._cells: dict[tuple[str, int, int], list[Timing]] = {}
        self._ways: dict[str, list[Timing]] = {}
        for timings in studies:
            cells: dict[tuple[str, int, int], list[Timing]] = {}
            ways: dict[str, list[Timing]] = {}
            for each in sorted(timings, key=lambda timing: timing.nodes):
                alike = cells.setdefault((each.way, each.num_gpus, each.batch_size), [])
                if not alike or alike[0].nodes == each.nodes:
                    alike.append(each)
                    ways.setdefault(each.way, []).append(each)
            self._cells, self._ways = cells | self._cells, ways | self._ways

    def of_cell(self, trial: TrialPlan) -> Sequence[Timing]:
        """Return the timings with the trial's num_gpus and batch_size."""
        return self._cells.get((way_of(trial.workload, trial.train), trial.num_gpus, trial.batch_size), ())

    def used_for(self, trial: TrialPlan) -> Sequence[Timing]:
        """Return the timings that count: of the trial's cell, else of every cell that trains the same way."""
        return self.of_cell(trial) or self._ways.get(way_of(trial.workload, trial.train), ())

    def training(self, trial: TrialPlan) -> float | None:
        """Return the seconds of a training with its evaluations, the median by its timings. None: it has none."""
        used, length = self.used_for(trial), length_of(trial.train)
        alike = self._ways.get(way_of(trial.workload, trial.train), ())
        unit: float | None = trial.batch_size
        if length.unit == "epochs":
            unit = next((each.epoch_examples for each in alike if each.epoch_examples), None)
        elif length.unit == "tokens":
            tokens = next((each.example_tokens for each in alike if each.example_tokens), None)
            unit = 1 / tokens if tokens else None
        if not used or unit is None:
            return None
        known = [each.evaluation_seconds for each in (*used, *alike) if each.evaluation_seconds is not None]
        evaluation = known[0] if known else 0.0
        examples = length.length * unit
        return statistics.median(
            [
                each.example_seconds * examples
                + length.evaluations * (evaluation if each.evaluation_seconds is None else each.evaluation_seconds)
                for each in used
            ]
        )

    def timing_run(self, trial: TrialPlan) -> float | None:
        """Return the seconds of the steps of a trial's timing run; of a Ray Train loop, those of some reports."""
        if trial.workload.get("loop"):
            return self.training(replace(trial, train=timed_reports()))
        warm_up, batch = int(trial.train["warm_up_steps"]), trial.batch_size
        seconds = [timing_run_seconds(warm_up, each.example_seconds * batch) for each in self.used_for(trial)]
        return statistics.median(seconds) if seconds else None


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a plan will cost."""

    trials: Sequence[TrialPlan]  # that will be trained; of a search, as many from the corners of its space
    timing_runs: Sequence[TrialPlan]  # that follow, one at a time, each named by the trial whose steps it times
    epochs: int  # of all trials; evaluations, where a period is no epoch; the most, if trials may stop early
    worker_epochs: int  # each trial's epochs times its workers, summed
    seconds: Sequence[float] | None  # of `trials`, then of `timing_runs`; None: no comparable trial was timed
    timed: int  # trials whose num_gpus and batch_size were timed
    rests_on: Sequence[str]  # the sources of the timings that count

    @property
    def worker_seconds(self) -> float | None:
        """Each trial's seconds times its workers, summed."""
        if self.seconds is None:
            return None
        workers = (trial.num_gpus for trial in (*self.trials, *self.timing_runs))
        return sum(count * seconds for count, seconds in zip(workers, self.seconds, strict=True))


def estimate(
    plan: Plan,
    timings: LastTimings,
    *,
    corners: Sequence[TrialPlan] = (),
    timed_alone: bool = False,
) -> Estimate | None:
    """Estimate what a plan will cost. None: an adaptive search decides while it runs; its budget is the most.

    A trial takes the time of the last trials with its workload, num_gpus, batch_size and way of training: learning
    rate, schedule, seed and length do not change the time of a step. What was not timed has the time an example of all
    cells that train the same way.

    Args:
        plan: of a study.
        timings: of earlier trials.
        corners: trials at the corners of a search's space; what it suggests is estimated by them in turn.
        timed_alone: whether timing runs follow, as after a sweep whose trials ran side by side.
    """
    trials, coming = list(plan.trials), plan.to_suggest
    if plan.is_adaptive:
        return None
    if coming:
        trials = list(itertools.islice(itertools.cycle(corners), coming.trials)) if corners else []
    runs = timing_kinds(plan.trials) * TIMING_RUNS if timed_alone else []
    seconds = [*map(timings.training, trials), *map(timings.timing_run, runs)]
    known = [each for each in seconds if each is not None]
    sources = (each.source for trial in (*trials, *runs) for each in timings.used_for(trial))
    epochs = coming.trials * coming.epochs if coming else sum(trial.evaluations for trial in trials)
    return Estimate(
        trials=trials,
        timing_runs=runs,
        epochs=epochs,
        worker_epochs=(
            epochs * max(coming.sizes) if coming else sum(trial.evaluations * trial.num_gpus for trial in trials)
        ),
        seconds=known if trials and len(known) == len(seconds) else None,
        timed=sum(bool(timings.of_cell(trial)) for trial in trials),
        rests_on=tuple(dict.fromkeys(sources)),
    )


def way_of(workload: Mapping[str, Any], train: Mapping[str, Any]) -> str:
    """Return what trials with comparable steps have in common: workload and way of training."""
    return json.dumps([step_keys(Workload, workload), step_keys(Train, train)], sort_keys=True)
