"""The time of a training step with K workers of m examples each (docs/formulas.md §4).

T_grad = alpha_c + beta_c · m. T_sync = 0 for one worker, else alpha_r + beta_r · max(K − 2, 0), with other constants
across nodes. T_iter = (T_grad^gamma + T_sync^gamma)^(1/gamma) + T_data, gamma 1 for no overlap and 10 for a full one
(Pollux, Qiao et al. 2021, arXiv 2008.12260). T_data, the exposed wait for data, is measured, not fitted.

Shapes: n places measured, p constants fitted.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import nnls

from scalestudy.experiments.analysis.laws.least_squares import (
    LEVEL,
    Estimate,
    Fit,
    NoLawError,
    Parameter,
    Vector,
    fit,
    unknown,
    with_interval,
)

LEAST_OVERLAP, MOST_OVERLAP = 1.0, 10.0
OVERLAP_STARTS = (1.3, 3.0)
LEAST_SECONDS = 1e-15
LEAST_SHARE = 0.02
"""The least share of a step that a part takes at the start of a fit."""
MOST_HELD_OUT = 40
"""At most so many places are held out one by one, evenly spread if there are more."""

MEASURE: Mapping[str, str] = {
    "alpha_c": "time smaller batches per worker",
    "beta_c": "time larger batches per worker",
    "alpha_r": "time steps with 2 workers",
    "beta_r": "time steps with two or more numbers of workers above 1, such as 2 and 8",
    "gamma": "time batches whose gradients take about as long to compute as to sum",
    "alpha_n": "time steps across two nodes",
    "beta_n": "time steps across nodes with two or more numbers of workers",
}
"""By constant, the measurement that would identify it."""
NAMES = tuple(MEASURE)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where steps were timed.

    seconds: of a step, a value a repeat. data_seconds: the part of them that waited for data. across_nodes: whether the
    workers were on several nodes.
    """

    num_gpus: int
    per_worker_batch: float
    seconds: tuple[float, ...]
    data_seconds: float = 0.0
    across_nodes: bool = False

    @property
    def typical_seconds(self) -> float:
        """Geometric mean of the repeats, which is nearest to a fit of logarithms."""
        return float(np.exp(np.mean(np.log(self.seconds))))


@dataclass(frozen=True, kw_only=True)
class Sync:
    """The constants of T_sync, within a node or across nodes: `first` of two workers, `each` of every further one."""

    first: str
    each: str
    across_nodes: bool
    where: str

    def among(self, places: Sequence[Place]) -> list[Place]:
        """The places that depend on these constants."""
        return [place for place in places if place.num_gpus > 1 and place.across_nodes == self.across_nodes]


SYNCS = (
    Sync(first="alpha_r", each="beta_r", across_nodes=False, where="within a node"),
    Sync(first="alpha_n", each="beta_n", across_nodes=True, where="across nodes"),
)


@dataclass(frozen=True, kw_only=True)
class Constants:
    """The constants of a step's time: seconds; beta_c per example, beta_r and beta_n per further worker; gamma 1 to 10.

    num_gpus, per_worker_batch and across_nodes of the methods may be arrays of one shape, which the result then has.
    """

    alpha_c: float = 0.0
    beta_c: float = 0.0
    alpha_r: float = 0.0
    beta_r: float = 0.0
    gamma: float = LEAST_OVERLAP
    alpha_n: float = 0.0
    beta_n: float = 0.0

    def gradient_seconds(self, per_worker_batch: ArrayLike) -> Vector:
        """T_grad."""
        return self.alpha_c + self.beta_c * np.asarray(per_worker_batch, dtype=float)

    def sync_seconds(self, num_gpus: ArrayLike, across_nodes: ArrayLike = False) -> Vector:
        """T_sync without overlap."""
        further = np.maximum(np.asarray(num_gpus, dtype=float) - 2, 0)
        within, across = self.alpha_r + self.beta_r * further, self.alpha_n + self.beta_n * further
        return np.where(np.asarray(num_gpus) > 1, np.where(across_nodes, across, within), 0.0)

    def step_seconds(self, num_gpus: ArrayLike, per_worker_batch: ArrayLike, across_nodes: ArrayLike = False) -> Vector:
        """T_iter without T_data."""
        gradient, sync = self.gradient_seconds(per_worker_batch), self.sync_seconds(num_gpus, across_nodes)
        larger = np.maximum(np.maximum(gradient, sync), LEAST_SECONDS)
        ratio = np.minimum(gradient, sync) / larger
        return larger * (1 + ratio**self.gamma) ** (1 / self.gamma)

    def slopes(self, num_gpus: float, per_worker_batch: float, across_nodes: bool = False) -> dict[str, float]:
        """∂ T_iter / ∂ constant at one place, by constant."""
        gradient = max(float(self.gradient_seconds(per_worker_batch)), LEAST_SECONDS)
        sync = float(self.sync_seconds(num_gpus, across_nodes))
        step = float(self.step_seconds(num_gpus, per_worker_batch, across_nodes))
        shares = np.array([gradient, sync]) / step
        by_gradient, by_sync = shares ** (self.gamma - 1)
        further = max(num_gpus - 2, 0)
        slopes = dict.fromkeys(NAMES, 0.0) | {"alpha_c": by_gradient, "beta_c": by_gradient * per_worker_batch}
        if num_gpus > 1:
            sync_of = SYNCS[across_nodes]
            slopes |= {sync_of.first: by_sync, sync_of.each: by_sync * further}
            logs = np.log(np.maximum(shares, LEAST_SECONDS))
            slopes["gamma"] = step / self.gamma * float(shares**self.gamma @ logs)
        return {name: float(slope) for name, slope in slopes.items()}


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Times of steps with their intervals.

    names: the constants that were fitted, in the order of covariance (p, p). t: quantile by which a standard error
    becomes half an interval; None if there is no error.
    """

    constants: Constants
    names: tuple[str, ...]
    covariance: Vector
    t: float | None

    def seconds(
        self, num_gpus: float, per_worker_batch: float, *, data_seconds: float = 0.0, across_nodes: bool = False
    ) -> Estimate:
        """T_iter, its interval by the delta method on its logarithm. data_seconds: T_data, taken as it is."""
        value = float(self.constants.step_seconds(num_gpus, per_worker_batch, across_nodes)) + data_seconds
        if self.t is None:
            return unknown(value, "there are no measurements to spare")
        by_name = self.constants.slopes(num_gpus, per_worker_batch, across_nodes)
        slopes = np.array([by_name[name] for name in self.names])
        half = self.t * float(np.sqrt(max(slopes @ self.covariance @ slopes, 0.0)))
        return with_interval(value, half, f"the step time of {num_gpus:g} workers", low=LEAST_SECONDS)


@dataclass(frozen=True, kw_only=True)
class StepTimeLaw:
    """A fitted law.

    absent: why a constant was not fitted. doubts: what the value of a fitted constant contains beside its own meaning.
    """

    times: StepTimes
    fit: Fit
    absent: Mapping[str, str]
    doubts: Mapping[str, str]

    def estimate(self, name: str) -> Estimate | None:
        """A constant's value, its interval, and what would identify it. None if nothing measured depends on it."""
        remedy = MEASURE[name]
        if name in self.absent:
            value = self.times.constants.gamma
            return unknown(value, f"{self.absent[name]}; {remedy}") if name == "gamma" else None
        estimate = self.fit.estimate(name)
        if estimate.identified and name in self.doubts:
            return replace(estimate, identified=False, why=self.doubts[name])
        return estimate if estimate.identified else replace(estimate, why=f"{estimate.why}; {remedy}")


def fit_step_time(places: Sequence[Place], *, level: float = LEVEL, near: Constants | None = None) -> StepTimeLaw:
    """The law that the places show. near: constants from which the fit begins; None: from the data alone.

    Raises:
        NoLawError: too few places. The message says what to measure.
    """
    names, absent = free_constants(places)
    starts = [near] if near else _starts(places, names)
    workers, shares, across, data = (np.array(column) for column in zip(*map(_row, places), strict=True))

    def model(values: Vector) -> Vector:
        constants = Constants(**dict(zip(names, values.tolist(), strict=True)))
        return constants.step_seconds(workers, shares, across) + data

    fitted = fit(model, [place.seconds for place in places], _parameters(names, starts), level=level)
    times = StepTimes(
        constants=Constants(**dict(zip(names, fitted.values.tolist(), strict=True))),
        names=tuple(names),
        covariance=fitted.covariance,
        t=fitted.quantile if fitted.spare else None,
    )
    return StepTimeLaw(times=times, fit=fitted, absent=absent, doubts=_doubts(places, names))


def _doubts(places: Sequence[Place], names: Sequence[str]) -> dict[str, str]:
    """What the value of a constant of T_sync depends on beside the measurements."""
    doubts: dict[str, str] = {}
    for sync in SYNCS:
        fitted = [name for name in (sync.first, sync.each) if name in names]
        sizes = {place.num_gpus for place in sync.among(places)}
        if "gamma" not in names:
            doubts |= {name: f"{name} is taken at gamma 1, no overlap; {MEASURE['gamma']}" for name in fitted}
        elif len(sizes) == 1 and sizes != {2}:
            doubts[sync.first] = (
                f"{sync.first} is all that summing over {min(sizes)} workers takes; {MEASURE[sync.each]}"
            )
    return doubts


def _row(place: Place) -> tuple[float, float, bool, float]:
    return place.num_gpus, place.per_worker_batch, place.across_nodes, place.data_seconds


def free_constants(places: Sequence[Place]) -> tuple[list[str], dict[str, str]]:
    """The constants that the places determine, and why each of the others is left out.

    A law needs one place more than it has constants. If places are short, gamma is taken as 1.

    Raises:
        NoLawError: too few places.
    """
    shares = {place.per_worker_batch for place in places}
    if len(shares) < 2:
        only = f"at one batch per worker only ({min(shares):g})" if shares else "nowhere"
        raise NoLawError(f"steps were timed {only}; time two or more other batch sizes")
    names, absent = ["alpha_c", "beta_c"], {}
    for sync in SYNCS:
        sizes = sorted({place.num_gpus for place in sync.among(places)})
        names += [sync.first, sync.each][: len(sizes)]
        if not sizes:
            absent[sync.first] = absent[sync.each] = f"no steps of several workers were timed {sync.where}"
        elif len(sizes) == 1:
            absent[sync.each] = f"{sync.where}, no other number of workers above 1 than {sizes[0]} was timed"
    if len(places) <= len(names):
        raise NoLawError(
            f"{len(places)} combinations of workers and batch size can't show a law of {len(names)} constants; time "
            f"{len(names) + 1 - len(places)} more"
        )
    if len(names) == 2:
        absent["gamma"] = "with one worker there is nothing to overlap"
    elif len(places) == len(names) + 1:
        absent["gamma"] = "taken as 1, no overlap, for there are too few places to fit it"
    else:
        names.append("gamma")
    return names, absent


def _parameters(names: Iterable[str], starts: Sequence[Constants]) -> list[Parameter]:
    bounds = dict.fromkeys(NAMES, (0.0, np.inf)) | {"gamma": (LEAST_OVERLAP, MOST_OVERLAP)}
    return [
        Parameter(
            name=name,
            low=bounds[name][0],
            high=bounds[name][1],
            starts=tuple(max(getattr(start, name), LEAST_SECONDS) for start in starts),
        )
        for name in names
    ]


def _starts(places: Sequence[Place], names: Sequence[str]) -> list[Constants]:
    """Constants to begin at, a set for each overlap: T_grad from the fewest workers, T_sync from the rest."""
    fewest = min(place.num_gpus for place in places)
    alone = [place for place in places if place.num_gpus == fewest]
    gradient = _line(alone if len({p.per_worker_batch for p in alone}) > 1 else places)
    overlaps = OVERLAP_STARTS if "gamma" in names else (LEAST_OVERLAP,)
    return [_with_sync(replace(gradient, gamma=overlap), places) for overlap in overlaps]


def _line(places: Sequence[Place]) -> Constants:
    seconds = np.array([max(p.typical_seconds - p.data_seconds, LEAST_SHARE * p.typical_seconds) for p in places])
    fixed, per_example = _line_through(seconds, [place.per_worker_batch for place in places])
    return Constants(alpha_c=fixed, beta_c=per_example)


def _with_sync(start: Constants, places: Sequence[Place]) -> Constants:
    """The start with the T_sync that its T_grad and gamma leave, within nodes and across them."""
    for sync in SYNCS:
        if several := sync.among(places):
            seconds = np.array([max(p.typical_seconds - p.data_seconds, LEAST_SECONDS) for p in several])
            gradient = start.gradient_seconds([p.per_worker_batch for p in several])
            left = np.maximum(seconds**start.gamma - gradient**start.gamma, (LEAST_SHARE * seconds) ** start.gamma)
            alpha, beta = _line_through(left ** (1 / start.gamma), [max(p.num_gpus - 2, 0) for p in several])
            start = replace(start, **{sync.first: alpha, sync.each: beta})
    return start


def _line_through(seconds: Vector, places: Sequence[float]) -> tuple[float, float]:
    """Intercept and slope, both above zero, of a line through the seconds, weighted by their inverses."""
    at = np.asarray(places, dtype=float)
    (intercept, slope), _ = nnls(np.stack([1 / seconds, at / seconds], axis=1), np.ones(len(seconds)))
    least = LEAST_SHARE * float(seconds.min())
    return max(float(intercept), least), max(float(slope), least / max(float(at.max()), 1.0))


def held_out_errors(places: Sequence[Place], law: StepTimeLaw) -> list[float]:
    """Relative errors of the law at places that it was not fitted to, one held out at a time.

    A place that some constant depends on is not held out, since the law would not be the same without it.
    """
    errors = []
    for index in sorted({round(i) for i in np.linspace(0, len(places) - 1, min(len(places), MOST_HELD_OUT))}):
        place, others = places[index], [*places[:index], *places[index + 1 :]]
        try:
            if tuple(free_constants(others)[0]) != law.times.names:
                continue
            constants = fit_step_time(others, near=law.times.constants).times.constants
        except NoLawError:
            continue
        seconds = (
            constants.step_seconds(place.num_gpus, place.per_worker_batch, place.across_nodes) + place.data_seconds
        )
        errors.append(abs(float(seconds) / place.typical_seconds - 1))
    return errors
