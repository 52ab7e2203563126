"""The law of a step's time that is nearest to timings, and the choice of its terms.

For one overlap the nearest coefficients, zero or above, are found by steps of linear least squares (Gauss–Newton). A
term stays if it is worth a further constant (Schwarz 1978), an overlap if it fits better than none (Akaike 1974).

Shapes: n places measured, c coefficients.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import optimize

from scalestudy.experiments.analysis.laws.least_squares import LEAST_NOISE, Vector
from scalestudy.experiments.analysis.laws.outliers import without_outliers
from scalestudy.experiments.analysis.laws.step_terms import (
    ACROSS,
    COEFFICIENTS,
    COMPUTE,
    LEAST_SECONDS,
    OVERLAPS,
    WITHIN,
    Constants,
    Place,
    features_of,
    parts,
    step,
    told_apart,
)

LEAST_SHARE = 0.02
"""The least share of a step that a part takes at the start of a fit."""
WORTH_AN_OVERLAP = 2.0
"""How many variances of a timing the best overlap has to take off the sum of squares (Akaike 1974)."""
LEAST_PROGRESS = 1e-7
MOST_STEPS = 30
SURE = 100.0
"""Weight of a place that counts as known."""


@dataclass(frozen=True, kw_only=True)
class Timings:
    """The timings that laws are fitted to."""

    features: Vector  # (c, n), zero for coefficients that the places cannot tell apart
    logs: Vector  # of seconds (n,), each a mean over repeats
    repeats: Vector  # how many each mean has (n,)
    data: Vector  # seconds of T_data (n,)
    within: float  # sum of squares of repeats around their mean
    spare: int  # its degrees of freedom

    @classmethod
    def of(cls, places: Sequence[Place]) -> "Timings":
        """Return the means of the places' repeats, without outliers."""
        columns = zip(*((each.num_gpus, each.per_worker_batch, each.nodes) for each in places), strict=True)
        logs = without_outliers([np.log(place.seconds) for place in places])
        timings = cls(
            features=features_of(*columns),
            logs=np.array([each.mean() for each in logs]),
            repeats=np.array([len(each.seconds) for each in places], dtype=float),
            data=np.array([each.data_seconds for each in places]),
            within=sum(float(((each - each.mean()) ** 2).sum()) for each in logs),
            spare=sum(len(each) - 1 for each in logs),
        )
        return timings.only(told_apart(places))

    @property
    def names(self) -> tuple[str, ...]:
        """The coefficients that laws of these timings may have."""
        return tuple(name for name, row in zip(COEFFICIENTS, self.features, strict=True) if row.any())

    def only(self, names: Sequence[str]) -> "Timings":
        """Return the timings for laws of these coefficients alone."""
        wanted = np.array([name in names for name in COEFFICIENTS], dtype=float)
        return replace(self, features=self.features * wanted[:, None])

    def beside(self, features: Vector, seconds: float, data_seconds: float) -> "Timings":
        """Return the timings with one more place (c,) that counts as known."""
        return replace(
            self,
            features=np.column_stack([self.features, features]),
            logs=np.append(self.logs, math.log(seconds)),
            repeats=np.append(self.repeats, SURE**2),
            data=np.append(self.data, data_seconds),
        )

    def without(self, index: int) -> "Timings":
        """Return the timings without one place."""
        return replace(
            self,
            features=np.delete(self.features, index, axis=1),
            logs=np.delete(self.logs, index),
            repeats=np.delete(self.repeats, index),
            data=np.delete(self.data, index),
        )

    def squares(self, coefficients: Vector, gamma: float) -> float:
        """Return the sum of squares around a law."""
        off = self.logs - np.log(step(coefficients, self.features, gamma) + self.data)
        return float(self.repeats @ off**2)

    def nearest(self, gamma: float, start: Vector) -> Vector:
        """Fit the coefficients (c,), zero or above, by least squares with the Gauss–Newton method."""
        found, squares = start, self.squares(start, gamma)
        weights = np.sqrt(self.repeats)
        for _ in range(MOST_STEPS):
            gradient, sync = parts(found, self.features)
            whole = np.maximum(step(found, self.features, gamma), LEAST_SECONDS)
            seconds = whole + self.data
            slopes = np.concatenate(
                [
                    self.features[: len(COMPUTE)] * (gradient / whole) ** (gamma - 1),
                    self.features[len(COMPUTE) :] * np.maximum(sync / whole, LEAST_SHARE**2) ** (gamma - 1),
                ]
            )
            slopes *= weights / seconds
            ahead = optimize.nnls(slopes.T, weights * (self.logs - np.log(seconds)) + found @ slopes)[0]
            for share in (1.0, 0.5, 0.2, 0.05):
                tried = found + share * (ahead - found)
                if (less := self.squares(tried, gamma)) < squares * (1 - LEAST_PROGRESS):
                    break
            else:
                return found
            found, squares = tried, less
        return found

    def by_overlap(self, overlaps: Sequence[float] = OVERLAPS) -> dict[float, Vector]:
        """Fit the coefficients for each gamma. Each fit begins at the coefficients of the one before."""
        seconds = np.maximum(np.exp(self.logs) - self.data, LEAST_SHARE * np.exp(self.logs))
        law: Vector = optimize.nnls((self.features / seconds).T, np.ones(len(seconds)))[0]
        found: dict[float, Vector] = {}
        for gamma in overlaps:
            law = found[gamma] = self.nearest(gamma, law)
        return found


def choose(timings: Timings, *, overlap: bool, fewest: bool = True) -> tuple[tuple[str, ...], Constants]:
    """Choose a law's constants; return their names, and values near the best.

    overlap: whether gamma is one of them; else it is 1. fewest: whether to keep only those that are worth their place;
    else as many as the places can fix.
    """
    laws = timings.by_overlap(OVERLAPS if overlap else OVERLAPS[:1])
    squares = {gamma: timings.squares(law, gamma) for gamma, law in laws.items()}
    nearest = min(squares, key=lambda gamma: squares[gamma])
    spare = len(timings.logs) - int((laws[nearest] > 0).sum()) + timings.spare
    variance = max((squares[nearest] + timings.within) / max(spare, 1), LEAST_NOISE**2)
    gamma = next(each for each in laws if squares[each] <= squares[nearest] + WORTH_AN_OVERLAP * variance)
    law, least, allowed = laws[gamma], squares[gamma], {*timings.names}

    def needed(names: tuple[str, ...]) -> bool:
        return all({*names} & {*group} for group in (WITHIN, ACROSS) if allowed & {*group})

    always = {"alpha_c", "beta_c", WITHIN[0], ACROSS[0]} & allowed
    names = tuple(name for name, value in zip(COEFFICIENTS, law, strict=True) if value > 0 or name in always)
    most, worth = len(timings.logs) - 1 - overlap, math.log(float(timings.repeats.sum())) * variance
    while True:
        fewer = [
            (timings.only(rest).nearest(gamma, law * [name in rest for name in COEFFICIENTS]), rest)
            for rest in (tuple(other for other in names if other != name) for name in names[2:])
            if needed(rest)
        ]
        if not fewer:
            break
        found, rest = min(fewer, key=lambda each: timings.squares(each[0], gamma))
        more = timings.squares(found, gamma)
        if (not fewest or more > least + worth) and len(names) <= most:
            break
        law, names, least = found, rest, more
    values = dict(zip(COEFFICIENTS, law.tolist(), strict=True))
    return (*names, *(("gamma",) if overlap else ())), Constants(**values, gamma=gamma)
