"""When trainings met a target, as far as their evaluations tell: between which two of them, and how sure that is."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.analysis.measures.usable import crossing, time_to_target

Curve = Sequence[tuple[float, float]]
"""Steps, or seconds, so far and value of the metric, after each evaluation."""
CONFIRMED, FOLLOWED = 4, 5
"""First meets that the next evaluation confirmed, and all that it followed, before any is seen."""
LEAST_PASSING = 3
"""Fewest trainings that passed a value for what they still took to say when one that was stopped there would arrive."""


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """The steps, or seconds, to a target, of one training: between low and high by the chance, else above high."""

    low: float  # of the last evaluation that missed it; 0 if there was none
    high: float  # of the evaluation that met it; infinity if none did
    chance: float = 1.0
    value: float | None = None  # an estimate; between them, where both are known
    extra: float = 0.0  # variance of the estimate's logarithm

    @property
    def sure(self) -> bool:
        """Whether two evaluations met the target."""
        return self.chance == 1 and math.isfinite(self.high)


NEVER = Arrival(low=math.inf, high=math.inf)
"""Of a training that diverged."""


@dataclass(frozen=True, kw_only=True)
class Passing:
    """How far the trainings that arrived had come, and when: j of them, e evaluations at most."""

    steps: NDArray[np.float64]  # (j, e), made so far
    orders: NDArray[np.float64]  # (j, e), of the values (`StudyMetric.order`); infinity past a training's end
    arrived: NDArray[np.float64]  # (j,), steps to the target
    metric: StudyMetric

    @classmethod
    def of(cls, curves: Iterable[Curve], target: float, metric: StudyMetric) -> "Passing":
        """Keep the curves that arrived."""
        told = [(curve, time_to_target(curve, target, metric)) for curve in curves]
        known = [(curve, arrived) for curve, arrived in told if math.isfinite(arrived)]
        size = max((len(curve) for curve, _ in known), default=0)
        steps, orders = np.full((2, len(known), size), math.inf)
        for place, (curve, _) in enumerate(known):
            steps[place, : len(curve)] = [made for made, _ in curve]
            orders[place, : len(curve)] = [metric.order(value) for _, value in curve]
        return cls(steps=steps, orders=orders, arrived=np.array([arrived for _, arrived in known]), metric=metric)

    @property
    def is_blind(self) -> bool:
        """Whether none of them was evaluated on its way to the target."""
        return not (self.steps < self.arrived[:, None]).any()

    def factors(self, value: float) -> list[float]:
        """Return the logarithms of steps to the target over steps to this value, of those that came past it before."""
        first = np.where(self.orders <= self.metric.order(value), self.steps, math.inf).min(axis=1, initial=math.inf)
        before = first < self.arrived
        return np.log(self.arrived[before] / first[before]).tolist()


def arrival_of(curve: Curve, target: float, metric: StudyMetric, confirmed: float) -> Arrival:
    """Return when a training arrived.

    Only the last evaluation may meet the target: then no other confirms it. confirmed: the chance that one would.
    """
    place = metric.arrival([value for _, value in curve], target)
    if place is not None:
        low = curve[place - 1][0] if place else 0.0
        value = time_to_target(curve, target, metric) if place else None
        return Arrival(low=low, high=curve[place][0], value=value)
    last = curve[-1][0] if curve else 0.0
    if curve and not metric.better(target, curve[-1][1]):
        several = len(curve) > 1
        value = crossing(curve, len(curve) - 1, target) if several else None
        return Arrival(low=curve[-2][0] if several else 0.0, high=last, chance=confirmed, value=value)
    return Arrival(low=last, high=math.inf)


def confirmed_share(curves: Iterable[Curve], target: float, metric: StudyMetric) -> float:
    """Return the share of first evaluations that met a target and that the next confirmed, of those with a next."""
    followed, confirmed = FOLLOWED, CONFIRMED
    for curve in curves:
        met = (place for place, (_, value) in enumerate(curve) if not metric.better(target, value))
        after = next(met, len(curve)) + 1
        if after < len(curve):
            followed += 1
            confirmed += next(met, None) == after
    return confirmed / followed


def arrival_of_stopped(curve: Curve, passing: Passing) -> Arrival:
    """Return when a training would have arrived that a scheduler stopped for being behind.

    Those that came past its last value say by what factor their steps grew from there to the target. Where too few did,
    it arrives some time after its end.
    """
    if not curve:
        return Arrival(low=0.0, high=math.inf)
    made, value = curve[-1]
    arrival, factors = Arrival(low=made, high=math.inf), passing.factors(value)
    if len(factors) < LEAST_PASSING:
        return arrival
    later = math.exp(statistics.median(factors))
    return replace(arrival, value=made * later, extra=statistics.variance(factors))
