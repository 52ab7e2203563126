"""How much a look lowers the time that is to be expected of the best cell: the knowledge gradient.

For correlated beliefs (Frazier, Powell, Dayanik 2009, The knowledge-gradient policy for correlated normal beliefs). A
look at a value with variance v, by n repeats that scatter by σ², moves the mean of cell i by a_i · z, where z is
standard normal and a_i = cov(cell i, value) / √(v + σ²/n). So it is worth min m - E min (m + a z), here by
Gauss-Hermite quadrature.

Shapes: k draws, c cells, j looks.
"""

import numpy as np
from numpy.typing import NDArray

from scalestudy.experiments.analysis.laws.shrinkage import Places, Vector

REPEATS = (1, 2, 4, 8)
"""Repeats of a look that are weighed: one may be too few to change the choice."""
FURTHEST = 6.0
"""Standard deviations from the mean beyond which the quadrature leaves its nodes out."""
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(21)
WEIGHTS, NODES = WEIGHTS[np.abs(NODES) < FURTHEST], NODES[np.abs(NODES) < FURTHEST]
WEIGHTS /= WEIGHTS.sum()
TINY = 1e-18
"""The least variance that is divided by."""


def gains(
    cells: Vector,
    looks: Vector,
    noise: Vector,
    *,
    known: NDArray[np.bool_] | None = None,
    opens: Places | None = None,
) -> Vector:
    """Return by how much each look lowers the least mean, by each number of `REPEATS` (j, repeats).

    Args:
        cells: (k, c), draws of what is to be small.
        looks: (k, j), draws of what is looked at, together with those of the cells.
        noise: (j,), standard deviation of one repeat of a look.
        known: (c,), whether a cell may be chosen without a look, one at least; None: all may.
        opens: (j,), the cell that each look lets be chosen beside those; None: none.
    """
    away = looks - looks.mean(axis=0)
    variance = (away**2).mean(axis=0)
    chosen = cells if known is None else cells[:, known]
    if opens is not None:
        own_means, own = cells[:, opens].mean(axis=0), (cells[:, opens] * away).mean(axis=0)
    means, together = chosen.mean(axis=0), chosen.T @ away / len(cells)
    found = np.empty((looks.shape[1], len(REPEATS)))
    for place, count in enumerate(REPEATS):
        spread = np.sqrt(np.maximum(variance + noise**2 / count, TINY))
        moves, expected = together / spread, np.zeros(len(spread))
        after = np.empty_like(moves)
        for node, weight in zip(NODES, WEIGHTS, strict=True):
            np.multiply(moves, node, out=after)  # in place: with a thousand cells and looks, memory takes most time
            after += means[:, None]
            lowest = after.min(axis=0)
            if opens is not None:
                lowest = np.minimum(lowest, own_means + own / spread * node)
            expected += weight * lowest
        found[:, place] = means.min() - expected
    return np.maximum(found, 0.0)


def variance_taken(value: NDArray[np.generic], looks: Vector, noise: Vector) -> Vector:
    """Return how much of the variance of a value (k,) one look at each of others takes away (j,).

    looks, noise: as `gains` takes them.
    """
    away = looks - looks.mean(axis=0)
    together = (value - value.mean()) @ away / len(value)
    return np.asarray(together**2 / np.maximum((away**2).mean(axis=0) + noise**2, TINY))


def most_for_its_cost(worth: Vector, costs: Vector) -> tuple[int, int, float]:
    """Return the look that lowers the least mean most for its cost, by how many repeats, and by how much.

    worth: from `gains`. costs: (j,), of one repeat; infinity leaves a look out, even if the others are worth nothing.
    """
    a_cost = np.where(np.isinf(costs)[:, None], -1.0, worth / REPEATS / costs[:, None])
    look, place = map(int, np.unravel_index(int(a_cost.argmax()), worth.shape))
    return look, REPEATS[place], float(worth[look, place])


def conditioned(draws: Vector, look: Vector, noise: float, generator: np.random.Generator) -> Vector:
    """Return draws (k, c) as they will be after a look at a value (k,), whose mean it is taken to show.

    Each draw moves by what its own value and a draw of the noise lack of the mean (Matheron's rule; Wilson et al. 2021,
    arXiv 2011.04026).
    """
    away = look - look.mean()
    moved = (draws - draws.mean(axis=0)).T @ away / len(draws) / max(float((away**2).mean()) + noise**2, TINY)
    return np.asarray(draws - np.outer(away + noise * generator.standard_normal(len(look)), moved))
