"""Steps to a target over batch sizes, rates and workers: one law, and the draws of all that is asked of it.

log S = log S_min + log(1 + B_crit/B) + c · (log2 η - log2 η* - p · log2 B)² + d · log2 num_gpus. The first two terms
are the law of batch sizes (docs/formulas.md §3; McCandlish et al. 2018, arXiv 1812.06162, section 2.3), p is the rule
of the best rate (§2), c its curvature. d is 0 where num_gpus changes nothing. Cells deviate from the law (`shrinkage`).

Draws are made in two steps. The law is made linear near each of its modes, which gives a proposal of the constants, and
the grid of standard deviations. Each draw is then weighted by its exact density over that of the proposal (importance
sampling; Owen 2013, Monte Carlo theory, methods and examples, section 9.2).

Shapes: n trainings, c places, k draws, t constants.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import linalg, optimize, special

from scalestudy.experiments.analysis.laws.shrinkage import (
    Deviations,
    LinearLaw,
    Places,
    Point,
    Shrunk,
    Vector,
    shrink,
)

DRAWS = 2000
LIKELY_RULE, LIKELY_CURVATURE = 0.4, 0.17
"""p, and c in squared octaves, before anything is measured: between a constant and a linear rate; four times the best
rate, or a quarter of it, takes twice as many steps."""
BEFOREHAND = np.array([5.0, 3.0, 0.6, 2.5, 0.4, 0.3])
"""Standard deviations of log S_min, log2 B_crit, log c, log2 η*, p and the effect of a doubling of num_gpus, before
anything is measured, about the middle of what was tried."""
LEVEL, CRITICAL, CURVATURE, BEST, RULE, DOUBLING = range(6)
SCATTER = 0.1
"""Standard deviation of log S that finds where the law is made linear."""
ROUNDS = 4
"""How often the arrivals that are known by their interval alone are replaced by values of the same effect."""
TAILS = 5
"""Degrees of freedom of the proposal."""
LEAST_DRAWS, MOVES = 200.0, 24
"""So many equally weighted draws the weighted ones have to be worth, or they are moved so often."""
ENOUGH_PLACES, LEAST_MOVES = 500, 4
"""With more places they are moved less often: these tell the constants far better than a cell's own deviation."""
STRIDES, LEAST_SPREAD = (1.0, 0.3, 0.1), 0.05
"""Lengths of the moves over the best one for a normal density, and the least spread over what is known beforehand."""
NO_WORD = 1e6
"""Variance of an arrival that says nothing."""


@dataclass(frozen=True, kw_only=True)
class Arrivals:
    """What trainings say about log S: each lies in an interval by a chance, else above it."""

    places: Places  # (n,), the place of each
    seeds: Places | None  # (n,), from 0 on; None: seeds share nothing
    low: Vector  # (n,), the log steps of the last evaluation before the target; -inf where there was none
    high: Vector  # (n,), of the evaluation that met it; inf where none did
    chance: Vector  # (n,), of lying between them
    values: Vector  # (n,), an estimate between them, NaN where the interval is all that is known
    extra: Vector  # (n,), variance of the estimate beside the scatter of seeds

    def seen(self, middle: Vector, scatter: float) -> tuple[Vector, Vector]:
        """Return values, and variances beside the scatter, that say the same as the intervals near these means (n,).

        They have the first two derivatives of the intervals' log likelihood there.
        """
        with np.errstate(invalid="ignore"):
            off = np.clip(middle, self.low - FURTHEST * scatter, self.high + FURTHEST * scatter)
        ends = [(self.low - off) / scatter, (self.high - off) / scatter]
        parts = [_normal_between(ends[0], ends[1]), _normal_between(ends[1], np.full(len(off), np.inf))]
        weights = [self.chance * parts[0][0], (1 - self.chance) * parts[1][0]]
        whole = np.maximum(weights[0] + weights[1], np.finfo(float).tiny)
        mean = (weights[0] * parts[0][1] + weights[1] * parts[1][1]) / whole
        square = (weights[0] * parts[0][2] + weights[1] * parts[1][2]) / whole
        variance = np.clip(square - mean**2, 1e-9, 1 - 1e-9)
        extra = np.minimum(scatter**2 * variance / (1 - variance), NO_WORD)
        values = off + extra / scatter * mean / variance
        known = np.isfinite(self.values)
        return np.where(known, self.values, values), np.where(known, self.extra, extra)


def _normal_between(low: Vector, high: Vector) -> tuple[Vector, Vector, Vector]:
    """Return the probability between two limits of a standard normal value, and there its mean and mean square."""
    flipped = low > 0  # the lower tail has more digits
    first, last = np.where(flipped, -high, low), np.where(flipped, -low, high)
    chance = np.maximum(special.ndtr(last) - special.ndtr(first), np.finfo(float).tiny)
    density = [np.exp(-(end**2) / 2) / math.sqrt(2 * math.pi) for end in (first, last)]
    mean = (density[0] - density[1]) / chance
    bounded = [np.where(np.isfinite(end), end, 0.0) for end in (first, last)]
    square = 1 + (bounded[0] * density[0] - bounded[1] * density[1]) / chance
    return chance, np.where(flipped, -mean, mean), square


FURTHEST = 6.0
"""Standard deviations from an interval at which its likelihood is still told from zero."""


@dataclass(frozen=True, kw_only=True)
class Law:
    """The law over places, about their middle."""

    middle: Vector  # (3,), of log2 of batch size, rate and num_gpus
    usual: Vector  # (t,), the constants before anything is measured
    free: Places  # (f,), the constants that are not as usual
    exact: int  # how many of these, the first ones, the law is linear in
    compared: bool
    """Whether some batch size was trained at several rates: else what a rate does can't be told from what it does."""

    def values(self, octaves: Vector, constants: Vector) -> Vector:
        """Return log S (…, c) for constants (…, t). octaves: log2 of batch size, rate and num_gpus (c, 3)."""
        batch, rate, workers = (octaves - self.middle).T
        level, critical, curvature, best, rule, doubling = (constants[..., [place]] for place in range(6))
        found = level + np.logaddexp(0.0, math.log(2) * (critical - batch)) + doubling * workers
        if not self.compared:
            return np.asarray(found)
        return np.asarray(found + np.exp(curvature) * (rate - best - rule * batch) ** 2)

    def with_free(self, constants: Vector) -> Vector:
        """Return all constants (…, t) from the free ones (…, f)."""
        found = np.broadcast_to(self.usual, (*constants.shape[:-1], len(self.usual))).copy()
        found[..., self.free] = constants
        return found

    def near(self, octaves: Vector, constants: Vector) -> LinearLaw:
        """Make the law linear near these constants (t,)."""
        return LinearLaw.near(
            lambda free: self.values(octaves, self.with_free(free)),
            constants[self.free],
            self.usual[self.free],
            BEFOREHAND[self.free],
            self.exact,
        )


@dataclass(frozen=True, kw_only=True)
class StepsToTarget:
    """The posterior of the steps to one target: draws of the law's constants, and of the cells about it."""

    law: Law
    constants: Vector  # (k, t), in the order of BEFOREHAND, about the middle of the places
    mean: Vector  # (c,), log S of the places
    draws: Vector  # (k, c)
    scatter: float  # standard deviation of a training about its cell, with its seed's effect
    worth: float  # how many equally weighted draws the draws are worth


def steps_to_target(
    places: Vector, arrivals: Arrivals, generator: np.random.Generator, *, count: int = DRAWS
) -> StepsToTarget:
    """Draw the steps to a target.

    Args:
        places: (c, 3), batch size, rate and num_gpus of each place, trained at or not; num_gpus is 1 for all where it
            changes nothing.
        arrivals: of the trainings; one or more arrived.
        generator: for the order of the draws, which are the same for the same arrivals.
        count: of draws.
    """
    octaves = np.log2(places)
    deviations = Deviations.of_neighbours(octaves)
    values, extra = _first_values(arrivals)
    arrived = np.isfinite(arrivals.high)
    alike = (octaves == octaves[0]).all(axis=0)
    exact = [LEVEL] if alike[2] else [LEVEL, DOUBLING]
    compared = len(np.unique(octaves[:, :2], axis=0)) > len(np.unique(octaves[:, 0]))
    law = Law(
        free=np.array([*exact, CRITICAL, *((CURVATURE, BEST, RULE) if compared else ())]),
        exact=len(exact),
        middle=octaves.mean(axis=0),
        usual=np.array([float(values[arrived].mean()), 0.0, math.log(LIKELY_CURVATURE), 0.0, LIKELY_RULE, 0.0]),
        compared=compared,
    )
    modes = _modes(law, octaves, values[arrived], arrivals.places[arrived])
    linear = law.near(octaves, modes[0])
    kept = arrived
    for _ in range(0 if np.isfinite(arrivals.values).all() else ROUNDS):
        found = shrink(
            values[kept],
            arrivals.places[kept],
            linear,
            None if arrivals.seeds is None else arrivals.seeds[kept],
            extra=extra[kept],
            deviations=deviations,
        )
        values, extra = arrivals.seen(found.mean[arrivals.places], found.scatter)
        kept = np.full(len(values), True)
    parts = []
    for mode in modes:
        linear = law.near(octaves, mode)
        parts.append(shrink(values, arrivals.places, linear, arrivals.seeds, extra=extra, deviations=deviations))
    return _drawn(law, octaves, parts, count, generator)


def _first_values(arrivals: Arrivals) -> tuple[Vector, Vector]:
    """Return the middles of the intervals that have one, the ends of the others."""
    known = np.isfinite(arrivals.values)
    low = np.where(np.isfinite(arrivals.low), arrivals.low, arrivals.high)
    high = np.where(np.isfinite(arrivals.high), arrivals.high, low)
    return np.where(known, arrivals.values, (low + high) / 2), np.where(known, arrivals.extra, (high - low) ** 2 / 12)


def _modes(law: Law, octaves: Vector, values: Vector, places: Places) -> list[Vector]:
    """Return the constants that fit best, from a small and from a large critical batch; one, if both end there."""
    measured, counts = np.unique(places, return_counts=True)
    means = np.bincount(places, values)[measured] / counts
    weights = np.sqrt(counts) / SCATTER

    def residuals(free: Vector) -> Vector:
        off = weights * (means - law.values(octaves[measured], law.with_free(free)))
        return np.concatenate([off, (free - law.usual[law.free]) / BEFOREHAND[law.free]])

    batch = octaves[:, 0] - law.middle[0]
    starts = [np.where(law.free == CRITICAL, end, law.usual[law.free]) for end in (batch.min(), batch.max())]
    fits = sorted((optimize.least_squares(residuals, start) for start in starts), key=lambda fit: float(fit.cost))
    apart = (np.abs(fits[0].x - fits[1].x) > ALIKE * BEFOREHAND[law.free]).any()
    near = fits if apart and fits[1].cost - fits[0].cost < FAR_WORSE else fits[:1]
    return [law.with_free(fit.x) for fit in near]


ALIKE, FAR_WORSE = 0.05, 10.0
"""Modes are the same up to so many standard deviations beforehand; one so much less likely is none."""


def _drawn(
    law: Law, octaves: Vector, parts: Sequence[Shrunk], count: int, generator: np.random.Generator
) -> StepsToTarget:
    """Draw from the proposals of all modes, choose among the draws by their weights, and move them if these are few."""
    chance = np.random.default_rng(0)
    proposals = _Proposals(law=law, octaves=octaves, parts=parts)
    found, points, weights = proposals.weighted(count, chance)
    worth = float(weights.sum() ** 2 / (weights**2).sum())  # equally weighted draws of the same precision (Kish 1965)
    # systematic resampling: a draw is there as often as its weight says, give or take one
    steps = (np.arange(count) + chance.random()) / count
    chosen = np.minimum(np.searchsorted(np.cumsum(weights) / weights.sum(), steps), len(weights) - 1)
    found, points = found[chosen], points[chosen]
    if worth < LEAST_DRAWS:
        found, points = proposals.moved(found, points, chance)
    apart, first = parts[0].apart, 0
    draws, made, mean = np.empty((count, len(octaves))), np.empty((count, len(law.usual))), np.zeros(len(octaves))
    linear = parts[0].linear[:, :apart]
    for index in np.unique(points).tolist():
        point, places = proposals.points[index], np.flatnonzero(points == index)
        part = slice(first, first + len(places))
        constants = proposals.constants(found[places])
        values = law.values(octaves, constants)
        above = values - proposals.offsets[index]
        half, rows = point.given(above, apart)[1], point.rows[:, :apart]
        likely, both = (
            linalg.solve_triangular(point.lower[:apart, :apart], each.T, lower=True, trans="T", check_finite=False).T
            for each in (half, half + chance.standard_normal(half.shape))
        )
        sums = point.sums - point.counts * above
        mean += (values + likely @ linear.T + (sums - likely @ rows.T) / point.precision).sum(axis=0) / count
        own = (sums - both @ rows.T) / point.precision
        own += chance.standard_normal(own.shape) / np.sqrt(point.precision)
        draws[part] = values + both @ linear.T + own
        made[part] = constants
        made[part, law.free[: law.exact]] += both[:, apart - law.exact :]
        first += len(places)
    mixed = generator.permutation(count)
    return StepsToTarget(
        law=law,
        constants=made[mixed],
        mean=mean,
        draws=draws[mixed],
        scatter=float(np.average([part.scatter for part in parts], weights=_shares(parts))),
        worth=worth,
    )


def _shares(parts: Sequence[Shrunk]) -> Vector:
    """Return how likely each mode is."""
    evidence = np.array([part.evidence for part in parts])
    return np.asarray(special.softmax(evidence))


@dataclass(frozen=True, kw_only=True)
class _Proposals:
    """Where draws of the constants come from that the law is not linear in, and of the points of the grid.

    off (k, b): these constants, less what is usual.
    """

    law: Law
    octaves: Vector
    parts: Sequence[Shrunk]

    @cached_property
    def points(self) -> list[Point]:
        """The points of all parts."""
        return [point for part in self.parts for point in part.points]

    @cached_property
    def offsets(self) -> list[Vector]:
        """Of the linear law of each point."""
        return [part.law.offset for part in self.parts for _ in part.points]

    @cached_property
    def shares(self) -> Vector:
        """How likely each point is by the linear laws."""
        each = zip(_shares(self.parts).tolist(), self.parts, strict=True)
        return np.concatenate([share * np.array(part.weights) for share, part in each])

    @cached_property
    def alike(self) -> Mapping[tuple[float, float, float], list[int]]:
        """The points at the same place of the grid, one a part at most."""
        found: dict[tuple[float, float, float], list[int]] = {}
        for index, point in enumerate(self.points):
            found.setdefault(point.key, []).append(index)
        return found

    @cached_property
    def spread(self) -> Vector:
        """(b,), of the constants beforehand."""
        return BEFOREHAND[self.law.free[self.law.exact :]]

    def constants(self, off: Vector) -> Vector:
        """Return all constants (k, t), those that the law is linear in as usual."""
        found = np.tile(self.law.usual, (len(off), 1))
        found[:, self.law.free[self.law.exact :]] += off
        return found

    def density(self, off: Vector, points: Places) -> Vector:
        """Return the exact log density of draws, up to a constant."""
        found = np.empty(len(off))
        for index in np.unique(points).tolist():
            places = np.flatnonzero(points == index)
            above = self.law.values(self.octaves, self.constants(off[places])) - self.offsets[index]
            found[places] = self.points[index].given(above, self.parts[0].apart)[0]
        return found - ((off / self.spread) ** 2).sum(axis=1) / 2

    def weighted(self, count: int, generator: np.random.Generator) -> tuple[Vector, Places, Vector]:
        """Draw near the modes of the law, as its linear form says. Return draws, points and weights."""
        apart = self.parts[0].apart
        points = np.repeat(np.arange(len(self.points)), generator.multinomial(count, self.shares))
        off, proposed = np.empty((count, len(self.spread))), np.empty(count)
        for index in np.unique(points).tolist():
            point, places = self.points[index], np.flatnonzero(points == index)
            lower = point.lower[apart:, apart:]
            middle = linalg.solve_triangular(lower, point.half[apart:], lower=True, trans="T", check_finite=False)
            off[places] = middle + _tailed(lower, len(places), generator)
            near = np.zeros(len(places))
            for other in self.alike[point.key]:
                under = self.points[other].lower[apart:, apart:]
                near += self.shares[other] * _density(off[places] @ under - self.points[other].half[apart:], under)
            proposed[places] = np.log(near)
        logs = self.density(off, points) - proposed
        return off, points, np.exp(logs - logs.max())

    def moved(self, off: Vector, points: Places, generator: np.random.Generator) -> tuple[Vector, Places]:
        """Move each draw by Metropolis steps, by turns of the constants and of the point (Gilks and Berzuini 2001)."""
        density, size = self.density(off, points), off.shape[1]
        for turn in range(max(MOVES * ENOUGH_PLACES // max(len(self.octaves), ENOUGH_PLACES), LEAST_MOVES)):
            tried, places = off, points
            log_ratio = np.zeros(len(off))
            if turn % 2:
                places = generator.choice(len(self.shares), len(off), p=self.shares)
                log_ratio = np.log(self.shares[points] / self.shares[places])
            else:
                spread = np.cov(off.T, ddof=0).reshape(size, size) + np.diag((LEAST_SPREAD * self.spread) ** 2)
                stride = STRIDES[turn // 2 % len(STRIDES)] * 2.38 / math.sqrt(size)  # Roberts and Rosenthal 2001
                tried = off + stride * generator.standard_normal(off.shape) @ np.linalg.cholesky(spread).T
            new = self.density(tried, places)
            taken = np.log(generator.random(len(off))) < new - density + log_ratio
            off, points = np.where(taken[:, None], tried, off), np.where(taken, places, points)
            density = np.where(taken, new, density)
        return off, points


def _tailed(lower: Vector, count: int, generator: np.random.Generator) -> Vector:
    """Draw t values (count, d) about zero, for a precision of lower · lowerᵀ."""
    chance = generator.standard_normal((len(lower), count)) * np.sqrt(TAILS / generator.chisquare(TAILS, count))
    return np.asarray(linalg.solve_triangular(lower, chance, lower=True, trans="T", check_finite=False).T)


def _density(standard: Vector, lower: Vector) -> Vector:
    """Return the density of t values, up to a constant. standard (…, d): times lower, about their middle."""
    scale = float(np.log(np.diagonal(lower)).sum())
    squares = (standard**2).sum(axis=-1)
    return np.asarray(np.exp(scale - (TAILS + len(lower)) / 2 * np.log1p(squares / TAILS)))
