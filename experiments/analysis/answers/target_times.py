"""The estimated and measured times of all cells to a target, and their ratios with simultaneous limits."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from scalestudy.experiments.analysis.answers.posterior import Posterior, Times
from scalestudy.experiments.analysis.laws.least_squares import LEVEL
from scalestudy.experiments.analysis.laws.shrinkage import Vector
from scalestudy.experiments.analysis.measures.cells import combination_of
from scalestudy.experiments.analysis.measures.parts import Figure
from scalestudy.experiments.analysis.measures.targets import cost_of, target_row
from scalestudy.experiments.analysis.measures.units import plural

Option = Mapping[str, Any]
"""A row of `TargetTimes` whose seconds are known."""
NO_RATIO = 1e-12
"""Standard deviation of a ratio's logarithm below which the ratio counts as exact."""


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
    return {target: _told(posterior, target, price) for target in targets}


def _told(posterior: Posterior, target: float, price: float | None) -> TargetTimes:
    times = posterior.times(target)
    ends = np.quantile(times.draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0) if times.labels else np.empty((2, 0))
    found = {label: place for place, label in enumerate(times.labels)}
    rows = []
    for cell in posterior.cells:
        row = target_row(cell, target, posterior.confirmed(combination_of(cell.params), target))
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
class Ratios:
    """The options' times compared."""

    options: Sequence[Option]
    draws: Vector  # (k, c), from `Times`
    learnt: Vector  # (k, c), from `Times`
    place: Mapping[str, int]  # of each option in c, by its label
    tolerance: float

    @classmethod
    def of(cls, options: Sequence[Option], times: Times, tolerance: float) -> "Ratios":
        """Compare options that are among the times. tolerance: how much longer than the fastest is near enough."""
        known = {label: place for place, label in enumerate(times.labels)}
        return cls(
            options=options,
            draws=times.draws,
            learnt=times.learnt,
            place={option["label"]: known[option["label"]] for option in options},
            tolerance=tolerance,
        )

    @cached_property
    def fastest(self) -> Option:
        """The option of the least time; of equal ones the cheapest."""
        return min(self.options, key=lambda option: (option["seconds"], option["worker_seconds"]))

    def limits(self, others: Sequence[Option], base: Option, *, power: int = 0, sides: Literal[1, 2] = 1) -> Vector:
        """Return lower and upper limits of the logarithms of ratios to the base option (2, others): 90 %, all at once.

        power: of num_gpus in what is compared, 0 for times and 1 for costs. sides: 1 for upper limits alone.
        """
        columns = [self.place[option["label"]] for option in others]
        workers = [option["params"]["num_gpus"] / base["params"]["num_gpus"] for option in others]
        ratios = self.draws[:, columns]  # of 10,000 cells 160 MB, so it is worked on in place
        ratios -= self.draws[:, [self.place[base["label"]]]]
        ratios += power * np.log(workers)
        mean, deviation = ratios.mean(axis=0), np.maximum(ratios.std(axis=0), NO_RATIO)
        ratios -= mean
        ratios /= deviation
        scores = np.abs(ratios, out=ratios) if sides == 2 else ratios
        most = np.quantile(scores.max(axis=1), LEVEL) if others else 0.0
        return np.stack([mean - most * deviation, mean + most * deviation])

    @cached_property
    def upper(self) -> Mapping[str, float]:
        """Upper limits of times over the fastest's, of the options that cost less and seem near enough, all at once."""
        base = self.fastest
        near = [
            option
            for option in self.options
            if option["worker_seconds"] < base["worker_seconds"]
            and option["seconds"] <= (1 + self.tolerance) * base["seconds"]
        ]
        limits = np.exp(self.limits(near, base)[1])
        return {option["label"]: float(limit) for option, limit in zip(near, limits, strict=True)}

    @cached_property
    def recommended(self) -> Option:
        """The cheapest option whose time is within the tolerance of the fastest's: the fastest itself, if no other."""
        near = [option for option in self.options if self.upper.get(option["label"], math.inf) <= 1 + self.tolerance]
        return min(near, key=lambda option: option["worker_seconds"], default=self.fastest)

    def ratio(self, option: Option) -> Figure:
        """Return its time over the fastest's."""
        value = option["seconds"] / self.fastest["seconds"]
        if option["label"] == self.fastest["label"]:
            return {"value": value, "high": value}
        high = self.upper.get(option["label"])
        return {"value": value, "high": math.exp(self.limits([option], self.fastest)[1][0]) if high is None else high}

    def learnt_share(self, option: Option) -> float:
        """Return the share of the variance of its ratio to the fastest that the steps to the target cause, 0 to 1."""
        columns = [self.place[option["label"]], self.place[self.fastest["label"]]]
        learnt, whole = (float((part[:, columns] @ [1, -1]).var()) for part in (self.learnt, self.draws))
        return min(learnt / max(whole, NO_RATIO**2), 1.0)

    def ties(self, option: Option, role: str) -> list[str]:
        """Return labels of the options that it can't be told apart from, the nearest first.

        The role decides the figure that is compared.
        """
        figure = "worker_seconds" if role == "cheapest" else "seconds"
        others = sorted(
            (other for other in self.options if other["label"] != option["label"]), key=lambda other: other[figure]
        )
        low, high = self.limits(others, option, power=int(role == "cheapest"), sides=2)
        return [other["label"] for other, a, b in zip(others, low, high, strict=True) if a <= 0 <= b]
