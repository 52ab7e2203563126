"""Intervals over several seeds, and which options the seeds cannot tell apart.

Below five seeds only the range is shown, and no difference is claimed. From five seeds on there is an interval. Two
figures differ if their intervals are disjoint (docs/formulas.md §6).
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from scipy import special  # `scipy.stats` has the same quantiles, and takes half a second to import

from scalestudy.experiments.analysis.laws.estimate import LEVEL
from scalestudy.experiments.analysis.measures.parts import finite, missing, positive

ENOUGH_SEEDS = 5
"""Fewest seeds for an interval. With them a figure is no longer provisional (MLPerf's number of runs)."""
SHOWN_TIES = 20
"""A choice lists at most so many ties, and says how many there are."""
LEAST_SEEDS = 2
"""Fewest seeds for a tie. One seed has no interval, so whether it differs is unknown."""
LEAST_RUNS = 2
"""Fewest runs of a place that have a scatter."""
MEDIAN_ERROR = math.pi / 2
"""Variance of a median of normal values over their mean's. Of two values both are the same."""
Interval = Mapping[str, Any]
"""kind (range, t or order), low and high; a null end is infinite."""


def over_seeds(values: Sequence[float], *, logarithms: bool = True) -> dict[str, Any] | None:
    """Return the interval of the seeds' typical value, or None without seeds. A seed that missed counts as infinity.

    Below five seeds it is their range. From five on it has level 90 %: a t interval, of logarithms if asked for and all
    values are above zero. If a seed missed, it is made of order statistics, which hold the median of any distribution.
    """
    ordered = sorted(values)
    if not ordered:
        return None
    if len(ordered) < ENOUGH_SEEDS:
        return _interval("range", ordered[0], ordered[-1])
    if not all(math.isfinite(value) for value in ordered):
        rank = order_rank(len(ordered))
        return _interval("order", ordered[rank - 1], ordered[-rank])
    if logarithms and ordered[0] > 0:
        low, high = t_interval(np.log(ordered))
        return _interval("t", math.exp(low), math.exp(high))
    return _interval("t", *t_interval(ordered))


def t_interval(values: Sequence[float] | np.ndarray, level: float = LEVEL) -> tuple[float, float]:
    """Return the ends of the t interval of a mean, from two values or more."""
    half = _quantile(level, len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    mean = float(np.mean(values))
    return mean - half, mean + half


@cache
def _quantile(level: float, freedom: int) -> float:
    return float(special.stdtrit(freedom, (1 + level) / 2))


@cache
def order_rank(count: int, level: float = LEVEL) -> int:
    """Return the r for which the r-th smallest and r-th largest of `count` values hold the median at this level.

    At least 1. They miss it with probability 2·P(X < r), X binomial with share 1/2: 2/2⁵ = 1/16 at count 5, r = 1.
    """
    ranks = [rank for rank in range(1, count // 2 + 1) if 2 * special.bdtr(rank - 1, count, 0.5) <= 1 - level]
    return max(ranks, default=1)


@dataclass(frozen=True, kw_only=True)
class Scatter:
    """How far runs of a place scatter, pooled over all places."""

    deviation: float  # standard deviation of logarithms
    freedom: int  # of its variance

    @classmethod
    def pooled(cls, places: Iterable[Mapping[str, Any]]) -> "Scatter | None":
        """Pool the places; None if no place has two runs. places: from `scatter`."""
        several = [(place["value"], place["n"] - 1) for place in places if place["n"] >= LEAST_RUNS]
        freedom = sum(each for _, each in several)
        if not freedom:
            return None
        squares = math.fsum(each * value**2 for value, each in several)
        return cls(deviation=math.sqrt(squares / freedom), freedom=freedom)

    def half(self, *runs: int, level: float = LEVEL) -> float:
        """Return half the t interval of the logarithm of one place's median, or of the ratio of two.

        runs: of each place.
        """
        errors = math.fsum((MEDIAN_ERROR if count > LEAST_RUNS else 1) / count for count in runs)
        return _quantile(level, self.freedom) * self.deviation * math.sqrt(errors)

    def least(self, level: float = LEVEL) -> float:
        """Return the lower end of the deviation's interval."""
        chi_square = 2 * float(special.gammaincinv(self.freedom / 2, (1 + level) / 2))  # its quantile
        return self.deviation * math.sqrt(self.freedom / chi_square)


def scatter(values: Iterable[float | None]) -> dict[str, Any]:
    """Return the standard deviation of the logarithms of what runs of a place measured: value, n.

    Null below two runs.
    """
    logs = [math.log(known) for value in values if (known := positive(value)) is not None]
    if len(logs) < LEAST_RUNS:
        return {**missing("fewer than two runs measured it"), "n": len(logs)}
    return {"value": statistics.stdev(logs), "n": len(logs)}


def disjoint(one: Interval, other: Interval) -> bool:
    """Whether two intervals have no value in common."""
    return _end(one["high"]) < _end(other["low"]) or _end(other["high"]) < _end(one["low"])


def holding(interval: Interval | None, value: float | None) -> dict[str, Any] | None:
    """Lengthen the interval to hold a typical value of another kind that lies outside."""
    if interval is None or value is None:
        return None if interval is None else dict(interval)
    return _interval(interval["kind"], min(_end(interval["low"]), value), max(_end(interval["high"]), value))


def _interval(kind: str, low: float, high: float) -> dict[str, Any]:
    return {"kind": kind, "low": finite(low), "high": finite(high)}


def _end(end: float | None) -> float:
    return math.inf if end is None else float(end)


@dataclass(frozen=True, kw_only=True)
class Contender:
    """An option in a comparison."""

    label: str
    figure: float  # what is compared; less is better
    interval: Interval | None  # over seeds
    n_seeds: int

    def overlaps(self, other: "Contender") -> bool:
        """Whether the two intervals have a value in common."""
        if min(self.n_seeds, other.n_seeds) < LEAST_SEEDS or self.interval is None or other.interval is None:
            return False
        return not disjoint(self.interval, other.interval)


def indistinguishable(chosen: Contender, others: Sequence[Contender]) -> list[str]:
    """Return the labels of the others whose intervals overlap the chosen one's, sorted by their figures."""
    alike = [other for other in others if other.label != chosen.label and chosen.overlaps(other)]
    return [other.label for other in sorted(alike, key=lambda other: other.figure)]


def tie_sentence(labels: Sequence[str]) -> str | None:
    """Return the tie as a sentence, or None if there is none. labels: all that `indistinguishable` found."""
    if not labels:
        return None
    others = len(labels) - 1
    more = "" if not others else " and 1 other" if others == 1 else f" and {others} others"
    return f"Tied with {labels[0]}{more}: the difference is within noise."
