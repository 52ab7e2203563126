"""Steps to a target over batch sizes and rates, and seconds of a step over workers and batch sizes, as linear laws.

Both are laws of logarithms, linear near their best fit (`shrinkage.LinearLaw`). They say where a cell lies if nothing
but its neighbours was measured; constants are not read from them.

Steps: log S = log S_min + log(1 + B_crit/B) + c · (log2 η - log2 η* - p · log2 B)². The first two terms are the law of
batch sizes (docs/formulas.md §3), p is the rule of the best rate (§2), c its curvature.

Seconds of a step: a fixed part, a part for each example of a worker, and for several workers a latency, a part for each
doubling and one for each worker (§4).
"""

import math

import numpy as np
from scipy import optimize

from scalestudy.experiments.analysis.laws.shrinkage import LinearLaw, Places, Vector

LIKELY_RULE, LIKELY_CURVATURE = 0.4, 0.17
"""p, and c in squared octaves, before anything is measured: between a constant and a linear rate; four times the best
rate, or a quarter of it, takes twice as many steps."""
BEFOREHAND = np.array([5.0, 3.0, 0.6, 2.5, 0.4, 0.3])
"""Standard deviations of log S_min, log2 B_crit, log c, log2 η*, p and the effect of a doubling of num_gpus, before
anything is measured, about the middle of what was tried."""
SCATTER = 0.1
"""Standard deviation of log S that finds where the law is made linear."""
LEAST_PART = 0.03
"""Least share of a step that a part counts for, so that a part fitted to almost nothing stays uncertain."""


def law_of_steps(places: Vector, values: Vector, cells: Places) -> LinearLaw:
    """Return the law near its best fit.

    Args:
        places: (c, 3), batch size, rate and num_gpus of each cell; num_gpus is 1 for all where it changes nothing.
        values: (n,), log S as measured.
        cells: (n,), the cell of each.
    """
    batch, rate, workers = (column - column.mean() for column in np.log2(places).T)
    usual = np.array([float(values.mean()), 0.0, math.log(LIKELY_CURVATURE), 0.0, LIKELY_RULE, 0.0])

    def law(theta: Vector) -> Vector:
        level, critical, curvature, best, rule, doubling = theta
        bowl = np.exp(curvature) * (rate - best - rule * batch) ** 2
        return np.asarray(level + np.logaddexp(0.0, math.log(2) * (critical - batch)) + bowl + doubling * workers)

    def residuals(theta: Vector) -> Vector:
        return np.concatenate([(values - law(theta)[cells]) / SCATTER, (theta - usual) / BEFOREHAND])

    starts = [np.array([usual[0], critical, *usual[2:]]) for critical in (batch.min(), batch.max())]
    best = min((optimize.least_squares(residuals, start) for start in starts), key=lambda fit: float(fit.cost))
    return LinearLaw.near(law, best.x, usual, BEFOREHAND)


def law_of_step_seconds(places: Vector, values: Vector, cells: Places) -> LinearLaw:
    """Return the law near its best fit.

    Args:
        places: (c, 2), num_gpus and batch size of each place.
        values: (n,), logarithms of the seconds of a step as measured; every place has one.
        cells: (n,), the place of each.
    """
    workers, batch = places.T
    several = (workers > 1).astype(float)
    terms = np.stack([np.ones(len(places)), batch / workers, several, np.log2(workers), workers - 1], axis=1)
    counts = np.bincount(cells, minlength=len(places))
    weights = np.sqrt(counts)
    middle = float(values.mean())
    means = np.exp(np.bincount(cells, values - middle, minlength=len(places)) / counts)
    constants, _ = optimize.nnls(terms * (weights / means)[:, None], weights)
    seconds = terms @ constants
    least = LEAST_PART * seconds.mean() / np.maximum(terms.mean(axis=0), np.finfo(float).tiny)
    features = terms * np.maximum(constants, least) / seconds[:, None]  # slopes by the logarithm of each constant
    return LinearLaw(features=features, offset=middle + np.log(seconds), prior=np.ones(terms.shape[1]))
