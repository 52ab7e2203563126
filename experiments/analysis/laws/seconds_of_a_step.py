"""Seconds of a step over workers and batch sizes, as a linear law.

It is a law of logarithms, linear near its best fit (`shrinkage.LinearLaw`). It says where a cell lies if nothing but
its neighbours was timed; constants are not read from it: a fixed part, a part for each example of a worker, and for
several workers a latency, a part for each doubling and one for each worker (docs/formulas.md §4).
"""

import numpy as np
from scipy import optimize

from scalestudy.experiments.analysis.laws.shrinkage import LinearLaw, Places, Vector

LEAST_PART = 0.03
"""Least share of a step that a part counts for, so that a part fitted to almost nothing stays uncertain."""


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
