"""Trainings by steps, the steps to a target at each batch size, and the best rate of a batch.

With exact sums of gradients num_gpus changes what a step learns by rounding only. So trainings of the same batch size,
rate and seed on different num_gpus are one training measured several times. They are pooled into their median.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from scalestudy.experiments.analysis.measures.cells import Cell, Combination
from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.analysis.measures.parts import positive
from scalestudy.experiments.analysis.measures.trial import Trial
from scalestudy.experiments.analysis.measures.usable import (
    TIMED,
    censored,
    curve_of_result,
    final_value,
    reached_at_once,
    time_to_target,
)
from scalestudy.experiments.spec.checks import inexact_findings
from scalestudy.experiments.spec.study_spec import StudySpec, value_in

TUNED = (*TIMED, "diverged")
"""Statuses that say something about a batch size and a rate. Too little memory concerns num_gpus instead."""
Costs = Mapping[float, Mapping[int, float]]
"""Rate to seed to cost. A cost is what should be small, such as steps to a target; infinity for a seed that missed."""
Grid = dict[int, dict[float, dict[int, float]]]
"""Batch size to rate to seed to cost."""
Edge = Literal["lowest", "highest"]


@dataclass(frozen=True, kw_only=True)
class Training:
    """One training."""

    num_gpus: int
    batch_size: int
    rate: float
    seed: int
    curve: tuple[tuple[float, float], ...]  # (steps so far, value of the metric) after each epoch
    final: float | None  # the metric after the last epoch, if it finished
    examples_per_step: float  # the batch size, or less if an epoch ends in a smaller batch
    noise: tuple[float, float] | None  # mean |G|² and tr Σ over the epochs that have them
    noise_steps: int  # the steps of these epochs
    status: str = "finished"  # how it ended
    limited: bool = False  # whether it was stopped at a limit that was set before it began, not for being behind
    epoch_examples: float | None = None  # the training set's size, None if it was not recorded

    @property
    def was_behind(self) -> bool:
        """Whether a scheduler stopped it for being behind others, which says something of what it still had to go."""
        return self.status == "stopped" and not self.limited


@dataclass(frozen=True, kw_only=True)
class BestRate:
    """The best rate of a batch size."""

    rate: float
    edge: Edge | None  # whether it is the lowest or highest of its grid; a single rate is the lowest
    rates: int  # how many were tried
    costs: tuple[float, ...]  # at this rate, by seed


@dataclass(frozen=True, kw_only=True)
class BatchPoint:
    """Steps to a target at one batch size."""

    batch_size: int
    examples_per_step: float
    best: BestRate | None  # None if the target was not reached
    upper_bound: bool  # at the best rate a seed met the target within its first epoch, whose steps then stand for it
    stopped: int = 0
    """Seeds stopped before the target, at the best rate or, if there is none, at any rate; they are left out."""

    @property
    def measured(self) -> bool:
        """Whether its steps are figures, not bounds: every seed met the target, and none within its first epoch."""
        return self.best is not None and not self.upper_bound and all(map(math.isfinite, self.best.costs))

    @property
    def why_not_measured(self) -> str:
        """The reason, as a clause."""
        if self.best is None:
            return (
                "stopped before the target, or missed it"
                if self.stopped
                else "half of the trainings or more missed the target"
            )
        if self.upper_bound:
            return "met at the first evaluation"
        missed = sum(not math.isfinite(cost) for cost in self.best.costs)
        return f"{missed} of {len(self.best.costs)} seeds missed the target"


def learns_alike(spec: StudySpec, combination: Combination) -> bool:
    """Whether a step learns the same with any num_gpus, apart from rounding.

    Of runs of others that is not known; of a user's loop `workload.exact` says it.
    """
    if spec.judged:
        return False
    inexact = inexact_findings(spec, lambda key: [setting(spec, combination, key)])
    return next(inexact, None) is None


def setting(spec: StudySpec, combination: Combination, key: str) -> Any:
    """Return the value of a key in a combination: as swept, else the spec's. key: dotted, such as `train.lr_rule`."""
    return combination.settings[key] if key in combination.settings else value_in(spec, key)


def trainings_of(cells: Iterable[Cell]) -> list[Training]:
    """Return the trainings that say something about their batch size and rate. Rates of zero or less are left out.

    A cell with lent trials has none, since they belong to another cell.
    """
    return [
        _training(cell, trial)
        for cell in cells
        if positive(cell.params["learning_rate"])
        for trial in cell.own
        if trial.status in TUNED
    ]


def _training(cell: Cell, trial: Trial) -> Training:
    epochs, batch_size, key = trial.epochs, cell.batch_size, cell.metric.key
    steps_of_each = [epoch.steps_at(batch_size) for epoch in epochs]
    curve: list[tuple[float, float]] = []  # up to the first epoch whose steps are unknown
    made = 0.0
    for epoch, steps in zip(epochs, steps_of_each, strict=True):
        if steps is None:
            break
        made += steps
        if key in epoch.tested:
            curve.append((made, epoch.tested[key]))
    if trial.result_alone:
        curve = curve_of_result(trial, curve, cell.metric)

    examples_per_step = float(batch_size)
    counts = [epoch.samples for epoch in epochs]
    known = [(samples, steps) for samples, steps in zip(counts, steps_of_each, strict=True) if samples and steps]
    if known:
        mean = math.fsum(samples for samples, _ in known) / math.fsum(steps for _, steps in known)
        examples_per_step = min(max(mean, 1.0), float(batch_size))

    noises = [
        (epoch.grad_sq_norm, epoch.grad_trace_cov, steps or 0.0)
        for epoch, steps in (zip(epochs, steps_of_each, strict=True) if trial.status in TIMED else ())
        if epoch.grad_sq_norm is not None and epoch.grad_trace_cov is not None
    ]
    squares, traces, noise_steps = zip(*noises, strict=True) if noises else ((), (), ())
    return Training(
        num_gpus=cell.num_gpus,
        batch_size=batch_size,
        rate=float(cell.params["learning_rate"]),
        seed=trial.seed,
        curve=tuple(curve),
        final=final_value(trial, cell.metric) if trial.status == "finished" else None,
        examples_per_step=examples_per_step,
        noise=(statistics.fmean(squares), statistics.fmean(traces)) if noises else None,
        noise_steps=int(sum(noise_steps)),
        status=trial.status,
        limited=trial.limited,
        epoch_examples=max((count for count in counts if count), default=None),
    )


def batch_points(
    trainings: Sequence[Training],
    target: float,
    metric: StudyMetric,
    estimates: Mapping[int, Mapping[float, float]] | None = None,
) -> list[BatchPoint]:
    """Return the steps to a target at each batch size, the smallest first.

    estimates: of the steps, by batch size and rate; they decide which rate is the best.
    """
    told = [(training, time_to_target(training.curve, target, metric)) for training in trainings]
    costs, seeds = _pooled(told), _told(told)
    points = []
    for batch_size, members in _by_batch(trainings).items():
        best = best_rate(costs[batch_size], (estimates or {}).get(batch_size))
        chosen = [training for training in members if best is not None and training.rate == best.rate]
        rates = [best.rate] if best is not None else list(costs[batch_size])
        points.append(
            BatchPoint(
                batch_size=batch_size,
                examples_per_step=statistics.median(training.examples_per_step for training in members),
                best=best,
                upper_bound=any(reached_at_once(training.curve, target, metric) for training in chosen),
                stopped=sum(not found for rate in rates for found in seeds[batch_size, rate].values()),
            )
        )
    return points


def final_rates(trainings: Sequence[Training], metric: StudyMetric) -> dict[int, BestRate | None]:
    """Return the rate of the best metric after the last epoch, by batch size.

    Trainings that failed have missed it. Those that were stopped are left out. A batch size has None if one of its
    trainings stopped at the target: how far that training would have come is not known.
    """
    orders = [math.inf if training.final is None else metric.order(training.final) for training in trainings]
    costs = _pooled(list(zip(trainings, orders, strict=True)))
    return {
        batch_size: None if any(each.status == "at_target" for each in members) else best_rate(costs[batch_size])
        for batch_size, members in _by_batch(trainings).items()
    }


def _by_batch(trainings: Sequence[Training]) -> dict[int, list[Training]]:
    members: dict[int, list[Training]] = defaultdict(list)
    for training in sorted(trainings, key=lambda training: training.batch_size):
        members[training.batch_size].append(training)
    return dict(members)


def _pooled(costs: Sequence[tuple[Training, float]]) -> Grid:
    """Return medians over num_gpus, by batch size, rate and seed, without seeds stopped before they had a cost.

    Of the copies of a training those count that have a cost, if any has: the others ended before it was known.
    A rate at which no seed has a cost counts as tried and missed: a scheduler stops what others are ahead of.
    """
    grid: Grid = defaultdict(dict)
    for (batch_size, rate), seeds in _told(costs).items():
        known = {
            seed: statistics.median_low([cost for cost in found if math.isfinite(cost)] or found)
            for seed, found in seeds.items()
            if found
        }
        grid[batch_size][rate] = known or dict.fromkeys(seeds, math.inf)
    return grid


def _told(costs: Sequence[tuple[Training, float]]) -> dict[tuple[int, float], dict[int, list[float]]]:
    """Return a seed's costs on every num_gpus, by (batch size, rate) and seed.

    Empty for a seed that was stopped on all.
    """
    told: dict[tuple[int, float], dict[int, list[float]]] = defaultdict(dict)
    for training, cost in costs:
        found = told[training.batch_size, training.rate].setdefault(training.seed, [])
        if not censored(training.status, cost):
            found.append(cost)
    return told


def best_rate(costs: Costs, estimates: Mapping[float, float] | None = None) -> BestRate | None:
    """Return the best rate of one batch size, or None if at every rate half of the seeds or more missed.

    estimates: of the cost, by rate. If there are any, they decide instead of the medians over seeds, of which the
    smallest may be lucky.
    Of equal ones the lowest rate counts.
    """
    medians = {rate: statistics.median(seeds.values()) for rate, seeds in sorted(costs.items()) if seeds}
    decisive = {rate: cost for rate, cost in medians.items() if math.isfinite(cost)}
    decisive = {rate: estimates[rate] for rate in decisive if estimates and rate in estimates} or decisive
    if not decisive:
        return None
    best, rates = min(decisive, key=lambda rate: decisive[rate]), list(medians)
    return BestRate(
        rate=best,
        edge="lowest" if best == rates[0] else "highest" if best == rates[-1] else None,
        rates=len(rates),
        costs=tuple(costs[best][seed] for seed in sorted(costs[best])),
    )
