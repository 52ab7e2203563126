"""Stage 8, analysis: the ratio of two means, with its interval (docs/formulas.md §3).

Numerator and denominator are averaged apart and then divided: the mean of single ratios is biased, the more so the
noisier the denominators are.
"""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from experiments.analysis.laws.least_squares import LEVEL, Estimate

LEAST_PAIRS = 2
NEXT_TO_ZERO = 1e-15
"""Share of the mean numerator up to which a mean denominator is as good as zero."""


def ratio_of_means(numerators: ArrayLike, denominators: ArrayLike, *, level: float = LEVEL) -> Estimate | None:
    """mean(a)/mean(b) and Fieller's interval (Fieller 1954): the ratios R for which mean(a − R·b) is not told from 0.

    With t the quantile for n − 1 degrees of freedom and s the covariances of a mean, these R solve
    (ā − R·b̄)² ≤ t² (s_aa − 2R·s_ab + R²·s_bb). They have two ends only if b̄ itself is told from 0.

    Args:
        numerators, denominators: (n,), independent pairs.
        level: nominal coverage of the interval.

    Returns:
        None where a mean is not above zero. The ends are None, and the estimate not identified, for one pair and where
        the denominators leave it open whether their mean is zero; a lower end below zero is 0.
    """
    above, below = np.asarray(numerators, dtype=float), np.asarray(denominators, dtype=float)
    if not len(above) or not (above.mean() > 0 and below.mean() > NEXT_TO_ZERO * above.mean()):
        return None
    value = float(above.mean() / below.mean())
    if len(above) < LEAST_PAIRS:
        return Estimate(value=value, low=None, high=None, identified=False, why="one measurement has no scatter")
    covariance = np.cov(above / above.mean(), below / below.mean()) / len(above)
    squared = float(stats.t.ppf((1 + level) / 2, len(above) - 1)) ** 2
    # of R/value, by means of 1: (1 − t²s_bb) R² − 2 (1 − t²s_ab) R + (1 − t²s_aa) ≤ 0
    second, first, last = 1 - squared * covariance[[1, 0, 0], [1, 1, 0]]
    if second <= 0:
        why = "the measurements leave it open whether the denominator is zero"
        return Estimate(value=value, low=None, high=None, identified=False, why=why)
    root = math.sqrt(max(first**2 - second * last, 0.0))
    low, high = (value * float((first + sign * root) / second) for sign in (-1, 1))
    return Estimate(value=value, low=max(low, 0.0), high=high)
