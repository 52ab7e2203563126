"""Fits of positive laws to positive measurements, with intervals and what they identify.

Measured times and rates scatter in proportion to their size, so residuals are taken between logarithms, and fits step
in the logarithms of the parameters. Intervals are t intervals from the covariance (docs/formulas.md §4). They have the
coverage that they promise (`tests.bench.laws`); bootstraps of a few repeats cover too little. One measurement that is
far off hardly moves a fit (`outliers`).

Shapes: n places measured, p parameters.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special

from scalestudy.experiments.analysis.laws.outliers import ENOUGH_REPEATS, clipped, without_outliers

Vector = NDArray[np.float64]
Model = Callable[[Vector], Vector]
"""Parameters (p,) to what they predict at each place (n,), all above zero."""

LEVEL = 0.90
"""Nominal coverage of the intervals."""
ENDS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
"""Quantiles of draws that are the ends of an interval."""
ENDS_AND_MEDIAN = (ENDS[0], 0.5, ENDS[1])
WIDEST_RATIO = 10.0
"""Upper over lower limit. From this ratio on, a parameter is not identified: its order of magnitude is unknown."""
NEGLIGIBLE = 0.1
"""A parameter that may be zero is known well enough if half its interval changes no prediction by more than this
share. It is then too small to matter."""
UNBOUNDED = 1.0
"""If half an interval changes some prediction by more than this share, a slope can't describe it."""
MISFIT_LEVEL = 0.99
"""Quantile of F above which places differ from the law by more than their repeats explain."""
LEAST_NOISE = 1e-4
"""Least standard deviation of repeats, as a share of their value, that a law is judged by."""
MOST_ROUNDS = 10
SETTLED = 0.05
"""Measurements are clipped anew until none moves by this share of their scatter."""
TOLERANCE = 1e-10
UNSEEN = 1e-8
"""Singular values below this may be errors of differences."""
STEP = 1e-6
"""Slopes are taken over differences of this share of a parameter, or of its start if it has almost vanished."""
NEXT_TO_ZERO = 1e-6
"""A parameter below this share of its start is zero."""


class NoLawError(ValueError):
    """The measurements can't carry the law. The message says why, and what to measure."""


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A parameter of a law."""

    name: str
    low: float  # its lower bound; 0 if the law also holds without it
    high: float  # its upper bound
    starts: tuple[float, ...]  # where fits begin, above zero

    @property
    def may_vanish(self) -> bool:
        """Whether the law also holds without it."""
        return self.low == 0


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A figure with its interval."""

    value: float
    low: float | None  # None if the data give none, as for high
    high: float | None
    identified: bool = True
    why: str = ""  # what makes it unidentified


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A law fitted to measurements."""

    parameters: tuple[Parameter, ...]
    values: Vector  # (p,)
    covariance: Vector  # (p, p), of the parameters
    means: Vector  # (n,), of the measurements' logarithms, clipped
    noise: float
    """Standard deviation of the logarithm of one measurement around the law; NaN without spare measurements."""
    spare: int  # degrees of freedom of the noise
    misfit: bool
    """Places differ from the law by more than their repeats explain; then noise and spare describe the places."""
    leverage: Vector  # (p,), the largest relative change of any place's prediction by one unit of a parameter

    def estimate(self, name: str) -> Estimate:
        """Return a parameter's value and t interval."""
        index = [parameter.name for parameter in self.parameters].index(name)
        parameter, value = self.parameters[index], float(self.values[index])
        if self.spare < 1:
            return unknown(value, f"no measurements to spare: {len(self.parameters)} parameters take them all")
        half = self.quantile * math.sqrt(self.covariance[index, index])
        estimate = with_interval(value, half, name, low=parameter.low, high=parameter.high)
        effect = half * self.leverage[index]
        if estimate.identified or not parameter.may_vanish or NEGLIGIBLE < effect < UNBOUNDED:
            return estimate
        if effect <= NEGLIGIBLE:
            return replace(estimate, identified=True, why="")
        return replace(estimate, high=None, why=f"nothing measured bounds {name}")

    @cached_property
    def quantile(self) -> float:
        """Student's t by which a standard error becomes half an interval."""
        return float(special.stdtrit(self.spare, (1 + LEVEL) / 2))


def unknown(value: float, why: str) -> Estimate:
    """Return a figure without an interval."""
    return Estimate(value=value, low=None, high=None, identified=False, why=why)


def with_interval(value: float, half: float, name: str, *, low: float = 0.0, high: float = math.inf) -> Estimate:
    """Return the estimate with an interval on its logarithm: value · exp(±half / value), cut off at the bounds.

    If that reaches over more than `WIDEST_RATIO`, the figure is not identified. If it then may be zero (low 0), its
    interval is the plain one, value ± half, from zero on.
    """
    relative = half / value if value > 0 else math.inf
    if relative <= math.log(WIDEST_RATIO) / 2:
        below, above = value * math.exp(-relative), value * math.exp(relative)
        return Estimate(value=value, low=max(below, low), high=min(above, high))
    if low == 0:
        above = min(value + half, high)
        why = (
            f"{name} is at most {above:.3g}, and may be far less" if math.isfinite(above) else f"{name} is not bounded"
        )
        return Estimate(value=value, low=max(value - half, 0.0), high=_finite(above), identified=False, why=why)
    below, above = max(value * math.exp(-min(relative, 700.0)), low), min(value * math.exp(min(relative, 700.0)), high)
    why = f"{name} lies anywhere between {below:.3g} and {above:.3g}"
    return Estimate(value=value, low=below, high=_finite(above), identified=False, why=why)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def fit(model: Model, measured: Sequence[ArrayLike], parameters: Sequence[Parameter]) -> Fit:
    """Fit the parameters whose predictions are nearest to the measurements.

    Args:
        model: the law at the places measured.
        measured: for each place its value, or the values of its repeats; above zero.
        parameters: of the law, in the model's order. Fits begin at the first start of each, at the second of each, and
            so on. The best fit is kept.

    Raises:
        NoLawError: fewer places than parameters.
        ValueError: measurements that are not above zero.
    """
    repeats = [np.atleast_1d(np.asarray(each, dtype=float)) for each in measured]
    if not all(np.isfinite(each).all() and (each > 0).all() and len(each) for each in repeats):
        raise ValueError("measured: every value must be finite and above 0; leave the others out")
    if len(repeats) < len(parameters):
        raise NoLawError(f"{len(repeats)} places can't fix {len(parameters)} parameters; measure more")
    logs = without_outliers([np.log(each) for each in repeats])
    counts = np.array([len(each) for each in logs])
    place = np.repeat(np.arange(len(logs)), counts)
    told = np.concatenate(logs)
    lone = np.array([len(each) < ENOUGH_REPEATS for each in repeats])[place]  # only the law shows whether it is far off

    def log_model(values: Vector) -> Vector:
        return np.log(model(values))

    kept, starts = told, list(zip(*(each.starts for each in parameters), strict=True))
    for _ in range(MOST_ROUNDS):
        means = np.bincount(place, kept) / counts
        values = _nearest(log_model, means, np.sqrt(counts), parameters, starts)
        fitted = log_model(values)
        before, kept = kept, np.where(lone, fitted[place] + clipped(told - fitted[place], len(parameters)), told)
        if np.allclose(kept, before, rtol=0, atol=SETTLED * float(np.std(told - fitted[place]))):
            break

    slopes = optimize.approx_fprime(values, log_model, _steps(parameters, values))
    means = np.bincount(place, kept) / counts
    between, within = float(counts @ (means - fitted) ** 2), float(((kept - means[place]) ** 2).sum())
    variance, spare, misfit = _noise(between, within, len(repeats) - len(parameters), len(told) - len(repeats))
    return Fit(
        parameters=tuple(parameters),
        values=values,
        covariance=_inverse(slopes * np.sqrt(counts)[:, None]) * variance,
        means=means,
        noise=math.sqrt(variance) if spare else math.nan,
        spare=spare,
        misfit=misfit,
        leverage=np.abs(slopes).max(axis=0),
    )


def _nearest(
    model: Model, means: Vector, weights: Vector, parameters: Sequence[Parameter], starts: Sequence[tuple[float, ...]]
) -> Vector:
    """Minimise the squares from every start, in log(value − low), less log(high − value) with an upper bound."""
    low, high = (np.array([getattr(each, side) for each in parameters]) for side in ("low", "high"))
    bounded = np.isfinite(high)
    width = np.where(bounded, high - low, 1.0)

    def outer(steps: Vector) -> Vector:
        return low + width * np.where(bounded, special.expit(steps), np.exp(np.clip(steps, -300, 300)))

    def residuals(steps: Vector) -> Vector:
        return np.nan_to_num((model(outer(steps)) - means) * weights, nan=1e9)

    solutions = []
    for start in starts:
        share = np.maximum(np.array(start) - low, 1e-3 * np.minimum(width, np.abs(start))) / width
        inner = np.where(bounded, special.logit(np.clip(share, 1e-9, 1 - 1e-6)), np.log(share))
        solutions.append(optimize.leastsq(residuals, inner, ftol=TOLERANCE, xtol=TOLERANCE, full_output=True)[0])
    values = outer(min(solutions, key=lambda steps: float((residuals(steps) ** 2).sum())))
    return np.where((low == 0) & (values < NEXT_TO_ZERO * np.array(starts[0])), 0.0, values)


def _noise(between: float, within: float, places: int, repeats: int) -> tuple[float, int, bool]:
    """Return the variance of one measurement, its degrees of freedom, and whether the law misfits.

    between, within: sums of squares of places around the law, and of repeats around their place, with so many degrees
    of freedom. If places scatter more than their repeats explain, the law is not quite true, and repeats of one place
    miss it together. Then only the places show how far off it is.
    """
    if places + repeats < 1:
        return 0.0, 0, False
    if places > 0 and repeats > 0:
        ratio = (between / places) / max(within / repeats, LEAST_NOISE**2)
        if ratio > special.fdtri(places, repeats, MISFIT_LEVEL):
            return between / places, places, True
    return (between + within) / (places + repeats), places + repeats, False


def _inverse(slopes: Vector) -> Vector:
    """Return (JᵀJ)⁻¹ by the singular values of J, with columns of length 1.

    Directions that no measurement depends on get a very large inverse, so that figures along them have endless
    intervals. Other directions are not affected.
    """
    lengths = np.linalg.norm(slopes, axis=0)
    lengths = np.where(lengths > 0, lengths, np.finfo(float).tiny ** 0.25)
    _, singular, rotation = np.linalg.svd(slopes / lengths, full_matrices=False)
    half = rotation / np.maximum(singular, UNSEEN)[:, None] / lengths
    return np.asarray(half.T @ half)


def _steps(parameters: Sequence[Parameter], values: Vector) -> Vector:
    starts = np.array([each.starts[0] if each.may_vanish else 0.0 for each in parameters])
    return STEP * np.maximum(values, starts)
