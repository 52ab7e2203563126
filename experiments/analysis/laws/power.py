"""Stage 8, analysis: a power law y = c·x^p through values that are known to within a range (docs/formulas.md §2).

For the best learning rate over batch sizes: p = 1 is the linear rule, 1/2 the square-root rule.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from experiments.analysis.laws.least_squares import LEVEL, Estimate, NoLawError

LEAST_POINTS = 3
WIDEST_EXPONENT = 1.0
"""Length of the exponent's interval above which it is not identified: it can't tell a constant from a linear law."""


@dataclass(frozen=True, kw_only=True)
class PowerLaw:
    """y = factor·x^exponent. by_resolution: whether the ranges of the values, more than their scatter about the law,
    set the length of the exponent's interval."""

    exponent: Estimate
    factor: float
    by_resolution: bool

    def value(self, x: float) -> float:
        """y by the law."""
        return self.factor * x**self.exponent.value


def fit_power(x: ArrayLike, y: ArrayLike, widths: ArrayLike, *, level: float = LEVEL) -> PowerLaw:
    """The straight line through log y over log x, by least squares.

    Values read off a grid lie on a straight line by chance, and then scatter says nothing of how well the slope is
    known. So the half length of the interval is the larger of two: the t interval of the scatter, with n − 2 degrees of
    freedom; and what follows when each log y lies anywhere in its range, uniformly (variance width²/12), which is known
    and takes the normal quantile. With three values the slope is but the difference of the outer two, whose places on a
    grid are no matter of chance: there the second is what their ranges leave at most.

    Args:
        x: (n,), above zero, not all the same.
        y: (n,), above zero: the middles of the ranges.
        widths: (n,), upper over lower end of each range as a difference of logarithms; 0 for values known exactly.
        level: nominal coverage of the interval.

    Raises:
        NoLawError: fewer than three values, or x all the same.
        ValueError: a value that is not above zero.
    """
    across, along = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if not ((across > 0).all() and (along > 0).all()):
        raise ValueError("x, y: every value must be above 0; leave the others out")
    if len(across) < LEAST_POINTS:
        raise NoLawError(f"{len(across)} points make no power law; measure {LEAST_POINTS} or more")
    across, along = np.log(across), np.log(along)
    centred = across - across.mean()
    spread = float(centred @ centred)
    if spread <= 0:
        raise NoLawError("all x are the same; measure different ones")
    slope = float(centred @ along) / spread
    residuals = along - along.mean() - slope * centred
    spare = len(across) - 2
    by_scatter = stats.t.ppf((1 + level) / 2, spare) * math.sqrt(float(residuals @ residuals) / spare / spread)
    shifts = np.abs(centred) / spread * np.asarray(widths, dtype=float)  # of the slope, over the range of each value
    by_range = shifts.sum() / 2
    if len(across) > LEAST_POINTS:
        by_range = stats.norm.ppf((1 + level) / 2) * math.sqrt(float(shifts @ shifts) / 12)
    return PowerLaw(
        exponent=_estimate(slope, float(max(by_scatter, by_range))),
        factor=math.exp(float(along.mean()) - slope * float(across.mean())),
        by_resolution=bool(by_range >= by_scatter),
    )


def _estimate(slope: float, half: float) -> Estimate:
    low, high = slope - half, slope + half
    if 2 * half <= WIDEST_EXPONENT * (1 + 1e-9):
        return Estimate(value=slope, low=low, high=high)
    why = f"the interval of the exponent reaches from {low:.2f} to {high:.2f}"
    return Estimate(value=slope, low=low, high=high, identified=False, why=why)
