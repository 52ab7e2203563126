"""The power law y = factor·x^p, and the ratio of two means.

The power law describes the best learning rate over batch sizes: p = 1 is the linear rule, 1/2 the square-root rule. The
ratio gives the gradients' noise scale. Its means are taken before they are divided: the mean of single ratios would be
biased, more so with noisier denominators.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from scalestudy.experiments.analysis.laws.least_squares import LEVEL, Estimate, NoLawError

LEAST_POINTS = 3
WIDEST_EXPONENT = 1.0
"""Length of the exponent's interval above which it is not identified: a constant and a linear law may both fit."""
LEAST_PAIRS = 2
NEXT_TO_ZERO = 1e-15
"""A mean denominator up to this share of the mean numerator counts as zero."""


@dataclass(frozen=True, kw_only=True)
class PowerLaw:
    """y = factor·x^exponent."""

    exponent: Estimate
    factor: float
    by_resolution: bool  # whether the exponent's interval is set by the ranges of the values, not by their scatter

    def value(self, x: float) -> float:
        """Return y by the law."""
        return self.factor * x**self.exponent.value


def fit_power(x: ArrayLike, y: ArrayLike, widths: ArrayLike) -> PowerLaw:
    """Fit the straight line through log y over log x, by least squares.

    Values read off a grid may lie on a straight line by chance, and then scatter does not say how well the slope is
    known. So half the interval is the larger of two lengths. One is the t interval of the scatter, with n − 2 degrees
    of freedom. The other assumes that each log y lies anywhere in its range, uniformly, with the known variance
    width²/12 and the normal quantile. With three values the slope is the difference of the outer two, whose places on a
    grid are not random: the second length is then the most that their ranges allow.

    Args:
        x: (n,), above zero, not all the same.
        y: (n,), above zero: the middles of the ranges.
        widths: (n,), upper over lower end of each range as a difference of logarithms; 0 for values known exactly.

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
    by_scatter = special.stdtrit(spare, (1 + LEVEL) / 2) * math.sqrt(float(residuals @ residuals) / spare / spread)
    shifts = np.abs(centred) / spread * np.asarray(widths, dtype=float)  # of the slope, over the range of each value
    by_range = shifts.sum() / 2
    if len(across) > LEAST_POINTS:
        by_range = special.ndtri((1 + LEVEL) / 2) * math.sqrt(float(shifts @ shifts) / 12)
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


def ratio_of_means(numerators: ArrayLike, denominators: ArrayLike) -> Estimate | None:
    """Return mean(a)/mean(b) with Fieller's interval (Fieller 1954): ratios R for which mean(a − R·b) may be 0.

    With t the quantile for n − 1 degrees of freedom and s the covariances of a mean, these R solve (ā − R·b̄)² ≤ t²
    (s_aa − 2R·s_ab + R²·s_bb). They have two ends only if b̄ itself differs from 0.

    Args:
        numerators, denominators: (n,), independent pairs.

    Returns:
        None if a mean is not above zero. For one pair, and if the mean denominator may be zero, the ends are None and
        the estimate is not identified. A lower end below zero is 0.
    """
    above, below = np.asarray(numerators, dtype=float), np.asarray(denominators, dtype=float)
    if not len(above) or not (above.mean() > 0 and below.mean() > NEXT_TO_ZERO * above.mean()):
        return None
    value = float(above.mean() / below.mean())
    if len(above) < LEAST_PAIRS:
        return Estimate(value=value, low=None, high=None, identified=False, why="one measurement has no scatter")
    covariance = np.cov(above / above.mean(), below / below.mean()) / len(above)
    squared = float(special.stdtrit(len(above) - 1, (1 + LEVEL) / 2)) ** 2
    # of R/value, by means of 1: (1 − t²s_bb) R² − 2 (1 − t²s_ab) R + (1 − t²s_aa) ≤ 0
    second, first, last = 1 - squared * covariance[[1, 0, 0], [1, 1, 0]]
    if second <= 0:
        why = "the measurements leave it open whether the denominator is zero"
        return Estimate(value=value, low=None, high=None, identified=False, why=why)
    root = math.sqrt(max(first**2 - second * last, 0.0))
    low, high = (value * float((first + sign * root) / second) for sign in (-1, 1))
    return Estimate(value=value, low=max(low, 0.0), high=high)
