"""Estimates of cells, shrunk towards a law by the precision of both.

A measurement is law(cell) + deviation of the cell + effect of its group + noise, all normal, in logarithms. How far
cells deviate, groups differ and measurements scatter is estimated from all cells together, so a cell of one measurement
has an interval too. These standard deviations are not known well from few measurements; the posterior is averaged over
a grid of them, weighted by their marginal likelihood (a linear mixed model; Rasmussen and Williams 2006, Gaussian
Processes, sections 2.7 and 5.4.1).

Cells that are neighbours deviate in the same direction: half of a deviation's variance is a process whose correlation
falls with the octaves between two cells. Values of that process at some nodes stand for all of it, and what the nodes
leave open at a cell counts as the cell's own (Quiñonero-Candela and Rasmussen 2005, section 6: FITC).

Shapes: n measurements, c cells, p coefficients, g groups, m nodes, h points of the grid, k draws.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, special

Vector = NDArray[np.float64]
Places = NDArray[np.int64]

SPREADS = tuple(0.0005 * 2.0**power for power in range(11))
"""Standard deviations that are tried, of logarithms: 0.05 to 51 %."""
LIKELY_NOISE, NOISE_FACTOR = 0.12, 0.8
"""The noise assumed before any is measured: its median, and the standard deviation of its logarithm."""
LIKELY_DEVIATION, DEVIATION_FACTOR = 0.05, 0.8
"""The same for the cells' deviations from the law."""
GROUP_SHARES = (0.0, 0.3, 0.6, 1.0)
"""Standard deviations of the groups' effects that are tried, over the noise's."""
NO_EFFECT = 1e-6
ROUNDING = 1e-13
"""Share of a sum that its rounding may take."""
NEGLIGIBLE_WEIGHT = 1e-4
"""Points of the grid with a smaller weight are left out."""
COMMON, LENGTH = 0.5, 1.0
"""Share of a deviation's variance that neighbours have in common, and the octaves over which it falls to 1/e."""
MOST_NODES = 64


@dataclass(frozen=True, kw_only=True)
class LinearLaw:
    """A law that is linear in coefficients: offset + features · coefficients."""

    features: Vector  # (c, p)
    offset: Vector  # (c,), what it gives if all coefficients are zero
    prior: Vector  # (p,), standard deviations of the coefficients about zero before anything is measured
    exact: int = 0
    """In how many coefficients, the first ones, the law is linear everywhere."""


@dataclass(frozen=True, kw_only=True)
class Deviations:
    """How the deviations of cells hang together, for a standard deviation of 1."""

    weights: Vector  # (c, m), of the process at the nodes, whose values are independent
    own: Vector  # (c,), the variance of a cell's own part
    likely: float  # their standard deviation before any is measured: its median
    factor: float  # and the standard deviation of its logarithm

    @classmethod
    def apart(cls, count: int, *, likely: float, factor: float) -> "Deviations":
        """Return deviations that have nothing in common."""
        return cls(weights=np.empty((count, 0)), own=np.ones(count), likely=likely, factor=factor)

    @classmethod
    def of_neighbours(cls, octaves: Vector) -> "Deviations":
        """Return deviations of cells at these places (c, axes), in octaves."""
        nodes = _nodes(octaves)
        among, to = _common(nodes, nodes), _common(octaves, nodes)
        lower = np.linalg.cholesky(among + 1e-9 * np.eye(len(nodes)))
        weights = linalg.solve_triangular(lower, to.T, lower=True, check_finite=False).T
        own = np.maximum(1 - (weights**2).sum(axis=1), 1 - COMMON)
        return cls(weights=weights, own=own, likely=LIKELY_DEVIATION, factor=DEVIATION_FACTOR)


def _common(places: Vector, others: Vector) -> Vector:
    """Return the covariance of what places have in common."""
    return np.asarray(COMMON * np.exp(-np.abs(places[:, None] - others).sum(axis=2) / LENGTH))


def _nodes(octaves: Vector) -> Vector:
    """Return the places of the nodes (m, axes): the grid of all values, or an even one if these are too many."""
    axes = [np.unique(column) for column in octaves.T]
    while math.prod(map(len, axes)) > MOST_NODES:
        longest = max(range(len(axes)), key=lambda place: len(axes[place]))
        axes[longest] = np.linspace(axes[longest][0], axes[longest][-1], len(axes[longest]) // 2 + 1)
    return np.array(list(itertools.product(*axes)))


@dataclass(frozen=True, kw_only=True)
class NoiseLevel:
    """The posterior at the points of the grid that have one noise.

    A cell's own deviation is normal. Nodes, groups' effects and coefficients, in this order, are normal together: q
    values, of which the first ones, a, stay so whatever the law's form.
    """

    noise: float  # standard deviation of a measurement
    effects: Vector  # (h,), standard deviation of a group's effect
    spreads: Vector  # (h,), standard deviation of a deviation
    lower: Vector  # (h, q, q), lower · lowerᵀ is the precision of nodes, effects and coefficients
    half: Vector  # (h, q), lower⁻ᵀ · half is their mean
    offset: Vector  # (c,), of the linear law; the values measured are what lies above it
    rows: Vector  # (c, q), of the design, weighted and summed over the measurements of a cell
    right: Vector  # (q,), the design times the measured values, weighted
    sums: Vector  # (c,), of the same values, weighted
    squared: float  # the same of their squares
    counts: Vector  # (c,), of the weights
    precision: Vector  # (h, c), of the own deviations
    sizes: Vector  # (h,), logarithms of the determinants but of the coefficients that are not exact, and of the prior
    apart: int  # a
    weights: Vector  # (h,), how likely each point is; of all levels they sum to 1

    @property
    def keys(self) -> list[tuple[float, float, float]]:
        """The place in the grid of each point."""
        return [(self.noise, *each) for each in zip(self.spreads.tolist(), self.effects.tolist(), strict=True)]

    def at(self, points: Places) -> "NoiseLevel":
        """Return the level with some of its points."""
        of_points = ("effects", "spreads", "lower", "half", "precision", "sizes", "weights")
        return replace(self, **{name: getattr(self, name)[points] for name in of_points})

    @cached_property
    def inverse(self) -> Vector:
        """(h, a, a), of the part of `lower` that stays whatever the law's form."""
        return np.asarray(np.linalg.inv(self.lower[:, : self.apart, : self.apart]))

    @cached_property
    def means(self) -> Vector:
        """(h, q), of what is normal together."""
        return np.asarray(np.linalg.solve(np.swapaxes(self.lower, 1, 2), self.half[..., None])[..., 0])

    def given(self, values: Vector, points: Places) -> tuple[Vector, Vector]:
        """Take what is not exact in the law as known instead.

        Args:
            values: (k, c), of the law, its exact coefficients being zero.
            points: (k,), of the level.

        Returns:
            The log density of the measurements (k,), up to a constant, with the weight of the point beforehand. The
            half (k, a) of nodes, effects and exact coefficients.
        """
        above, rows = values - self.offset, self.rows[:, : self.apart]
        sums = self.sums - self.counts * above
        own = sums / self.precision[points]
        right = self.right[: self.apart] - (above + own) @ rows
        half = (self.inverse[points] @ right[..., None])[..., 0]
        fit = self.squared - 2 * above @ self.sums + above**2 @ self.counts
        fit -= (sums * own).sum(axis=1) + (half**2).sum(axis=1)
        return -(fit + self.sizes[points]) / 2, half

    def shared(self, half: Vector, points: Places) -> Vector:
        """Return lower⁻ᵀ · half (k, a)."""
        return np.asarray((half[:, None] @ self.inverse[points])[:, 0])

    def cells(self, values: Vector, points: Places, shared: Vector) -> Vector:
        """Return the means of the own deviations (k, c), nodes, effects and exact coefficients (k, a) being known."""
        left = self.sums - self.counts * (values - self.offset) - shared @ self.rows[:, : self.apart].T
        return np.asarray(left / self.precision[points])

    def slope(self, values: Vector, points: Places, half: Vector) -> Vector:
        """Return the slope of the log density over the law's values (k, c), where `given` found this half (k, a)."""
        own = self.cells(values, points, self.shared(half, points))
        return np.asarray((self.precision[points] - self.counts) * own)


@dataclass(frozen=True, kw_only=True)
class Shrunk:
    """The posterior of the cells' values: a mixture of the points of the grid."""

    law: LinearLaw
    deviations: Deviations
    levels: list[NoiseLevel]
    evidence: float  # logarithm of the density of the measurements, up to a constant that all laws share

    @cached_property
    def mean(self) -> Vector:
        """(c,)."""
        found = self.law.offset.copy()
        for level in self.levels:
            deviations = (level.sums - level.means @ level.rows.T) / level.precision
            found += self.linear @ (level.weights @ level.means) + level.weights @ deviations
        return found

    @cached_property
    def linear(self) -> Vector:
        """(c, m + g + p), what each of what is normal together adds to a cell."""
        shared = self.deviations.weights
        groups = np.zeros((len(shared), self.levels[0].apart - self.law.exact - shared.shape[1]))
        return np.hstack([shared, groups, self.law.features])

    @cached_property
    def weights(self) -> Vector:
        """(h,), of the points of all levels."""
        return np.concatenate([level.weights for level in self.levels])

    @cached_property
    def noises(self) -> Vector:
        """(h,), of the points of all levels."""
        return np.repeat([level.noise for level in self.levels], [len(level.spreads) for level in self.levels])

    @cached_property
    def spreads(self) -> Vector:
        """(h,), of the points of all levels."""
        return np.concatenate([level.spreads for level in self.levels])

    @property
    def likeliest(self) -> NoiseLevel:
        """The level of the likeliest point, with this point alone."""
        level = max(self.levels, key=lambda each: float(each.weights.max()))
        return level.at(np.array([level.weights.argmax()]))

    @cached_property
    def noise(self) -> float:
        """The standard deviation of a measurement, geometric mean over the posterior."""
        return math.exp(float(self.weights @ np.log(self.noises)))

    @cached_property
    def scatter(self) -> float:
        """The same for a measurement that is alone in its group: noise and the group's effect together."""
        effects = np.concatenate([level.effects for level in self.levels])
        return math.exp(float(self.weights @ np.log(np.hypot(self.noises, effects))))


def shrink(
    values: Vector,
    cells: Places,
    law: LinearLaw,
    groups: Places | None = None,
    *,
    extra: Vector | None = None,
    deviations: Deviations | None = None,
    likely_noise: float = LIKELY_NOISE,
    near: Shrunk | None = None,
) -> Shrunk:
    """Return the posterior of the values of all cells, measured or not.

    Args:
        values: (n,), one or more.
        cells: (n,), the cell of each measurement.
        law: of the cells' values.
        groups: (n,), the group of each measurement, such as its seed, from 0 on; None: there are none.
        extra: (n,), variance of each measurement beside the noise; None: none has any.
        deviations: of the cells; None: they have nothing in common.
        likely_noise: the median of the noise before any is measured.
        near: a posterior of much the same values; only the part of the grid is tried that lies near its points.
    """
    count, measured = len(law.offset), values - law.offset[cells]
    if deviations is None:
        deviations = Deviations.apart(count, likely=LIKELY_DEVIATION, factor=DEVIATION_FACTOR)
    grouped = 0 if groups is None else int(groups.max()) + 1
    of_group = np.zeros((len(values), grouped))
    if groups is not None:
        of_group[np.arange(len(values)), groups] = 1.0
    shared = deviations.weights.shape[1]
    apart = shared + grouped + law.exact
    noises, tried = SPREADS, SPREADS
    if near is not None:
        noises, tried = _about(near.noises), _about(near.spreads)
    deviation, shares = np.array(tried), np.array(GROUP_SHARES if grouped else (0.0,))
    spread, share = np.repeat(deviation, len(shares)), np.tile(shares, len(deviation))
    levels: list[Callable[..., NoiseLevel]] = []  # but for the weights, which all levels share
    found: list[Vector] = []
    for noise in noises:
        weight = 1 / (noise**2 + (np.zeros(len(values)) if extra is None else extra))
        each = np.zeros((count, grouped))
        np.add.at(each, cells, of_group * weight[:, None])
        counts, sums = (
            np.asarray(np.bincount(cells, of, minlength=count), dtype=float) for of in (weight, weight * measured)
        )
        # a measurement's row of the design has the nodes' weights and features of its cell, and a one for its group
        rows = np.hstack([deviations.weights * counts[:, None], each, law.features * counts[:, None]])
        fixed = np.hstack([deviations.weights, np.zeros((count, grouped)), law.features])
        square = fixed.T @ rows
        inner = slice(shared, shared + grouped)
        square[inner] = square[:, inner].T
        square[inner, inner] = np.diag(each.sum(axis=0))
        right: Vector = fixed.T @ sums
        right[inner] = (weight * measured) @ of_group
        squared, scale = float(weight @ measured**2), -float(np.log(weight).sum())
        # the cells' own deviations are independent given the rest, so they are integrated out one by one
        effects = np.maximum(noise * share, NO_EFFECT)[:, None]
        prior = np.tile(law.prior, (len(spread), 1))
        spreads = np.hstack([np.repeat(spread[:, None], shared, 1), np.repeat(effects, grouped, 1), prior])
        own = deviation[:, None] ** 2 * deviations.own
        precision = counts + 1 / own
        part = rows.T / precision[:, None, :]
        # effects have no part in these
        matrix, shifted, fitted, size = (
            np.repeat(each, len(shares), axis=0)
            for each in (
                square - part @ rows,
                right - part @ sums,
                squared - (sums**2 / precision).sum(axis=1),
                scale + np.log(precision * own).sum(axis=1),
            )
        )
        # a law with extreme features would not survive the rounding of a difference
        diagonal = np.maximum(np.diagonal(matrix, axis1=1, axis2=2), 0.0) + ROUNDING * np.diagonal(square)
        matrix[:, np.arange(len(square)), np.arange(len(square))] = diagonal + spreads**-2.0
        lower: Vector = np.linalg.cholesky(matrix)
        half = np.linalg.solve(lower, shifted[..., None])[..., 0]
        fit = fitted - (half**2).sum(axis=1)
        widths = 2 * np.log(np.diagonal(lower, axis1=1, axis2=2) * spreads)
        size += (np.log(spread / deviations.likely) / deviations.factor) ** 2
        size += (math.log(noise / likely_noise) / NOISE_FACTOR) ** 2 + widths[:, :apart].sum(axis=1)
        found.append(-(fit + size + widths[:, apart:].sum(axis=1)) / 2)
        levels.append(
            partial(
                NoiseLevel,
                noise=noise,
                effects=noise * share,
                spreads=spread,
                lower=lower,
                half=half,
                rows=rows,
                right=right,
                offset=law.offset,
                sums=sums,
                squared=squared,
                counts=counts,
                precision=np.repeat(precision, len(shares), axis=0),
                sizes=size,
                apart=apart,
            )
        )
    evidence = float(special.logsumexp(found))
    weights = np.exp(np.array(found) - evidence)
    weights[weights < NEGLIGIBLE_WEIGHT] = 0
    weights /= weights.sum()
    return Shrunk(
        law=law,
        deviations=deviations,
        levels=[
            level(weights=each).at(np.flatnonzero(each))
            for level, each in zip(levels, weights, strict=True)
            if each.any()
        ],
        evidence=evidence,
    )


def _about(kept: Vector) -> tuple[float, ...]:
    """Return the standard deviations to try from one step below the least of these to one above the greatest."""
    places = np.searchsorted(SPREADS, (kept.min(), kept.max()))
    return SPREADS[max(places[0] - 1, 0) : places[1] + 2]
