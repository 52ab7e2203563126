"""How measurements that are far off are kept from moving a law or an estimate.

A repeat that is very far from the others of its place is left out; one that is far is clipped, and counts as if it were
nearer (Huber 1981); of two, the slower one counts as the other, for what disturbs a run makes it slow. Where a place
has too few repeats to show it, what is far from the law is clipped. A place that is off at all its repeats is not
touched, so that a law that is not true shows.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

ENOUGH_REPEATS = 3
"""With this many repeats or more, a place shows which of them is an outlier."""
OUTLIER = 6.0
"""Standard deviations from the median of its place beyond which a repeat is left out."""
CLIPPED = 2.5
"""Standard deviations from the law beyond which a measurement is clipped: in Gaussian noise one of eighty."""
FAR = 3.0
"""Standard deviations from the median of its place beyond which a repeat is clipped."""
LEAST_SCATTER = 0.01
"""Standard deviation of logarithms below which no repeat is far."""
PAIR = 2
ENOUGH_KNOWN = 10
"""Fewest measurements whose scatter is known well enough to judge one of them by it."""
NORMAL_MEDIAN = 0.6745
"""Median of the absolute value of a standard normal."""


def without_outliers(repeats: Sequence[Vector]) -> list[Vector]:
    """Return the repeats of each place without those that are far from its others, if a place has enough of them.

    Of as many slow ones as fast ones the fast ones are kept.
    """
    enough = [each if len(each) >= ENOUGH_REPEATS else each[:0] for each in repeats]
    scatter = _scatter(enough)
    if scatter is None:
        return list(repeats)
    return [
        each[np.abs(each - np.sort(each)[(len(each) - 1) // 2]) <= OUTLIER * scatter]
        if len(each) >= ENOUGH_REPEATS
        else each
        for each in repeats
    ]


def clipped_repeats(repeats: Sequence[Vector]) -> list[Vector]:
    """Return the logarithms of each place's repeats, clipped where they are far from its others.

    Of two repeats the fast one is kept.
    """
    scatter = _scatter(repeats)
    if scatter is None:
        return list(repeats)
    most = FAR * max(scatter, LEAST_SCATTER)
    found = []
    for each in repeats:
        if len(each) >= ENOUGH_REPEATS:
            each = np.clip(each, np.median(each) - most, np.median(each) + most)
        elif len(each) == PAIR and np.ptp(each) > most * math.sqrt(PAIR):
            each = np.full(PAIR, each.min())
        found.append(each)
    return found


def _scatter(repeats: Sequence[Vector]) -> float | None:
    """Return the robust standard deviation of a repeat around its place, or None if too few repeats show it."""
    off = [np.sort(np.abs(each - np.median(each))) for each in repeats if len(each)]
    off = [each * math.sqrt(PAIR) if len(each) == PAIR else each for each in off]
    known = np.concatenate([np.empty(0), *(each[len(each) % 2 :] for each in off)])  # not the median itself
    return float(np.median(known)) / NORMAL_MEDIAN if len(known) >= ENOUGH_KNOWN else None


def clipped(residuals: Vector, parameters: int) -> Vector:
    """Clip the residuals of a law with so many parameters; too few stay as they are."""
    spare = len(residuals) - parameters
    if spare < ENOUGH_KNOWN:
        return residuals
    most = CLIPPED * float(np.median(np.abs(residuals))) / NORMAL_MEDIAN * math.sqrt(len(residuals) / spare)
    return np.clip(residuals, -most, most)
