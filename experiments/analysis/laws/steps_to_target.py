"""Steps to a target over batch sizes, rates and workers: one law, and the draws of all that is asked of it.

log S = log S_min + log(1 + B_crit/B) + c · (log2 η - log2 η* - p · log2 B)² + d · log2 num_gpus. The first two terms
are the law of batch sizes (docs/formulas.md §3; McCandlish et al. 2018, arXiv 1812.06162, section 2.3), p is the rule
of the best rate (§2), c its curvature. d is 0 where num_gpus changes nothing. Cells deviate from the law (`shrinkage`).

The law is made linear near each of its modes, which gives a first proposal of the constants, and the grid of standard
deviations. Each draw is weighted by its exact density over that of the proposal (importance sampling; Owen 2013, Monte
Carlo theory, methods and examples, section 9.2). The draws so far then give the proposal of the next ones, and all are
weighted by the mean density of the proposals (Cornuet et al. 2012, arXiv 0907.1254).

Shapes: n trainings, c places, k draws, t constants.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import optimize, special

from scalestudy.experiments.analysis.laws.one_thread import on_one_thread
from scalestudy.experiments.analysis.laws.shrinkage import (
    Deviations,
    LinearLaw,
    NoiseLevel,
    Places,
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
"""Degrees of freedom of the proposals."""
PROPOSALS, MOST_PROPOSALS = 4, 16
"""How many there are, and how many at most until the draws are worth enough. Each makes a quarter of what is asked."""
LEAST_SHAPE, FLATTER = 60.0, 0.8
"""So many equally weighted draws have to be behind the shape of a proposal: until they are, the logarithms of the
weights are multiplied by the second number."""
LEAST_DRAWS = 200.0
"""So many equally weighted draws the weighted ones have to be worth, or more are made."""
NO_WORD = 1e6
"""Variance of an arrival that says nothing."""
MOST_VALUES = 2_000_000
"""So many values of places are worked out at once, for the memory that they take."""


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
    span: tuple[float, float]  # from log2 of the smallest batch size to that of the largest
    usual: Vector  # (t,), the constants before anything is measured
    free: Places  # (f,), the constants that are not as usual
    exact: int  # how many of these, the first ones, the law is linear in
    compared: bool
    """Whether some batch size was trained at several rates: else what a rate does can't be told from what it does."""

    def values(self, octaves: Vector, constants: Vector) -> Vector:
        """Return log S (…, c) for constants (…, t). octaves: log2 of batch size, rate and num_gpus (c, 3)."""
        batch, rate, workers = (octaves - self.middle).T
        level, critical, curvature, best, rule, doubling = (constants[..., place, None] for place in range(6))
        found = level + np.logaddexp(0.0, math.log(2) * (critical - batch)) + doubling * workers
        if not self.compared:
            return np.asarray(found)
        return np.asarray(found + np.exp(curvature) * (rate - best - rule * batch) ** 2)

    def slopes(self, octaves: Vector, constants: Vector) -> Vector:
        """Return those of log S over the free constants (c, f), at these constants (t,)."""
        batch, rate, workers = (octaves - self.middle).T
        _, critical, curvature, best, rule, _ = constants
        below, sharp = special.expit(math.log(2) * (critical - batch)), math.exp(curvature)
        off = rate - best - rule * batch
        columns = [
            np.ones(len(octaves)),
            math.log(2) * below,
            sharp * off**2,
            -2 * sharp * off,
            -2 * sharp * off * batch,
        ]
        return np.stack([*columns, workers], axis=1)[:, self.free]

    def with_free(self, constants: Vector) -> Vector:
        """Return all constants (t,) from the free ones (f,)."""
        found = self.usual.copy()
        found[self.free] = constants
        return found

    def apart(self, modes: Sequence[Vector]) -> list[Vector]:
        """Return the first of those modes that are the same but for what the law is linear in."""
        found: list[Vector] = []
        for mode in modes:
            if all((np.abs(mode - other) > ALIKE * BEFOREHAND)[self.free[self.exact :]].any() for other in found):
                found.append(mode)
        return found

    def near(self, octaves: Vector, constants: Vector) -> LinearLaw:
        """Make the law linear near these constants (t,)."""
        features = self.slopes(octaves, constants)
        off = (constants - self.usual)[self.free]
        return LinearLaw(
            features=features,
            offset=self.values(octaves, constants) - features @ off,
            prior=BEFOREHAND[self.free],
            exact=self.exact,
        )


@dataclass(frozen=True, kw_only=True)
class StepsToTarget:
    """The posterior of the steps to one target: draws of the law's constants, and of the cells about it."""

    law: Law
    constants: Vector  # (k, t), in the order of BEFOREHAND, about the middle of the places
    mean: Vector  # (c,), log S of the places
    draws: Vector  # (k, c)
    spread: Vector  # (k,), standard deviation of a cell about the law
    scatter: float  # standard deviation of a training about its cell, with its seed's effect
    worth: float  # how many equally weighted draws the draws are worth


@on_one_thread
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
        span=(float(octaves[:, 0].min()), float(octaves[:, 0].max())),
        usual=np.array([float(values[arrived].mean()), 0.0, math.log(LIKELY_CURVATURE), 0.0, LIKELY_RULE, 0.0]),
        compared=compared,
    )
    modes = _modes(law, octaves, values[arrived], arrivals.places[arrived])
    kept, found = arrived, None
    for _ in range(0 if np.isfinite(arrivals.values).all() else ROUNDS):
        found = shrink(
            values[kept],
            arrivals.places[kept],
            law.near(octaves, modes[0]),
            None if arrivals.seeds is None else arrivals.seeds[kept],
            extra=extra[kept],
            deviations=deviations,
            near=found,
        )
        modes = law.apart([_refined(law, octaves, found, mode) for mode in modes])
        values, extra = arrivals.seen(found.mean[arrivals.places], found.scatter)
        kept = np.full(len(values), True)
    parts = []
    for mode in modes:
        linear = law.near(octaves, mode)
        parts.append(
            shrink(values, arrivals.places, linear, arrivals.seeds, extra=extra, deviations=deviations, near=found)
        )
    return _drawn(law, octaves, parts, count, generator)


def _first_values(arrivals: Arrivals) -> tuple[Vector, Vector]:
    """Return the middles of the intervals that have one, the ends of the others."""
    known = np.isfinite(arrivals.values)
    low = np.where(np.isfinite(arrivals.low), arrivals.low, arrivals.high)
    high = np.where(np.isfinite(arrivals.high), arrivals.high, low)
    return np.where(known, arrivals.values, (low + high) / 2), np.where(known, arrivals.extra, (high - low) ** 2 / 12)


def _modes(law: Law, octaves: Vector, values: Vector, places: Places) -> list[Vector]:
    """Return the constants that fit best, and others that fit about as well.

    The searches start from a small and from a large critical batch, with the best rate below, in and above the middle.
    """
    measured, counts = np.unique(places, return_counts=True)
    means = np.bincount(places, values)[measured] / counts
    weights, trained, beforehand = np.sqrt(counts) / SCATTER, octaves[measured], BEFOREHAND[law.free]

    def residuals(free: Vector) -> Vector:
        off = weights * (law.values(trained, law.with_free(free)) - means)
        return np.concatenate([off, (free - law.usual[law.free]) / beforehand])

    def slopes(free: Vector) -> Vector:
        return np.vstack([weights[:, None] * law.slopes(trained, law.with_free(free)), np.diag(1 / beforehand)])

    batch, rate, _ = (octaves - law.middle).T
    bests = (rate.min() - 1, 0.0, rate.max() + 1) if law.compared else (0.0,)
    starts = [
        np.where(law.free == CRITICAL, critical, np.where(law.free == BEST, best, law.usual[law.free]))
        for critical, best in itertools.product((batch.min(), batch.max()), bests)
    ]
    fits = [optimize.least_squares(residuals, start, jac=slopes) for start in starts]
    fits.sort(key=lambda fit: float(fit.cost))
    near = [fit for fit in fits if fit.cost - fits[0].cost < FAR_WORSE]
    return law.apart([law.with_free(fit.x) for fit in near])


def _refined(law: Law, octaves: Vector, found: Shrunk, mode: Vector) -> Vector:
    """Return the constants near a mode that are likeliest by the exact density, at the likeliest point of the grid.

    Those that the law is linear in are the mode's.
    """
    level, alone, free = found.likeliest, np.zeros(1, dtype=np.int64), law.free[law.exact :]

    def loss(off: Vector) -> tuple[float, Vector]:
        constants = law.usual.copy()
        constants[free] += off
        values, precision = law.values(octaves, constants[None]), BEFOREHAND[free] ** -2.0
        density, half = level.given(values, alone)
        slopes = law.slopes(octaves, constants)[:, law.exact :]
        return (
            float(precision @ off**2 / 2 - density[0]),
            precision * off - level.slope(values, alone, half)[0] @ slopes,
        )

    refined = mode.copy()
    start, furthest = (mode - law.usual)[free], FURTHEST_OFF * BEFOREHAND[free]
    bounds = optimize.Bounds(np.minimum(start, -furthest), np.maximum(start, furthest))
    fit = optimize.minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": MOST_STEPS})
    refined[free] = law.usual[free] + fit.x
    return refined


ALIKE, FAR_WORSE = 0.05, 10.0
"""Modes are the same up to so many standard deviations beforehand; one so much less likely is none."""
MOST_STEPS, FURTHEST_OFF = 40, 100.0
"""Of the search for a mode; and how far it goes, in standard deviations beforehand."""


def _drawn(
    law: Law, octaves: Vector, parts: Sequence[Shrunk], count: int, generator: np.random.Generator
) -> StepsToTarget:
    """Draw from the proposals, and choose among the draws by their weights."""
    chance = np.random.default_rng(0)
    target = _Target.of(law, octaves, parts)
    found, points, weights = _weighted(target, _proposals(target, parts), count, chance)
    worth = _worth(weights)
    # systematic resampling: a draw is there as often as its weight says, give or take one
    steps = (np.arange(count) + chance.random()) / count
    chosen = np.minimum(np.searchsorted(np.cumsum(weights) / weights.sum(), steps), len(weights) - 1)
    found, points = found[chosen], points[chosen]
    draws, made, mean = np.empty((count, len(octaves))), np.empty((count, len(law.usual))), np.zeros(len(octaves))
    spread = np.empty(count)
    for level, places, at in target.by_level(points):
        constants = target.constants(found[places])
        values, linear = law.values(octaves, constants), parts[0].linear[:, : level.apart]
        half = level.given(values, at)[1]
        likely, both = (level.shared(each, at) for each in (half, half + chance.standard_normal(half.shape)))
        mean += (values + likely @ linear.T + level.cells(values, at, likely)).sum(axis=0) / count
        own = level.cells(values, at, both)
        own += chance.standard_normal(own.shape) / np.sqrt(level.precision[at])
        draws[places] = values + both @ linear.T + own
        constants[:, law.free[: law.exact]] += both[:, level.apart - law.exact :]
        made[places], spread[places] = constants, level.spreads[at]
    mixed = generator.permutation(count)
    return StepsToTarget(
        law=law,
        constants=made[mixed],
        mean=mean,
        draws=draws[mixed],
        spread=spread[mixed],
        scatter=float(np.average([part.scatter for part in parts], weights=_shares(parts))),
        worth=worth,
    )


def _shares(parts: Sequence[Shrunk]) -> Vector:
    """Return how likely each mode is."""
    evidence = np.array([part.evidence for part in parts])
    return np.asarray(special.softmax(evidence))


def _worth(weights: Vector) -> float:
    """Return how many equally weighted draws have the same precision (Kish 1965)."""
    return float(weights.sum() ** 2 / (weights**2).sum())


@dataclass(frozen=True, kw_only=True)
class _Target:
    """The exact density of the constants that the law is not linear in and of the points of the grid.

    off (k, b): these constants, less what is usual.
    """

    law: Law
    octaves: Vector
    levels: list[NoiseLevel]
    keys: list[tuple[float, float, float]]  # of the points: the place of each in the grid
    where: Places  # (h, 2), its level, and its place there

    @classmethod
    def of(cls, law: Law, octaves: Vector, parts: Sequence[Shrunk]) -> "_Target":
        """Join the grids of all modes."""
        levels = [level for part in parts for level in part.levels]
        found = {key: (index, at) for index, level in enumerate(levels) for at, key in enumerate(level.keys)}
        return cls(law=law, octaves=octaves, levels=levels, keys=list(found), where=np.array(list(found.values())))

    def by_level(self, points: Places) -> Iterator[tuple[NoiseLevel, Places, Places]]:
        """Yield some draws of one level at a time: it, their places, and their points in it."""
        of_level, at = self.where[points].T
        for index in np.unique(of_level).tolist():
            places = np.flatnonzero(of_level == index)
            for some in np.array_split(places, math.ceil(len(places) * len(self.octaves) / MOST_VALUES)):
                yield self.levels[index], some, at[some]

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
        """Return the log density of draws, up to a constant."""
        found = np.empty(len(off))
        for level, places, at in self.by_level(points):
            found[places] = level.given(self.law.values(self.octaves, self.constants(off[places])), at)[0]
        return found - ((off / self.spread) ** 2).sum(axis=1) / 2


@dataclass(frozen=True, kw_only=True)
class _Proposal:
    """A t distribution of the constants at each point of the grid."""

    shares: Vector  # (h,), how often each point is proposed
    middles: Vector  # (h, b)
    lowers: Vector  # (h, b, b), lower · lowerᵀ is the precision

    def draw(self, count: int, generator: np.random.Generator) -> tuple[Vector, Places]:
        """Return draws and their points."""
        points = np.repeat(np.arange(len(self.shares)), generator.multinomial(count, self.shares / self.shares.sum()))
        chance = generator.standard_normal((count, self.middles.shape[1]))
        chance *= np.sqrt(TAILS / generator.chisquare(TAILS, count))[:, None]
        off = np.linalg.solve(np.swapaxes(self.lowers, 1, 2)[points], chance[..., None])[..., 0]
        return self.middles[points] + off, points

    def density(self, off: Vector, points: Places) -> Vector:
        """Return the density of draws, up to a constant that all proposals share."""
        scales = self.shares * np.abs(np.linalg.det(self.lowers))
        standard = np.einsum("kb,kbd->kd", off - self.middles[points], self.lowers[points])
        return np.asarray(scales[points] * (1 + (standard**2).sum(axis=1) / TAILS) ** (-(TAILS + off.shape[1]) / 2))


def _proposals(target: _Target, parts: Sequence[Shrunk]) -> list[_Proposal]:
    """Return what the linear law says near each mode."""
    places = {key: index for index, key in enumerate(target.keys)}
    size, found = len(target.spread), []
    for share, part in zip(_shares(parts).tolist(), parts, strict=True):
        shares, middles = np.zeros(len(places)), np.zeros((len(places), size))
        lowers = np.tile(np.eye(size), (len(places), 1, 1))
        for level in part.levels:
            of_level = [places[key] for key in level.keys]
            shares[of_level] = share * level.weights
            lowers[of_level] = level.lower[:, level.apart :, level.apart :]
            middles[of_level] = level.means[:, level.apart :]
        found.append(_Proposal(shares=shares, middles=middles, lowers=lowers))
    return found


def _weighted(
    target: _Target, first: Sequence[_Proposal], count: int, generator: np.random.Generator
) -> tuple[Vector, Places, Vector]:
    """Draw from the first proposals, and then from ones of the shape that the weighted draws so far have.

    Returns: draws, points and weights.
    """
    shares, of_points = np.array([each.shares.sum() for each in first]), np.sum([each.shares for each in first], axis=0)
    rounds = [list(first)]
    counts = [count // PROPOSALS] * MOST_PROPOSALS
    off, points, density = np.empty((0, len(target.spread))), np.empty(0, dtype=np.int64), np.empty(0)
    for made in counts:
        some = generator.multinomial(made, shares / shares.sum()) if len(rounds) == 1 else [made]
        drawn = [each.draw(number, generator) for each, number in zip(rounds[-1], some, strict=True)]
        new, at = np.vstack([each for each, _ in drawn]), np.concatenate([each for _, each in drawn])
        off, points = np.vstack([off, new]), np.concatenate([points, at])
        density = np.append(density, target.density(new, at))
        proposed = sum(
            number * each.density(off, points)
            for number, some_proposals in zip(counts, rounds, strict=False)
            for each in some_proposals
        )
        logs = density - np.log(proposed)
        logs -= logs.max()
        if len(rounds) >= PROPOSALS and _worth(np.exp(logs)) >= LEAST_DRAWS:
            break
        rounds.append([_next(target, of_points, off, points, logs)])
    return off, points, np.exp(logs)


def _next(target: _Target, shares: Vector, off: Vector, points: Places, logs: Vector) -> _Proposal:
    """Return the proposal that has mean and covariance of weighted draws, and their points as often as the first's."""
    weights, enough = np.exp(logs), min(LEAST_SHAPE, len(logs) / 4)
    while _worth(weights) < enough:
        logs = FLATTER * logs
        weights = np.exp(logs)
    weights /= weights.sum()
    middle = weights @ off
    covariance = (off - middle).T @ (weights[:, None] * (off - middle)) + np.diag((LEAST_WIDTH * target.spread) ** 2)
    lower = np.linalg.cholesky(np.linalg.inv(covariance))
    of_points = (shares / shares.sum() + np.bincount(points, weights, minlength=len(shares))) / 2
    return _Proposal(
        shares=of_points,
        middles=np.tile(middle, (len(shares), 1)),
        lowers=np.tile(lower, (len(shares), 1, 1)),
    )


LEAST_WIDTH = 1e-6
"""Least standard deviation of a proposal, over that beforehand."""
