"""What several seeds say; ties.

docs/formulas.md §6: below five seeds the range, and no difference is claimed; from five on an interval; differences
are called so only where intervals part.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from scipy import stats

from scalestudy.experiments.analysis.laws.least_squares import LEVEL
from scalestudy.experiments.analysis.measures.parts import finite

ENOUGH_SEEDS = 5
"""From so many seeds on a figure has an interval and is more than provisional (MLPerf's number of runs)."""

Interval = Mapping[str, Any]
"""kind (range, t or order), low and high; high is None where it is infinite."""


def over_seeds(values: Sequence[float], *, logarithms: bool = True) -> dict[str, Any] | None:
    """The interval of the typical value of seeds, infinity for one that missed; None of nothing.

    Below five seeds their range. From five on, 90 %: a t interval, of logarithms where asked for and all are above
    zero; where a seed missed, order statistics, which hold the median whatever the distribution.
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
    """Ends of the t interval of a mean, of two values or more."""
    half = _quantile(level, len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    mean = float(np.mean(values))
    return mean - half, mean + half


@cache
def _quantile(level: float, freedom: int) -> float:
    return float(stats.t.ppf((1 + level) / 2, freedom))


@cache
def order_rank(count: int, level: float = LEVEL) -> int:
    """The r for which the r-th smallest and r-th largest of `count` values hold the median at least at this level.

    They miss it with probability 2·P(X < r), X binomial with share 1/2: 2/2⁵ = 1/16 at count 5, r = 1. At least 1.
    """
    ranks = [rank for rank in range(1, count // 2 + 1) if 2 * stats.binom.cdf(rank - 1, count, 0.5) <= 1 - level]
    return max(ranks, default=1)


def apart(one: Interval, other: Interval) -> bool:
    """Whether two intervals have no value in common."""
    return _high(one) < _low(other) or _high(other) < _low(one)


def scaled(interval: Interval | None, factor: float) -> dict[str, Any] | None:
    """The interval of a figure times a positive factor."""
    if interval is None:
        return None
    ends = {end: None if interval[end] is None else interval[end] * factor for end in ("low", "high")}
    return {**interval, **ends}


def holding(interval: Interval | None, value: float | None) -> dict[str, Any] | None:
    """The interval, made longer where a typical value of another kind than its own lies outside."""
    if interval is None or value is None:
        return None if interval is None else dict(interval)
    return _interval(interval["kind"], min(_low(interval), value), max(_high(interval), value))


def _interval(kind: str, low: float, high: float) -> dict[str, Any]:
    return {"kind": kind, "low": finite(low), "high": finite(high)}


def _low(interval: Interval) -> float:
    return math.inf if interval["low"] is None else float(interval["low"])


def _high(interval: Interval) -> float:
    return math.inf if interval["high"] is None else float(interval["high"])


SHOWN_TIES = 20
"""A choice lists no more of them; it says how many there are."""
LEAST_SEEDS = 2
"""One seed has no interval: whether it differs is not known, which is not the same as a tie."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """An option by what is compared: figures, the less the better, and an interval over seeds of each."""

    label: str
    figures: tuple[float, ...]
    intervals: tuple[Interval | None, ...]
    n_seeds: int


def tied(chosen: Contender, others: Sequence[Contender]) -> list[str]:
    """Labels of the others whose intervals overlap the chosen one's in every figure, the best first figure first."""
    alike = [other for other in others if other.label != chosen.label and not _told_apart(chosen, other)]
    return [other.label for other in sorted(alike, key=lambda other: other.figures)]


def _told_apart(one: Contender, other: Contender) -> bool:
    if min(one.n_seeds, other.n_seeds) < LEAST_SEEDS:
        return True
    pairs = list(zip(one.intervals, other.intervals, strict=True))
    return any(first is None or second is None or apart(first, second) for first, second in pairs)


def tie_sentence(labels: Sequence[str]) -> str | None:
    """The tie in words, for people; None where there is none. labels: of `tied`, all of them."""
    if not labels:
        return None
    others = len(labels) - 1
    more = "" if not others else " and 1 other" if others == 1 else f" and {others} others"
    return f"Not told apart from {labels[0]}{more}: their intervals overlap."
