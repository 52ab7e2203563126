"""Seconds of a step over workers, nodes and batch: one law, and the draws of all that is asked of it.

log seconds of a place = log of the law (`step_terms`) + deviation of the place + noise, the last two normal. Their
standard deviations, and gamma, are weighted by their marginal likelihood with the law made linear near its best fit
(`shrinkage`). Each draw takes one of these, adds noise and deviations to the timings, and from there on finds the law
that is nearest to them: coefficients that may be zero have no normal posterior (randomise, then optimise: Bardsley,
Solonen, Haario and Laine 2014). Given the law, a place's own deviation is known in closed form.

Where nothing was timed, a place deviates from the law as the others do.

Shapes: n places measured, c coefficients, l laws, k draws.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy import special

from scalestudy.experiments.analysis.laws.nearest_step_law import Timings
from scalestudy.experiments.analysis.laws.one_thread import on_one_thread
from scalestudy.experiments.analysis.laws.outliers import ENOUGH_REPEATS, clipped, clipped_repeats, without_outliers
from scalestudy.experiments.analysis.laws.shrinkage import Deviations, LinearLaw, Places, Shrunk, shrink
from scalestudy.experiments.analysis.laws.step_terms import (
    OVERLAPS,
    Place,
    StepLaws,
    Vector,
    features_of,
)

DRAWS = 2000
LAWS, FEWER_LAWS, MANY_PLACES = 500, 100, 200
"""Laws, each of which has several draws, and how many of them from so many places on, which tell the law well."""
LIKELY_DEVIATION, DEVIATION_FACTOR = 0.02, 1.0
"""Deviations of places from the law before any is measured: median, and standard deviation of its logarithm."""
MISFIT_LEVEL = 0.99
"""Quantile of F above which places differ from the law by more than their repeats explain."""
LEAST_NOISE = 1e-4
"""Least standard deviation of repeats, as a share of their value, that a law is judged by."""
LIKELY_NOISE = 0.05
"""The noise of a timing before any is measured, median."""
LEAST_PART = 0.03
"""Least share of a step that a part counts for, so that a part fitted to almost nothing stays uncertain."""
ENOUGH = 1e-3
"""The share of a sum of squares by which a step has to make it less in the fit of a draw."""
ROUNDS = 3
"""How often timings that only the law shows to be far off are clipped anew."""


@dataclass(frozen=True, kw_only=True)
class StepSeconds:
    """The posterior of the seconds of a step."""

    places: tuple[Place, ...]
    apart: Vector  # (n,), whether a place stands for itself: no law is fitted to it, nor it drawn to one
    means: Vector  # (n,), of the logarithms of seconds
    counts: Vector  # (n,), of repeats
    timings: Timings  # of the places that are not apart
    likeliest: Vector  # the coefficients (c,) that are nearest to the timings, with the likeliest gamma
    likeliest_gamma: float
    misfit: bool  # whether places differ from that law by more than their repeats explain
    laws: StepLaws
    spread: Vector  # (l,), standard deviation of a place's deviation
    noise: Vector  # (l,), of a timing
    chance: int  # the seed of what is drawn

    @property
    def lawful(self) -> list[Place]:
        """The places that are not apart."""
        return [place for place, apart in zip(self.places, self.apart, strict=True) if not apart]

    @cached_property
    def features(self) -> Vector:
        """(c, n), of all places."""
        return features_of(
            *zip(*((each.num_gpus, each.per_worker_batch, each.nodes) for each in self.places), strict=True)
        )

    @cached_property
    def _given(self) -> tuple[Vector, Vector]:
        """The logarithms of the seconds at the places, given each law: their means and standard deviations (l, n)."""
        law = np.log(self.laws.step_seconds(self.features) + [each.data_seconds for each in self.places])
        variance = self.noise[:, None] ** 2 / self.counts
        weight = np.where(self.apart, 1.0, self.spread[:, None] ** 2 / (self.spread[:, None] ** 2 + variance))
        return law + weight * (self.means - law), np.sqrt(weight * variance)

    @cached_property
    def mean(self) -> Vector:
        """(n,), of the logarithms of the seconds at the places."""
        return np.asarray(self._given[0].mean(axis=0))

    @cached_property
    def draws(self) -> Vector:
        """(k, n), of the logarithms of the seconds at the places, drawn together."""
        middle, deviation = (_repeated(each) for each in self._given)
        generator = np.random.default_rng([self.chance, 1])
        return np.asarray(middle + deviation * generator.standard_normal(middle.shape))

    def at(self, num_gpus: int, per_worker_batch: float, *, nodes: int = 1, data_seconds: float = 0.0) -> Vector:
        """Draw the logarithm of the seconds of a step at a place where none was timed (k,)."""
        generator = np.random.default_rng([self.chance, num_gpus, nodes, round(1000 * per_worker_batch)])
        law = self.laws.step_seconds(features_of(num_gpus, per_worker_batch, nodes)) + data_seconds
        return np.asarray(_repeated(np.log(law)) + _repeated(self.spread) * generator.standard_normal(DRAWS))

    @cached_property
    def off_law(self) -> Vector:
        """(n,), the logarithms of the seconds as measured over those by the likeliest law."""
        law = StepLaws(coefficients=self.likeliest[None], gamma=np.array([self.likeliest_gamma]))
        seconds = law.step_seconds(self.features)[0] + [each.data_seconds for each in self.places]
        return np.asarray(self.means - np.log(seconds))

    def cross_validated_errors(self) -> list[float]:
        """Return relative errors of the law at places that it was not fitted to (`Timings.cross_validated_errors`)."""
        return self.timings.cross_validated_errors(self.likeliest, self.likeliest_gamma)


@on_one_thread
def step_seconds(places: Sequence[Place], *, apart: Sequence[bool] = (), chance: int = 0) -> StepSeconds:
    """Draw the seconds of a step.

    Args:
        places: one or more.
        apart: of each place, whether no law holds for its timings; none: a law holds for all.
        chance: the seed of the draws.
    """
    alone = np.array(apart, dtype=bool) if any(apart) else np.zeros(len(places), dtype=bool)
    logs = clipped_repeats(without_outliers([np.log(place.seconds) for place in places]))
    counts = np.array([len(each) for each in logs], dtype=float)
    under = np.flatnonzero(~alone).tolist()
    lawful, told = [places[index] for index in under], [logs[index] for index in under]
    values, where = np.concatenate(told), np.repeat(np.arange(len(told)), list(map(len, told)))
    timings = Timings.of(lawful, np.array([each.mean() for each in told]), counts[under])
    fits = timings.by_overlap()
    for _ in range(ROUNDS):
        gamma = min(fits, key=lambda each: timings.squares(fits[each], each))
        clear = _clipped(values, where, timings, fits[gamma], gamma)
        means = np.bincount(where, clear) / counts[under]
        if np.allclose(means, timings.logs, rtol=0, atol=LEAST_NOISE):
            break
        timings = replace(timings, logs=means)
        fits = {each: timings.nearest(each, law) for each, law in fits.items()}
    deviations = Deviations.apart(len(lawful), likely=LIKELY_DEVIATION, factor=DEVIATION_FACTOR)
    found = {
        each: shrink(clear, where, _near(timings, law, each), deviations=deviations, likely_noise=LIKELY_NOISE)
        for each, law in fits.items()
    }
    likeliest, likeliest_gamma = _likeliest(timings, fits, found)
    generator = np.random.default_rng(chance)
    laws, spread, noise = _drawn(timings, fits, found, generator)
    means = np.array([each.mean() for each in logs])
    means[under] = timings.logs
    return StepSeconds(
        places=tuple(places),
        apart=alone,
        means=means,
        counts=counts,
        timings=timings,
        likeliest=likeliest,
        likeliest_gamma=likeliest_gamma,
        misfit=_misfits(timings, likeliest, likeliest_gamma, clear - timings.logs[where]),
        laws=laws,
        spread=spread,
        noise=noise,
        chance=chance,
    )


def _clipped(values: Vector, where: Places, timings: Timings, law: Vector, gamma: float) -> Vector:
    """Return the timings (of repeats), clipped where only the law shows that they are far off (`outliers`)."""
    fitted = np.log(timings.seconds(law, gamma))[where]
    lone = np.bincount(where)[where] < ENOUGH_REPEATS
    return np.where(lone, fitted + clipped(values - fitted, int((law > 0).sum())), values)


def _near(timings: Timings, law: Vector, gamma: float) -> LinearLaw:
    """Make the law linear in the logarithms of its coefficients near these (c,)."""
    slopes = timings.slopes(law, gamma)[timings.used]
    shares = slopes.mean(axis=1)
    least = LEAST_PART / np.maximum(shares, np.finfo(float).tiny)
    features = (slopes * np.maximum(law[timings.used], least)[:, None]).T
    return LinearLaw(features=features, offset=np.log(timings.seconds(law, gamma)), prior=np.ones(features.shape[1]))


def _likeliest(timings: Timings, fits: dict[float, Vector], found: dict[float, Shrunk]) -> tuple[Vector, float]:
    """Return the coefficients (c,) and the gamma that fit best, from the likeliest gamma that was tried."""
    start = max(found, key=lambda each: found[each].evidence)
    weights = timings.weights / found[start].noise ** 2
    laws, gammas = timings.nearest_to(
        timings.logs[None], weights[None], np.array([start]), fits[start][None], ENOUGH, overlap=len(fits) > 1
    )
    return laws[0], float(gammas[0])


def _drawn(
    timings: Timings, fits: dict[float, Vector], found: dict[float, Shrunk], generator: np.random.Generator
) -> tuple[StepLaws, Vector, Vector]:
    """Draw laws, with the standard deviations of deviations and of noise that they hold with (l,)."""
    gammas = list(fits)
    chances = special.softmax([found[each].evidence for each in gammas])
    parts = [found[each] for each in gammas]
    weights = np.concatenate([chance * part.weights for part, chance in zip(parts, chances, strict=True)])
    count = LAWS if len(timings.logs) < MANY_PLACES else FEWER_LAWS
    chosen = generator.choice(len(weights), count, p=weights / weights.sum())
    spread = np.concatenate([part.spreads for part in parts])[chosen]
    noise = np.concatenate([part.noises for part in parts])[chosen]
    variance = spread[:, None] ** 2 + noise[:, None] ** 2 / timings.weights
    logs = timings.logs + np.sqrt(variance) * generator.standard_normal(variance.shape)
    tried = np.repeat(range(len(gammas)), [len(part.weights) for part in parts])[chosen]
    overlaps, starts = np.array(gammas)[tried], np.array(list(fits.values()))[tried]
    if several := len(gammas) > 1:  # those between the ones that were tried are as likely
        place = np.searchsorted(OVERLAPS, overlaps) + generator.uniform(-0.5, 0.5, count)
        overlaps = np.exp(np.interp(place, range(len(OVERLAPS)), np.log(OVERLAPS)))
    laws, overlaps = timings.nearest_to(logs, 1 / variance, overlaps, starts, ENOUGH, overlap=several)
    return StepLaws(coefficients=laws, gamma=overlaps), spread, noise


def _misfits(timings: Timings, law: Vector, gamma: float, within: Vector) -> bool:
    """Whether places are off a law by more than their repeats explain (F test). within: repeats about their place."""
    constants = int((law > 0).sum()) + (gamma > OVERLAPS[0])
    spare, repeats = len(timings.logs) - constants, len(within) - len(timings.logs)
    if spare < 1 or repeats < 1:
        return False
    least = max(float((within**2).sum()) / repeats, LEAST_NOISE**2)
    return bool(timings.squares(law, gamma) / spare / least > special.fdtri(spare, repeats, MISFIT_LEVEL))


def _repeated(each: Vector) -> Vector:
    """Repeat what holds for each law once for each of its draws."""
    return np.repeat(each, DRAWS // len(each), axis=0)
