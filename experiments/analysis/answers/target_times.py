"""The estimated and measured times of all cells to a target, and which of them is near enough to the fastest."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any

import numpy as np

from scalestudy.experiments.analysis.answers.posterior import Posterior, Times
from scalestudy.experiments.analysis.laws.least_squares import LEVEL
from scalestudy.experiments.analysis.laws.shrinkage import Vector
from scalestudy.experiments.analysis.measures.cells import Cell
from scalestudy.experiments.analysis.measures.targets import cost_of, target_row
from scalestudy.experiments.analysis.measures.units import plural

Option = Mapping[str, Any]
"""A row of `TargetTimes` whose seconds are known."""
NO_RATIO = 1e-12
"""Standard deviation of a ratio's logarithm below which the ratio counts as exact."""
SETTLED = 0.9
"""Chance of being near enough from which on the question is settled; below one minus it, it is settled as well."""
MOST_SEEDS = 50
"""The most seeds that are worth advising."""


@dataclass(frozen=True, kw_only=True)
class TargetTimes:
    """The times of all cells to one target."""

    target: float
    rows: Sequence[dict[str, Any]]  # as `times_to` says, in the cells' order
    times: Times  # what they rest on

    @property
    def options(self) -> list[dict[str, Any]]:
        """The rows with an estimate."""
        return [row for row in self.rows if row["seconds"] is not None]


def times_to(posterior: Posterior, targets: Sequence[float], price: float | None = None) -> dict[float, TargetTimes]:
    """Time all cells to each target: measured, and estimated from all cells of a combination together.

    Rows come from `targets.target_row`, with what was measured as `measured_seconds`; seconds, worker_seconds, cost and
    interval (90 %) are estimates, null with a why in a cell whose median over seeds is not known.
    """
    return {target: _told(posterior.cells, target, posterior.times(target), price) for target in targets}


def _told(cells: Sequence[Cell], target: float, times: Times, price: float | None) -> TargetTimes:
    ends = np.quantile(times.draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0) if times.labels else np.empty((2, 0))
    found = {label: place for place, label in enumerate(times.labels)}
    rows = []
    for cell in cells:
        row = target_row(cell, target)
        measured, place = row["seconds"], found.get(cell.label) if row["seconds"] is not None else None
        seconds = None if place is None else math.exp(times.mean[place])
        interval = None
        if place is not None:
            interval = {"kind": "estimate", "low": math.exp(ends[0, place]), "high": math.exp(ends[1, place])}
        worker_seconds = None if seconds is None else seconds * cell.num_gpus
        why = row["why"]
        if why is None and seconds is None:
            missed = row["n_seeds"] - row["reached"]
            why = "its records do not tell its steps"
            if cell.learning_rate <= 0:
                why = f"its learning rate is {cell.learning_rate:g}"
            elif missed:
                why = f"{missed} of {plural(row['n_seeds'], 'seed')} did not reach {target:g}"
        rows.append(
            {
                **row,
                "seconds": seconds,
                "worker_seconds": worker_seconds,
                "cost": cost_of(worker_seconds, price),
                "interval": interval,
                "measured_seconds": measured,
                "why": why,
            }
        )
    return TargetTimes(target=target, rows=rows, times=times)


def pareto(options: Sequence[Option]) -> list[Option]:
    """Return the options that no other beats in both seconds and worker-seconds, fastest first.

    Of equals the first stays.
    """
    front: list[Option] = []
    for option in sorted(options, key=lambda option: (option["seconds"], option["worker_seconds"])):
        if not front or option["worker_seconds"] < front[-1]["worker_seconds"]:
            front.append(option)
    return front


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The options' times compared, draw by draw (docs/formulas.md §6)."""

    options: Sequence[Option]
    draws: Vector  # (k, options), from `Times`
    learnt: Vector  # (k, options), from `Times`
    tolerance: float  # how much longer than the fastest is near enough, as a share
    confidence: float  # from which chance on an option counts as near enough

    @classmethod
    def of(cls, options: Sequence[Option], times: Times, *, tolerance: float, confidence: float) -> "Compared":
        """Compare options that are among the times."""
        known = {label: place for place, label in enumerate(times.labels)}
        places = [known[option["label"]] for option in options]
        every = places == list(range(len(times.labels)))  # of 10,000 cells a copy would take 160 MB
        draws, learnt = (part if every else part[:, places] for part in (times.draws, times.learnt))
        return cls(options=options, draws=draws, learnt=learnt, tolerance=tolerance, confidence=confidence)

    @cached_property
    def fastest(self) -> Option:
        """The option of the least time; of equal ones the cheapest."""
        return min(self.options, key=lambda option: (option["seconds"], option["worker_seconds"]))

    @cached_property
    def recommended(self) -> Option:
        """The cheapest option that is near enough with the confidence: the fastest itself, if no cheaper one is.

        The fastest counts whatever its chance, so that nothing is recommended that is both slower and dearer.
        """
        near = [option for option in self.options if self.probability[option["label"]] >= self.confidence]
        return min((*near, self.fastest), key=lambda option: (option["worker_seconds"], option["seconds"]))

    @cached_property
    def probability(self) -> Mapping[str, float]:
        """Of each option, the share of the draws in which its time is within the tolerance of the least of all."""
        shares = (self.draws <= self._enough[:, np.newaxis]).mean(axis=0).tolist()
        return {option["label"]: share for option, share in zip(self.options, shares, strict=True)}

    @cached_property
    def _enough(self) -> Vector:
        """The longest time (logarithm) that is near enough, by draw (k,)."""
        return np.asarray(self.draws.min(axis=1) + math.log1p(self.tolerance))

    @cached_property
    def _place(self) -> Mapping[str, int]:
        return {option["label"]: place for place, option in enumerate(self.options)}

    def ratio(self, option: Option) -> float:
        """Return its estimated time over the fastest's."""
        return float(option["seconds"] / self.fastest["seconds"])

    def rival(self, option: Option) -> Option | None:
        """Return the option that is the fastest in most of the draws in which this one isn't near enough, if any."""
        beaten = self.draws[self.draws[:, self._place[option["label"]]] > self._enough]
        if not len(beaten):
            return None
        return self.options[int(np.bincount(beaten.argmin(axis=1)).argmax())]

    def learnt_share(self, option: Option, other: Option) -> float:
        """Return the share of the variance of the ratio of two times that the steps to the target cause, 0 to 1."""
        columns = [self._place[each["label"]] for each in (option, other)]
        learnt, whole = (float((part[:, columns] @ [1, -1]).var()) for part in (self.learnt, self.draws))
        return min(learnt / max(whole, NO_RATIO**2), 1.0)

    def ties(self, option: Option, role: str) -> list[str]:
        """Return labels of the options that it can't be told apart from, the nearest first: 90 %, all at once.

        The role decides the figure that is compared.
        """
        power, figure = (1, "worker_seconds") if role == "cheapest" else (0, "seconds")
        others = sorted(
            (other for other in self.options if other["label"] != option["label"]), key=lambda other: other[figure]
        )
        if not others:
            return []
        workers = [other["params"]["num_gpus"] / option["params"]["num_gpus"] for other in others]
        scores = self.draws[:, [self._place[other["label"]] for other in others]]  # a copy, worked on in place
        scores -= self.draws[:, [self._place[option["label"]]]]
        scores += power * np.log(workers)
        mean, deviation = scores.mean(axis=0), np.maximum(scores.std(axis=0), NO_RATIO)
        scores -= mean
        scores /= deviation
        most = np.quantile(np.abs(scores, out=scores).max(axis=1), LEVEL)
        apart = np.abs(mean) > most * deviation
        return [other["label"] for other, differs in zip(others, apart, strict=True) if not differs]


def seeds_to_settle(chance: float, seeds: int, narrowed: float) -> int | None:
    """Return how many more seeds make it more likely than not that a chance leaves the range 0.1 to 0.9.

    Seeds narrow what is known, and move it: the chance is that of a normal variable below 0, whose mean moves by as
    much variance as it loses.

    Args:
        chance: today's, between 0.1 and 0.9.
        seeds: that it rests on.
        narrowed: share of the variance that falls with the seeds.

    Returns:
        None for more than `MOST_SEEDS`.
    """
    normal = NormalDist()
    now, edge = normal.inv_cdf(chance), normal.inv_cdf(SETTLED)
    for more in range(1, MOST_SEEDS + 1):
        lost = narrowed * more / (seeds + more)
        if lost <= 0:
            return None
        ends = [(sign * edge * math.sqrt(1 - lost) - now) / math.sqrt(lost) for sign in (-1, 1)]
        if normal.cdf(ends[0]) + normal.cdf(-ends[1]) >= 1 / 2:
            return more
    return None
