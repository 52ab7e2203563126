"""The ratio of two means, such as the gradients' noise scale.

The means are taken before they are divided: the mean of single ratios would be biased, more so with noisier
denominators.
"""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from scalestudy.experiments.analysis.laws.estimate import LEVEL, Estimate

LEAST_PAIRS = 2
NEXT_TO_ZERO = 1e-15
"""A mean denominator up to this share of the mean numerator counts as zero."""


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
