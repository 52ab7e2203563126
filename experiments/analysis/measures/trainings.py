"""Trainings by steps; the best rate of a batch.

Source: docs/formulas.md §2 and §3.

With exact sums of gradients what a step learns does not depend on num_gpus, but for rounding. So trainings of the same
batch size, rate and seed on different num_gpus are one training told several times over, not independent ones: they are
pooled into one figure, their median.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from scalestudy.experiments.analysis.measures.cells import Cell
from scalestudy.experiments.analysis.measures.intervals import ENOUGH_SEEDS, t_interval
from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.analysis.measures.parts import finite, positive
from scalestudy.experiments.analysis.measures.records import (
    TIMED,
    Trial,
    censored,
    epochs_of,
    final_value,
    time_to_target,
)

TUNED = ("finished", "stopped", "diverged")
"""Statuses that say something about a batch size with a rate. Too little memory says something about num_gpus."""

Costs = Mapping[float, Mapping[int, float]]
"""Rate to seed to what is to be as small as can be: steps to a target, say; infinity for a seed that missed."""
Edge = Literal["lowest", "highest"]


@dataclass(frozen=True, kw_only=True)
class BestRate:
    """The rate of the smallest median cost over seeds.

    edge: where it is the lowest or highest of its grid, so that it and its costs are bounds; a rate that is alone is
    the lowest. rates: how many were tried. costs: its own, by seed. fair: a cost a seed that choosing the rate does not
    flatter (`fair_costs`). low, high: the range in which the seeds and the grid leave the best rate: from the lowest to
    the highest of the neighbouring rates that can't be told apart from it, and on to half way to the next ones.
    """

    rate: float
    edge: Edge | None
    rates: int
    costs: tuple[float, ...]
    fair: tuple[float, ...]
    low: float
    high: float

    @property
    def middle(self) -> float:
        """Of the range, on a logarithmic scale: the better estimate where several rates do as well."""
        return math.sqrt(self.low * self.high)

    @property
    def width(self) -> float:
        """Of the range, as a difference of logarithms."""
        return math.log(self.high / self.low)


def best_rate(costs: Costs) -> BestRate | None:
    """The best rate of one batch size; None where at every rate half of the seeds or more missed.

    Of equal medians the lowest rate's counts.
    """
    medians = {rate: statistics.median(seeds.values()) for rate, seeds in sorted(costs.items()) if seeds}
    best = min(medians, key=lambda rate: medians[rate], default=None)
    if best is None or not math.isfinite(medians[best]):
        return None
    rates = list(medians)
    low, high = _range(costs, rates, rates.index(best))
    own = costs[best]
    return BestRate(
        rate=best,
        edge="lowest" if best == rates[0] else "highest" if best == rates[-1] else None,
        rates=len(rates),
        costs=tuple(own[seed] for seed in sorted(own)),
        fair=fair_costs(costs, best),
        low=low,
        high=high,
    )


def fair_costs(costs: Costs, best: float) -> tuple[float, ...]:
    """A cost for each seed of the best rate, at the rate that the other seeds alone would have chosen for it.

    The smallest of several medians is too small: the choice follows the noise of the very seeds that are then reported,
    5 rates that are equally good and 5 seeds with 5 % noise giving 2 % too few steps. A rate chosen by the other seeds
    has no such advantage. A seed without a finite cost at that rate keeps the one at the best rate.
    """
    fair = []
    for seed, own in sorted(costs[best].items()):
        others = {
            rate: [cost for other, cost in seeds.items() if other != seed]
            for rate, seeds in sorted(costs.items())
            if math.isfinite(seeds.get(seed, math.inf))
        }
        medians = {rate: statistics.median(found) for rate, found in others.items() if found}
        chosen = min(medians, key=lambda rate: medians[rate], default=best)
        fair.append(costs[chosen][seed] if math.isfinite(medians.get(chosen, math.inf)) else own)
    return tuple(fair)


def _range(costs: Costs, rates: Sequence[float], best: int) -> tuple[float, float]:
    """Ends of the range in which the best rate lies."""
    if len(rates) == 1:
        return rates[0], rates[0]
    first = last = best
    farthest = 1 if len(costs[rates[best]]) == 1 else len(rates)  # one seed tells nothing apart, so no more than these
    while first > 0 and best - first < farthest and alike(costs[rates[best]], costs[rates[first - 1]]):
        first -= 1
    while last < len(rates) - 1 and last - best < farthest and alike(costs[rates[best]], costs[rates[last + 1]]):
        last += 1
    below = rates[max(first, 1)] / rates[max(first, 1) - 1]
    above = rates[min(last + 1, len(rates) - 1)] / rates[min(last, len(rates) - 2)]
    return rates[first] / math.sqrt(below), rates[last] * math.sqrt(above)


def alike(best: Mapping[int, float], other: Mapping[int, float]) -> bool:
    """Whether the seeds can't tell another rate's costs from those of the best.

    With five seeds or more in common that reached, by the t interval of their differences: they start from the same
    parameters. With fewer where the ranges overlap, with one always; never where half of the other's seeds missed.
    """
    if not math.isfinite(statistics.median(other.values())):
        return False
    if min(len(best), len(other)) == 1:
        return True
    common = [seed for seed in best if seed in other and math.isfinite(best[seed]) and math.isfinite(other[seed])]
    if len(common) < ENOUGH_SEEDS:
        return min(other.values()) <= max(best.values())
    low, high = t_interval([other[seed] - best[seed] for seed in common])
    return low <= 0 <= high


Grid = dict[int, dict[float, dict[int, float]]]
"""Batch size to rate to seed to cost."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """One training. curve: (steps so far, value of the metric) after each epoch. final: the metric after the last epoch
    of one that finished. examples_per_step: the batch size, or less where an epoch ends in a smaller batch. noise: mean
    |G|² and tr Σ over the epochs that have them, none for None; noise_steps: the steps of these epochs. status: how it
    ended. epoch_examples: of a whole epoch, which is the training set; None where they were not recorded.
    """

    num_gpus: int
    batch_size: int
    rate: float
    seed: int
    curve: tuple[tuple[float, float], ...]
    final: float | None
    examples_per_step: float
    noise: tuple[float, float] | None
    noise_steps: int
    status: str = "finished"
    epoch_examples: float | None = None


@dataclass(frozen=True, kw_only=True)
class BatchPoint:
    """Steps to a target at one batch size. best: None where it was not reached. upper_bound: at the best rate a seed
    met the target within its first epoch, whose steps then stand for it. stopped: seeds that were stopped before
    the target and are left out, at the best rate, or where there is none at all rates."""

    batch_size: int
    examples_per_step: float
    best: BestRate | None
    upper_bound: bool
    stopped: int = 0

    @property
    def measured(self) -> bool:
        """Whether its steps are figures and not bounds: every seed met the target, none within its first epoch."""
        return self.best is not None and not self.upper_bound and all(map(math.isfinite, self.best.costs))

    @property
    def why_not_measured(self) -> str:
        """In words."""
        if self.best is None:
            return "stopped before the target, or missed it" if self.stopped else "the target was missed"
        if self.upper_bound:
            return "met within the first epoch"
        missed = sum(not math.isfinite(cost) for cost in self.best.costs)
        return f"{missed} of {len(self.best.costs)} seeds missed the target"


def trainings_of(cells: Iterable[Cell]) -> list[Training]:
    """The trainings that say something about their batch size and rate, those of rates that are not above 0 left out.

    Of an inferred cell there are none: they are another cell's.
    """
    return [
        _training(cell, trial)
        for cell in cells
        if positive(cell.params["learning_rate"])
        for trial in cell.own
        if trial["status"] in TUNED
    ]


def _training(cell: Cell, trial: Trial) -> Training:
    epochs = epochs_of(trial)
    noise, noise_steps = _noise(trial)
    return Training(
        num_gpus=cell.num_gpus,
        batch_size=cell.batch_size,
        rate=float(cell.params["learning_rate"]),
        seed=int(trial["params"]["seed"]),
        curve=tuple(_curve(trial, cell.metric)),
        final=final_value(trial, cell.metric) if trial["status"] == "finished" else None,
        examples_per_step=_examples_per_step(epochs, cell.batch_size),
        noise=noise,
        noise_steps=noise_steps,
        status=trial["status"],
        epoch_examples=max((count for epoch in epochs if (count := positive(epoch.get("samples")))), default=None),
    )


def _curve(trial: Trial, metric: StudyMetric) -> list[tuple[float, float]]:
    """Up to the first epoch of which the steps are not known."""
    points, steps = [], 0.0
    for epoch in epochs_of(trial):
        made, value = _steps(epoch), finite(epoch.get(metric.key))
        if made is None:
            break
        steps += made
        if value is not None:
            points.append((steps, value))
    return points


def _examples_per_step(epochs: Sequence[Trial], batch_size: int) -> float:
    counts = [(positive(epoch.get("samples")), _steps(epoch)) for epoch in epochs]
    known = [(samples, steps) for samples, steps in counts if samples and steps]
    if not known:
        return float(batch_size)
    mean = math.fsum(samples for samples, _ in known) / math.fsum(steps for _, steps in known)
    return min(max(mean, 1.0), float(batch_size))


def _steps(epoch: Trial) -> float | None:
    """Steps of an epoch; None where what is recorded can't be a count."""
    steps = positive(epoch.get("steps"))
    return steps if steps is not None and steps >= 1 else None


def _noise(trial: Trial) -> tuple[tuple[float, float] | None, int]:
    if trial["status"] not in TIMED:
        return None, 0
    found = [
        (squared, trace, _steps(epoch) or 0.0)
        for epoch in epochs_of(trial)
        if (squared := finite(epoch.get("grad_sq_norm"))) is not None
        and (trace := finite(epoch.get("grad_trace_cov"))) is not None
    ]
    if not found:
        return None, 0
    squares, traces, steps = zip(*found, strict=True)
    return (statistics.fmean(squares), statistics.fmean(traces)), int(sum(steps))


def batch_points(trainings: Sequence[Training], target: float, metric: StudyMetric) -> list[BatchPoint]:
    """The steps to a target at each batch size, the smallest first."""
    by_batch = _by_batch(trainings)
    told = [(training, time_to_target(training.curve, target, metric)) for training in trainings]
    costs, seeds = _pooled(told), _told(told)
    points = []
    for batch_size, members in by_batch.items():
        best = best_rate(costs[batch_size])
        chosen = [training for training in members if best is not None and training.rate == best.rate]
        rates = [best.rate] if best is not None else list(costs[batch_size])
        points.append(
            BatchPoint(
                batch_size=batch_size,
                examples_per_step=statistics.median(training.examples_per_step for training in members),
                best=best,
                upper_bound=any(_met_at_once(training, target, metric) for training in chosen),
                stopped=sum(not found for rate in rates for found in seeds[batch_size, rate].values()),
            )
        )
    return points


def _met_at_once(training: Training, target: float, metric: StudyMetric) -> bool:
    return bool(training.curve) and metric.reached(training.curve[0][1], target)


def final_rates(trainings: Sequence[Training], metric: StudyMetric) -> dict[int, BestRate | None]:
    """The rate of the best metric after the last epoch, by batch size; those that failed have missed it, those
    that were stopped are left out."""
    orders = [math.inf if training.final is None else metric.order(training.final) for training in trainings]
    costs = _pooled(list(zip(trainings, orders, strict=True)))
    return {batch_size: best_rate(costs[batch_size]) for batch_size in _by_batch(trainings)}


def _by_batch(trainings: Sequence[Training]) -> dict[int, list[Training]]:
    members: dict[int, list[Training]] = defaultdict(list)
    for training in sorted(trainings, key=lambda training: training.batch_size):
        members[training.batch_size].append(training)
    return dict(members)


def _pooled(costs: Sequence[tuple[Training, float]]) -> Grid:
    """Medians over num_gpus, by batch size, rate and seed; without seeds that were stopped before they told a cost.

    A rate of which no seed told one counts as tried and missed: a scheduler stops what others are ahead of.
    """
    grid: Grid = defaultdict(dict)
    for (batch_size, rate), seeds in _told(costs).items():
        known = {seed: statistics.median(found) for seed, found in seeds.items() if found}
        grid[batch_size][rate] = known or dict.fromkeys(seeds, math.inf)
    return grid


def _told(costs: Sequence[tuple[Training, float]]) -> dict[tuple[int, float], dict[int, list[float]]]:
    """By batch size and rate, by seed, its costs on every num_gpus; none of a seed that was stopped on all of them."""
    told: dict[tuple[int, float], dict[int, list[float]]] = defaultdict(dict)
    for training, cost in costs:
        found = told[training.batch_size, training.rate].setdefault(training.seed, [])
        if not censored(training.status, cost):
            found.append(cost)
    return told
