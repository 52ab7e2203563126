"""Fits of positive laws to positive measurements, with intervals and what they identify.

Measured times and rates scatter in proportion to their size, so residuals are taken between logarithms. A parameter
that can't be zero is fitted by its logarithm. Intervals are t intervals from the Jacobian, on the logarithms of the
parameters (docs/formulas.md §4), so they can't cross zero. They have the coverage that they promise
(`tests.bench.laws`); bootstraps of a few repeats cover too little.

Shapes: n places measured, p parameters.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, stats

Vector = NDArray[np.float64]
Model = Callable[[Vector], Vector]
"""Parameters (p,) to what they predict at each place (n,), all above zero."""

LEVEL = 0.90
"""Nominal coverage of the intervals."""
WIDEST_RATIO = 10.0
"""Upper over lower limit from which on a parameter is not identified: not even its order of magnitude is known."""
NEGLIGIBLE = 0.1
"""A parameter that may be zero is known well enough if half its interval changes no prediction by more than this
share. It is then too small to matter."""
MISFIT_LEVEL = 0.99
"""Quantile of F above which places differ from the law by more than their repeats explain."""
UNBOUNDED = 1.0
"""If half an interval changes some prediction by more than this share, it is beyond what a slope can tell."""
STEP = 1e-5
"""Slopes are taken over differences of this share of a parameter."""
AT_BOUND = 1e-3
"""A parameter this near to a bound, as a share of it, is at it."""
TOLERANCE = 1e-12
"""The solver's tolerance. It meets published fits to their last printed digit."""
NEXT_TO_ZERO = 1e-9
"""A parameter below this share of its scale is zero."""


class NoLawError(ValueError):
    """The measurements can't carry the law. The message says why, and what to measure."""


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A parameter of a law.

    low, high: its bounds; low is 0 if the law also holds without it. starts: where fits begin, above zero.
    """

    name: str
    low: float
    high: float
    starts: tuple[float, ...]

    @property
    def may_vanish(self) -> bool:
        """Whether the law also holds without it."""
        return self.low == 0


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A figure with its interval. low and high are None if the data give none. why: what makes it unidentified."""

    value: float
    low: float | None
    high: float | None
    identified: bool = True
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A law fitted to measurements.

    values: (p,). covariance: (p, p), of the parameters. noise: standard deviation of one measurement around the law, of
    its logarithm if the fit is relative; NaN without spare measurements. spare: degrees of freedom of the noise.
    misfit: places differ from the law by more than their repeats explain; noise and spare are then those of the places.
    condition: of the Jacobian with columns of length 1. leverage: (p,), the largest relative change of any place's
    prediction by one unit of a parameter. residuals: (n,), measured minus fitted, mean of the place's repeats.
    """

    parameters: tuple[Parameter, ...]
    values: Vector
    covariance: Vector
    noise: float
    spare: int
    misfit: bool
    condition: float
    leverage: Vector
    residuals: Vector
    level: float

    def estimate(self, name: str) -> Estimate:
        """A parameter's value and t interval. Raises KeyError for a name that the law does not have."""
        parameter, index = self.parameters[self._index(name)], self._index(name)
        value = float(self.values[index])
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

    def predict(self, function: Callable[[Vector], float], name: str = "the prediction") -> Estimate:
        """A positive figure that follows from the parameters (p,), with its interval by the delta method."""
        value = float(function(self.values))
        if self.spare < 1:
            return unknown(value, "no measurements to spare")
        steps = _steps(self.parameters, self.values)
        slopes = jacobian(lambda theta: np.array([function(theta)]), self.values, steps, self.parameters)[0]
        error = math.sqrt(max(float(slopes @ self.covariance @ slopes), 0.0))
        return with_interval(value, self.quantile * error, name)

    @property
    def bound(self) -> NDArray[np.bool_]:
        """Whether a parameter is at a bound (p,)."""
        low, high = (np.array([getattr(each, side) for each in self.parameters]) for side in ("low", "high"))
        return (self.values <= low * (1 + AT_BOUND)) | (self.values >= high * (1 - AT_BOUND))

    @cached_property
    def quantile(self) -> float:
        """Student's t by which a standard error becomes half an interval."""
        return float(stats.t.ppf((1 + self.level) / 2, self.spare))

    def _index(self, name: str) -> int:
        names = [parameter.name for parameter in self.parameters]
        if name not in names:
            raise KeyError(f"no parameter {name!r}; the law has {', '.join(names)}")
        return names.index(name)


def unknown(value: float, why: str) -> Estimate:
    """A figure without an interval."""
    return Estimate(value=value, low=None, high=None, identified=False, why=why)


def with_interval(value: float, half: float, name: str, *, low: float = 0.0, high: float = math.inf) -> Estimate:
    """The estimate with an interval on its logarithm: value · exp(±half / value), cut off at the bounds.

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


def fit(
    model: Model,
    measured: Sequence[ArrayLike],
    parameters: Sequence[Parameter],
    *,
    level: float = LEVEL,
    relative: bool = True,
) -> Fit:
    """The parameters whose predictions are nearest to the measurements, by least squares.

    Args:
        model: the law at the places measured.
        measured: for each place its value, or the values of its repeats; above zero.
        parameters: of the law, in the model's order. Fits begin at the first start of each, at the second of each, and
            so on. The best fit is kept.
        level: nominal coverage of the intervals.
        relative: residuals are taken between logarithms. Else between values, as published fits often do.

    Raises:
        NoLawError: fewer places than parameters.
        ValueError: measurements that are not above zero.
    """
    repeats = [np.atleast_1d(np.asarray(each, dtype=float)) for each in measured]
    if not all(np.isfinite(each).all() and (each > 0).all() and len(each) for each in repeats):
        raise ValueError("measured: every value must be finite and above 0; leave the others out")
    if len(repeats) < len(parameters):
        raise NoLawError(f"{len(repeats)} places can't fix {len(parameters)} parameters; measure more")
    scale = np.log if relative else np.asarray
    scaled = [scale(each) for each in repeats]
    means, weights = np.array([each.mean() for each in scaled]), np.sqrt([len(each) for each in scaled])

    def scaled_model(values: Vector) -> Vector:
        return scale(model(values))

    values = _minimise(lambda values: (scaled_model(values) - means) * weights, tuple(parameters))
    residuals = means - scaled_model(values)
    slopes = jacobian(scaled_model, values, _steps(parameters, values), parameters)
    condition, inverse = _inverse(slopes * weights[:, None])
    within = sum(float(((each - each.mean()) ** 2).sum()) for each in scaled)
    variance, spare, misfit = _noise(residuals * weights, within, sum(map(len, scaled)), len(parameters))
    return Fit(
        parameters=tuple(parameters),
        values=values,
        covariance=inverse * variance,
        noise=math.sqrt(variance) if spare else math.nan,
        spare=spare,
        misfit=misfit,
        condition=condition,
        leverage=np.abs(slopes if relative else slopes / model(values)[:, None]).max(axis=0),
        residuals=residuals,
        level=level,
    )


def _minimise(residuals: Callable[[Vector], Vector], parameters: tuple[Parameter, ...]) -> Vector:
    """Bounded least squares from every start.

    A parameter that can't be zero is stepped in its logarithm. One that may be zero is stepped in shares of its start.
    """
    logs = np.array([not each.may_vanish for each in parameters])
    unit = np.array([1.0 if log else each.starts[0] for each, log in zip(parameters, logs, strict=True)])

    def inner(values: Vector) -> Vector:
        return np.where(logs, np.log(np.where(logs, values, 1.0)), values / unit)

    def outer(steps: Vector) -> Vector:
        return np.where(logs, np.exp(np.where(logs, steps, 0.0)), steps * unit)

    low, high = (inner(np.array([getattr(each, side) for each in parameters])) for side in ("low", "high"))
    starts = [inner(np.array(start)) for start in zip(*(each.starts for each in parameters), strict=True)]

    def inner_residuals(steps: Vector) -> Vector:
        return residuals(outer(steps))

    margin = np.minimum(1e-6, (high - low) / 4)  # the solver wants starts strictly between the bounds
    solutions = [
        optimize.least_squares(
            inner_residuals,
            np.clip(start, low + margin, high - margin),
            jac="3-point",
            bounds=(low, high),
            ftol=TOLERANCE,
            xtol=TOLERANCE,
            gtol=TOLERANCE,
        )
        for start in starts
    ]
    steps = min(solutions, key=lambda each: float(each.cost)).x
    return np.where(~logs & (steps < NEXT_TO_ZERO), 0.0, outer(steps))


def _noise(residuals: Vector, within: float, count: int, parameters: int) -> tuple[float, int, bool]:
    """Variance of one measurement, its degrees of freedom, and whether the law misfits.

    residuals: (n,) of the places, weighted by the root of their repeats. within: sum of squares of repeats around their
    place. If places scatter more than their repeats explain, the law is not quite true, and repeats of one place miss
    it together. Then only the places tell how far off it is.
    """
    between = float(residuals @ residuals)
    places, repeats = len(residuals) - parameters, count - len(residuals)
    if places + repeats < 1:
        return 0.0, 0, False
    if places > 0 and repeats > 0:
        ratio = (between / places) / max(within / repeats, np.finfo(float).tiny)
        if ratio > stats.f.ppf(MISFIT_LEVEL, places, repeats):
            return between / places, places, True
    return (between + within) / (places + repeats), places + repeats, False


def _inverse(slopes: Vector) -> tuple[float, Vector]:
    """Condition number of J with columns of length 1, and (JᵀJ)⁻¹, by its singular values.

    Directions that no measurement depends on get a very large inverse, so that figures along them have endless
    intervals. Other directions are not affected.
    """
    lengths = np.linalg.norm(slopes, axis=0)
    lengths = np.where(lengths > 0, lengths, np.finfo(float).tiny ** 0.25)
    _, singular, rotation = np.linalg.svd(slopes / lengths, full_matrices=False)
    least = max(float(singular[-1]), np.finfo(float).eps)
    half = rotation / np.maximum(singular, np.finfo(float).eps)[:, None] / lengths
    return float(singular[0]) / least, half.T @ half


def _steps(parameters: Sequence[Parameter], values: Vector) -> Vector:
    """Steps of differences (p,): a share of the parameter, or of its start if it has almost vanished."""
    starts = np.array([each.starts[0] if each.may_vanish else 0.0 for each in parameters])
    return STEP * np.maximum(values, starts)


def jacobian(model: Model, values: Vector, steps: Vector, parameters: Sequence[Parameter]) -> Vector:
    """∂ model / ∂ parameter (n, p), by differences of ± steps (p,), central if the bounds leave room."""
    columns = []
    for index, parameter in enumerate(parameters):
        ahead, behind = values.copy(), values.copy()
        ahead[index] = min(values[index] + steps[index], parameter.high)
        behind[index] = max(values[index] - steps[index], parameter.low)
        columns.append((model(ahead) - model(behind)) / (ahead[index] - behind[index]))
    return np.stack(columns, axis=1)
