"""Estimates of cells, shrunk towards a law by the precision of both.

A measurement is law(cell) + deviation of the cell + effect of its group + noise, all normal, in logarithms. The law is
linear in coefficients of which little is known beforehand. How far cells deviate, groups differ and measurements
scatter is estimated from all cells together, so a cell of one measurement has an interval too. These standard
deviations are not known well from few measurements; the posterior is averaged over a grid of them, weighted by their
marginal likelihood (a linear mixed model; Rasmussen and Williams 2006, Gaussian Processes, sections 2.7 and 5.4.1).

Shapes: n measurements, c cells, p coefficients, g groups, h points of the grid.
"""

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

Vector = NDArray[np.float64]
Places = NDArray[np.int64]

SPREADS = tuple(0.0005 * 2.0**power for power in range(11))
"""Standard deviations that are tried, of logarithms: 0.05 to 51 %."""
LIKELY_NOISE, NOISE_FACTOR = 0.12, 0.8
"""The noise assumed before any is measured: its median, and the standard deviation of its logarithm."""
LIKELY_DEVIATION, DEVIATION_FACTOR = 0.03, 0.6
"""The same for the cells' deviations from the law."""
GROUP_SHARES = (0.0, 0.3, 0.6, 1.0)
"""Standard deviations of the groups' effects that are tried, over the noise's."""
NO_EFFECT = 1e-6
SLOPE_STEP = 1e-4
NEGLIGIBLE_WEIGHT = 1e-4
"""Points of the grid with a smaller weight are left out."""


@dataclass(frozen=True, kw_only=True)
class LinearLaw:
    """A law that is linear in coefficients: offset + features · coefficients."""

    features: Vector  # (c, p)
    offset: Vector  # (c,), what it gives if all coefficients are zero
    prior: Vector  # (p,), standard deviations of the coefficients about zero before anything is measured

    @classmethod
    def near(cls, law: Callable[[Vector], Vector], values: Vector, usual: Vector, prior: Vector) -> "LinearLaw":
        """Linearise a law (p,) -> (c,) near these values of its parameters.

        usual, prior: means and standard deviations of the parameters before anything is measured.
        """
        axes = np.eye(len(values)) * SLOPE_STEP
        features = np.stack([(law(values + axis) - law(values - axis)) / (2 * SLOPE_STEP) for axis in axes], axis=1)
        return cls(features=features, offset=law(values) + features @ (usual - values), prior=prior)


@dataclass(frozen=True, kw_only=True)
class _Point:
    """The posterior at one point of the grid.

    A cell's deviation from the law is normal. Coefficients and groups' effects are normal together.
    """

    noise: float  # standard deviation of a measurement
    effect: float  # standard deviation of a group's effect
    lower: Vector  # lower · lowerᵀ is the precision of coefficients and effects
    half: Vector  # lower⁻ᵀ · half is their mean
    own: Vector  # (c,), the mean of the deviations if coefficients and effects are zero
    precision: Vector  # (c,), of the deviations


@dataclass(frozen=True, kw_only=True)
class Shrunk:
    """The posterior of the cells' values: a mixture of the points of the grid."""

    law: LinearLaw
    rows: Vector  # (c, p + g), of the design
    weights: list[float]
    points: list[_Point]

    @cached_property
    def mean(self) -> Vector:
        """(c,)."""
        parts = []
        for point in self.points:
            both = linalg.solve_triangular(point.lower, point.half, lower=True, trans="T")
            deviations = point.own - self.rows @ both / point.noise**2 / point.precision
            parts.append(self.law.features @ both[: self.law.features.shape[1]] + deviations)
        return self.law.offset + np.average(parts, axis=0, weights=self.weights)

    @cached_property
    def noise(self) -> float:
        """The standard deviation of a measurement, geometric mean over the posterior."""
        return math.exp(float(np.average([math.log(point.noise) for point in self.points], weights=self.weights)))

    @cached_property
    def scatter(self) -> float:
        """The same for a measurement that is alone in its group: noise and the group's effect together."""
        both = [math.log(math.hypot(point.noise, point.effect)) for point in self.points]
        return math.exp(float(np.average(both, weights=self.weights)))

    def draws(self, cells: Places, count: int, generator: np.random.Generator) -> Vector:
        """Draw the values of some cells together (count, cells). A cell that is named twice is drawn once."""
        cells, named = np.unique(cells, return_inverse=True)
        shares = generator.multinomial(count, self.weights)
        drawn = [(point, share) for point, share in zip(self.points, shares, strict=True) if share]
        chance, apart = np.empty((count, len(self.points[0].half))), np.empty((count, len(cells)))
        first = 0
        for _, share in drawn:
            chance[first : first + share] = generator.standard_normal((chance.shape[1], share)).T
            apart[first : first + share] = generator.standard_normal((share, len(cells)))
            first += share

        def of_each(values: Iterable[Vector]) -> Vector:
            """Return, by draw, the value of its point."""
            return np.repeat(np.array(list(values)), [share for _, share in drawn], axis=0)

        upper = of_each(point.lower.T for point, _ in drawn)
        both = np.linalg.solve(upper, (of_each(point.half for point, _ in drawn) + chance)[..., None])[..., 0]
        precision = of_each(point.precision[cells] for point, _ in drawn)
        noise = of_each(np.array([point.noise]) for point, _ in drawn)
        features = self.law.features[cells]
        deviations = of_each(point.own[cells] for point, _ in drawn) - both @ self.rows[cells].T / noise**2 / precision
        deviations += apart / np.sqrt(precision)
        values = self.law.offset[cells] + both[:, : features.shape[1]] @ features.T + deviations
        return values[generator.permutation(count)][:, named]


def shrink(values: Vector, cells: Places, law: LinearLaw, groups: Places | None = None) -> Shrunk:
    """Return the posterior of the values of all cells, measured or not.

    Args:
        values: (n,), one or more.
        cells: (n,), the cell of each measurement.
        law: of the cells' values.
        groups: (n,), the group of each measurement, such as its seed, from 0 on; None: there are none.
    """
    (count, size), measured = law.features.shape, values - law.offset[cells]
    grouped = 0 if groups is None else int(groups.max()) + 1
    each, sums = np.zeros((count, max(grouped, 1))), np.zeros((count, max(grouped, 1)))
    columns = np.zeros(len(values), dtype=np.int64) if groups is None else groups
    np.add.at(each, (cells, columns), 1.0)
    np.add.at(sums, (cells, columns), measured)
    counts, totals = each.sum(axis=1), sums.sum(axis=1)
    # A measurement's row of the design is its cell's features, then a one for its group.
    rows = np.hstack([law.features * counts[:, None], each[:, :grouped]])  # summed over the measurements of a cell
    square = np.zeros((size + grouped, size + grouped))
    square[:size] = law.features.T @ rows
    square[size:, :size] = square[:size, size:].T
    square[size:, size:] = np.diag(each.sum(axis=0)[:grouped])
    right = np.concatenate([law.features.T @ totals, sums.sum(axis=0)[:grouped]])
    squared = float(measured @ measured)

    grid = list(itertools.product(SPREADS, GROUP_SHARES if grouped else (0.0,)))
    deviations, shares = (np.array(column) for column in zip(*grid, strict=True))  # (h,) for each noise
    points: list[_Point] = []
    evidence: list[float] = []
    for noise in SPREADS:
        # The cells' deviations are independent given the rest, so they are integrated out one by one.
        effects = np.maximum(noise * shares, NO_EFFECT)[:, None]
        spreads = np.hstack([np.tile(law.prior, (len(grid), 1)), np.repeat(effects, grouped, axis=1)])
        precision = counts / noise**2 + deviations[:, None] ** -2.0
        crossed = np.einsum("cp,hc,cq->hpq", rows, 1 / precision, rows, optimize=True) / noise**2
        matrix = (square - crossed) / noise**2 + np.eye(size + grouped) * spreads[:, None, :] ** -2.0
        lower = np.linalg.cholesky(matrix)
        pulled = (right - (totals / precision) @ rows / noise**2) / noise**2
        half = np.linalg.solve(lower, pulled[..., None])[..., 0]
        fit = (squared - (totals**2 / precision).sum(axis=1) / noise**2) / noise**2 - (half**2).sum(axis=1)
        scale = 2 * len(values) * math.log(noise) + np.log(precision * deviations[:, None] ** 2).sum(axis=1)
        scale += 2 * np.log(np.diagonal(lower, axis1=1, axis2=2) * spreads).sum(axis=1)
        beforehand = (np.log(deviations / LIKELY_DEVIATION) / DEVIATION_FACTOR) ** 2
        beforehand += (math.log(noise / LIKELY_NOISE) / NOISE_FACTOR) ** 2
        evidence.extend(-(fit + scale + beforehand) / 2)
        points.extend(
            _Point(noise=noise, effect=effect, lower=low, half=middle, own=totals / noise**2 / known, precision=known)
            for effect, low, middle, known in zip((noise * shares).tolist(), lower, half, precision, strict=True)
        )
    weights = np.exp(np.array(evidence) - max(evidence))
    weights = np.where(weights < NEGLIGIBLE_WEIGHT * weights.sum(), 0.0, weights)
    weights /= weights.sum()
    kept = [(float(weight), point) for weight, point in zip(weights, points, strict=True) if weight]
    return Shrunk(law=law, rows=rows, weights=[weight for weight, _ in kept], points=[point for _, point in kept])
