"""When trainings met a target, as far as their evaluations tell: between which two of them, and how sure that is."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.analysis.measures.targets import meets_last
from scalestudy.experiments.analysis.measures.trainings import Training
from scalestudy.experiments.analysis.measures.usable import time_to_target

Curve = Sequence[tuple[float, float]]
"""Steps so far and value of the metric, after each evaluation."""
CONFIRMED, FOLLOWED = 4, 5
"""First meets that the next evaluation confirmed, and all that it followed, before any is seen."""
LEAST_PASSING = 3
"""Fewest trainings that passed a value for what they still took to say when one that was stopped there would arrive."""


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """The steps to a target, of one training: between low and high by the chance, else above high."""

    low: float  # of the last evaluation that missed it; 0 if there was none
    high: float  # of the evaluation that met it; infinity if none did
    chance: float = 1.0
    value: float | None = None  # an estimate between them
    extra: float = 0.0  # variance of the estimate's logarithm


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
    if curve and meets_last([value for _, value in curve], target, metric):
        before = curve[-2][0] if len(curve) > 1 else 0.0
        return Arrival(low=before, high=last, chance=confirmed)
    return Arrival(low=last, high=math.inf)


def confirmed_share(curves: Iterable[Curve], target: float, metric: StudyMetric) -> float:
    """Return the share of first evaluations that met a target and that the next confirmed, of those with a next."""
    followed, confirmed = FOLLOWED, CONFIRMED
    for curve in curves:
        met = [not metric.better(target, value) for _, value in curve]
        first = met.index(True) if True in met else len(met)
        if first + 1 < len(met):
            followed += 1
            confirmed += met[first + 1]
    return confirmed / followed


def arrival_of_stopped(training: Training, others: Iterable[Training], target: float, metric: StudyMetric) -> Arrival:
    """Return when a training would have arrived that a scheduler stopped for being behind.

    The others that came past its last value say by what factor their steps grew from there to the target. Where too
    few did, it arrives some time after its end.
    """
    if not training.curve:
        return Arrival(low=0.0, high=math.inf)
    made, value = training.curve[-1]
    factors = []
    for other in others:
        arrived = time_to_target(other.curve, target, metric)
        passed = next((steps for steps, reached in other.curve if not metric.better(value, reached)), math.inf)
        if math.isfinite(arrived) and passed < arrived:
            factors.append(math.log(arrived / passed))
    arrival = Arrival(low=made, high=math.inf)
    if len(factors) < LEAST_PASSING:
        return arrival
    later = math.exp(statistics.median(factors))
    return replace(arrival, value=made * later, extra=statistics.variance(factors))
