"""The law of a step's time that is nearest to timings, its coefficients zero or above.

They are found by steps of linear least squares between logarithms (Gauss–Newton), for several draws of the timings at
once.

Shapes: n places measured, c coefficients, l draws.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize

from scalestudy.experiments.analysis.laws.shrinkage import Places, Vector
from scalestudy.experiments.analysis.laws.step_terms import (
    COEFFICIENTS,
    COMPUTE,
    LEAST_SECONDS,
    OVERLAPS,
    Place,
    features_of,
    parts,
    step,
    told_apart,
)

LEAST_SHARE = 0.02
"""The least share of a step that a part counts for where its slope is taken, and at the start of a fit."""
PROGRESS = 1e-7
"""The share of a sum of squares by which a step has to make it less."""
OVERLAP_SPREAD = math.log(OVERLAPS[-1]) / math.sqrt(12)
"""Standard deviation of log gamma beforehand."""
MOST_STEPS = 30
STRIDES = (1.0, 0.5, 0.2, 0.05)
MOST_LEFT_OUT = 40
"""How many places are held out one by one at most, evenly spread."""


@dataclass(frozen=True, kw_only=True)
class Timings:
    """What laws are fitted to."""

    features: Vector  # (c, n), zero for coefficients that the places cannot tell apart
    logs: Vector  # of seconds (n,), each a mean over repeats
    weights: Vector  # of the squares (n,)
    data: Vector  # seconds of T_data (n,)

    @classmethod
    def of(cls, places: Sequence[Place], logs: Vector, weights: Vector) -> "Timings":
        """Return the timings of these places."""
        columns = zip(*((each.num_gpus, each.per_worker_batch, each.nodes) for each in places), strict=True)
        wanted = np.array([name in told_apart(places) for name in COEFFICIENTS], dtype=float)
        return cls(
            features=features_of(*columns) * wanted[:, None],
            logs=logs,
            weights=weights,
            data=np.array([each.data_seconds for each in places]),
        )

    @property
    def used(self) -> Vector:
        """Whether a law of these timings has a coefficient (c,)."""
        return np.asarray(self.features.any(axis=1))

    def without(self, index: int) -> "Timings":
        """Return the timings without one place."""
        return Timings(
            features=np.delete(self.features, index, axis=1),
            logs=np.delete(self.logs, index),
            weights=np.delete(self.weights, index),
            data=np.delete(self.data, index),
        )

    def seconds(self, law: Vector, gamma: ArrayLike) -> Vector:
        """Return the seconds of a step by a law (c,) at each place (n,), or by laws (l, c), with gammas (l, 1)."""
        return step(law, self.features, gamma) + self.data

    def squares(self, law: Vector, gamma: float) -> float:
        """Return the weighted sum of squares around a law."""
        off = self.logs - np.log(self.seconds(law, gamma))
        return float(self.weights @ off**2)

    def slopes(self, laws: Vector, gamma: ArrayLike) -> Vector:
        """Return the slopes of the logarithm of the seconds over the coefficients: (c, n), or (l, c, n) of laws."""
        gradient, sync = parts(laws, self.features)
        whole = np.maximum(step(laws, self.features, gamma), LEAST_SECONDS)
        power, compute = np.asarray(gamma) - 1, len(COMPUTE)
        shares = (gradient / whole) ** power, np.maximum(sync / whole, LEAST_SHARE**2) ** power
        slopes = np.concatenate(
            [
                self.features[:compute] * shares[0][..., None, :],
                self.features[compute:] * shares[1][..., None, :],
            ],
            axis=-2,
        )
        return np.asarray(slopes / (whole + self.data)[..., None, :])

    def nearest(self, gamma: float, start: Vector) -> Vector:
        """Fit the coefficients (c,)."""
        return self.nearest_to(self.logs[None], self.weights[None], np.array([gamma]), start[None], PROGRESS)[0][0]

    def nearest_to(
        self, logs: Vector, weights: Vector, gammas: Vector, start: Vector, progress: float, *, overlap: bool = False
    ) -> tuple[Vector, Vector]:
        """Fit coefficients (l, c) to logarithms in place of the timings' (l, n), with weights (l, n) and gammas (l,).

        progress: the share of a sum of squares by which a step makes it less, or it is the last. overlap: whether the
        gammas are fitted too: beforehand their logarithms scatter by `OVERLAP_SPREAD` about the given ones.

        Returns:
            The coefficients and the gammas.
        """
        count, beforehand = start.shape[1], np.log(gammas)
        sure = 1 / OVERLAP_SPREAD if overlap else 0.0

        def squares(laws: Vector, which: Places) -> Vector:
            off = logs[which] - np.log(self.seconds(laws[:, :count], np.exp(laws[:, count:])))
            prior = sure**2 * (laws[:, count] - beforehand[which]) ** 2
            return np.asarray((weights[which] * off**2).sum(axis=1) + prior)

        found, which = np.column_stack([start, beforehand]), np.arange(len(logs))
        least = squares(found, which)
        for _ in range(MOST_STEPS):
            laws, roots = found[which], np.sqrt(weights[which])
            gamma = np.exp(laws[:, count:])
            rows = np.zeros((len(which), logs.shape[1] + 1, count + 1))
            rows[:, :-1, :count] = self.slopes(laws[:, :count], gamma).mT
            rows[:, -1, count] = sure
            if overlap:
                rows[:, :-1, count] = self._slope_of_overlap(laws[:, :count], gamma)
            off = logs[which] - np.log(self.seconds(laws[:, :count], gamma)) + (rows[:, :-1] @ laws[..., None])[..., 0]
            rows[:, :-1] *= roots[..., None]
            right = np.column_stack([roots * off, sure * beforehand[which]])
            ahead = np.array([_least_squares(*each) for each in zip(rows, right, strict=True)])
            ahead[:, count] = np.minimum(ahead[:, count], math.log(OVERLAPS[-1])) if overlap else laws[:, count]
            left = np.arange(len(which))
            for stride in STRIDES:
                tried = laws[left] + stride * (ahead - laws)[left]
                less = squares(tried, which[left])
                nearer = less < least[which[left]] * (1 - progress)
                found[which[left[nearer]]], least[which[left[nearer]]] = tried[nearer], less[nearer]
                left = left[~nearer]
            which = np.delete(which, left)
            if not len(which):
                break
        return found[:, :count], np.exp(found[:, count])

    def _slope_of_overlap(self, laws: Vector, gamma: Vector) -> Vector:
        """Return the slopes of the logarithm of the seconds over that of gamma (l, n)."""
        gradient, sync = (np.maximum(each, LEAST_SECONDS) for each in parts(laws, self.features))
        whole = step(laws, self.features, gamma)
        lesser = (np.minimum(gradient, sync) / np.maximum(gradient, sync)) ** gamma
        slope = lesser * np.log(np.maximum(lesser, LEAST_SECONDS)) / (1 + lesser) - np.log1p(lesser)
        return np.asarray(slope / gamma * whole / (whole + self.data))

    def by_overlap(self) -> dict[float, Vector]:
        """Fit the coefficients for each gamma. Each fit begins at the coefficients of the one before."""
        seconds = np.maximum(np.exp(self.logs) - self.data, LEAST_SHARE * np.exp(self.logs))
        law = _least_squares((self.features / seconds).T, np.ones(len(seconds)))
        several = self.features[len(COMPUTE) :].any()
        found: dict[float, Vector] = {}
        for gamma in OVERLAPS if several else OVERLAPS[:1]:
            law = found[gamma] = self.nearest(gamma, law)
        return found

    def cross_validated_errors(self, law: Vector, gamma: float) -> list[float]:
        """Return relative errors of a law's terms at places that they were not fitted to, one held out at a time.

        A place without which the terms can't be told apart is not held out.
        """
        errors, count, terms = [], len(self.logs), law > 0
        only = replace(self, features=self.features * terms[:, None])
        for index in sorted({round(i) for i in np.linspace(0, count - 1, min(count, MOST_LEFT_OUT))}):
            others = only.without(index)
            columns = others.features[terms] / np.linalg.norm(self.features[terms], axis=1)[:, None]
            if count - 1 <= terms.sum() or np.linalg.matrix_rank(columns, tol=1e-6) < terms.sum():
                continue
            found = others.nearest(gamma, law)
            seconds = float(step(found, self.features[:, index], gamma) + self.data[index])
            errors.append(abs(seconds / math.exp(self.logs[index]) - 1))
        return errors


def _least_squares(matrix: Vector, right: Vector) -> Vector:
    """Return the x (c,) of zero or above for which matrix (n, c) · x is nearest to the right side (n,)."""
    if len(matrix) > 2 * matrix.shape[1]:  # the same squares, up to a constant, in fewer rows
        rotation, matrix = np.linalg.qr(matrix)
        right = rotation.T @ right
    return np.asarray(optimize.nnls(matrix, right, maxiter=MOST_TURNS)[0])


MOST_TURNS = 1000
