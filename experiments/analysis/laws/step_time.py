"""The law of a step's time, fitted to timings: its constants, what they identify, and the time of any other step.

`step_terms` has the law and its terms, `step_choice` chooses them; far from the timings, `step_beyond` says what else
they allow.

Shapes: n places measured, c coefficients, p constants fitted.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy import optimize

from scalestudy.experiments.analysis.laws.least_squares import (
    LEAST_NOISE,
    NEGLIGIBLE,
    STEP,
    UNBOUNDED,
    Estimate,
    Fit,
    NoLawError,
    Parameter,
    Vector,
    fit,
    standard_error,
    unknown,
    with_interval,
)
from scalestudy.experiments.analysis.laws.step_beyond import interval_beyond
from scalestudy.experiments.analysis.laws.step_choice import LEAST_SHARE, Timings, choose
from scalestudy.experiments.analysis.laws.step_terms import (
    COEFFICIENTS,
    COMPUTE,
    LEAST_SECONDS,
    OVERLAPS,
    Constants,
    Place,
    counts_of,
    features_of,
    step,
)

LEAST_OVERLAP = 1.3
"""Least gamma at which its fit begins: at 1 its slope is zero."""
MOST_HELD_OUT = 40
"""How many places are held out one by one at most, evenly spread."""
MEASURE: Mapping[str, str] = {
    "alpha_c": "time smaller batches per worker",
    "beta_c": "time larger batches per worker",
    "alpha_r": "time steps with 2 workers",
    "beta_r": "time steps with two or more numbers of workers above 1, such as 2 and 8",
    "gamma": "time batches whose gradients take about as long to compute as to sum",
    "alpha_n": "time steps across two nodes",
    "beta_n": "time steps across two or more numbers of nodes",
}
"""By figure of a law, the measurement that would identify it."""


def fit_step_time(places: Sequence[Place]) -> "StepTimeLaw":
    """Fit the best law that the places show.

    Its terms are chosen again where single timings turn out to be far off the first law.

    Raises:
        NoLawError: too few places. The message says what to measure.
    """
    within, across = counts_of(places)
    shares = {place.per_worker_batch for place in places}
    if len(shares) < 2:
        only = f"at one batch per worker only ({min(shares):g})" if shares else "nowhere"
        raise NoLawError(f"steps were timed {only}; time two or more other batch sizes")
    least = 2 + bool(within) + bool(across)
    if len(places) <= least:
        raise NoLawError(
            f"{len(places)} combinations of workers and batch size can't show a law of {least} constants; time "
            f"{least + 1 - len(places)} more"
        )
    # a law needs one place more than it has constants; where places are short, gamma is taken as 1
    overlap = bool(within or across) and len(places) > 2 + min(len(within), 2) + min(len(across), 2) + 1
    timings = Timings.of(places)
    names, start = choose(timings, overlap=overlap)
    fitted = _fit(places, timings, names, start)
    moved = np.abs(fitted.means - timings.logs) * np.sqrt(timings.repeats) > fitted.noise
    timings = replace(timings, logs=fitted.means)
    if moved.any():
        names, start = choose(timings, overlap=overlap)
        fitted = _fit(places, timings, names, start)
        timings = replace(timings, logs=fitted.means)
    if fitted.misfit:  # a law that the timings reject is no choice if one of more terms is not rejected
        more, start = choose(timings, overlap=overlap, fewest=False)
        fuller = _fit(places, timings, more, start)
        if not fuller.misfit:
            names, fitted = more, fuller
    means = np.exp(timings.logs).tolist()
    times = StepTimes(
        constants=Constants(**dict(zip(names, fitted.values.tolist(), strict=True))),
        names=names,
        covariance=fitted.covariance,
        t=fitted.quantile,
        noise=fitted.noise,
        places=tuple(
            replace(place, seconds=(mean,) * len(place.seconds)) for place, mean in zip(places, means, strict=True)
        ),
    )
    return StepTimeLaw(times=times, fit=fitted, within=within, across=across)


def _fit(places: Sequence[Place], timings: Timings, names: tuple[str, ...], start: Constants) -> Fit:
    """Fit the constants of these names."""
    rows = [COEFFICIENTS.index(name) for name in names if name in COEFFICIENTS]
    features = timings.features

    def model(values: Vector) -> Vector:
        coefficients = np.zeros(len(COEFFICIENTS))
        coefficients[rows] = values[: len(rows)]
        gamma = float(values[-1]) if names[-1] == "gamma" else OVERLAPS[0]
        return step(coefficients, features, gamma) + timings.data

    seconds = float(np.exp(timings.logs).min())
    parameters = []
    for row in rows:
        first = max(getattr(start, COEFFICIENTS[row]), LEAST_SHARE * seconds / float(features[row].max()))
        parameters.append(Parameter(name=COEFFICIENTS[row], low=0.0, high=math.inf, starts=(first,)))
    if names[-1] == "gamma":
        begin = max(start.gamma, LEAST_OVERLAP)
        parameters.append(Parameter(name="gamma", low=OVERLAPS[0], high=OVERLAPS[-1], starts=(begin,)))
    return fit(model, [place.seconds for place in places], parameters)


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Times of steps by the best law, with their intervals."""

    constants: Constants
    names: tuple[str, ...]  # the constants that were fitted, in the order of covariance
    covariance: Vector  # (p, p)
    t: float  # quantile by which a standard error becomes half an interval
    noise: float  # of a timing, as in `Fit`
    places: tuple[Place, ...]  # where steps were timed, each repeat the mean of its place

    @cached_property
    def timings(self) -> Timings:
        """What the law was fitted to."""
        return Timings.of(self.places)

    def nodes(self, num_gpus: float, across_nodes: bool) -> int:
        """Return how many nodes hold so many workers."""
        a_node = max(place.on_a_node for place in self.places)
        return max(math.ceil(num_gpus / a_node), 2) if across_nodes and num_gpus > 1 else 1

    def seconds(
        self, num_gpus: float, per_worker_batch: float, *, data_seconds: float = 0.0, nodes: int = 1
    ) -> Estimate:
        """Return T_step, its interval by the delta method on its logarithm. data_seconds: T_data, taken as it is."""
        return self.figure(
            lambda law: float(law.step_seconds(num_gpus, per_worker_batch, nodes)) + data_seconds,
            f"the step time of {num_gpus:g} workers",
        )

    def figure(self, function: Callable[[Constants], float], name: str) -> Estimate:
        """Return a figure that follows from the constants, with its interval by the delta method."""

        def told(values: Vector) -> float:
            return float(function(replace(self.constants, **dict(zip(self.names, values.tolist(), strict=True)))))

        values = np.array([getattr(self.constants, each) for each in self.names])
        steps = STEP * np.maximum(values, np.sqrt(np.diag(self.covariance)))
        slopes = optimize.approx_fprime(values, told, np.maximum(steps, LEAST_SECONDS))
        return with_interval(told(values), self.t * standard_error(slopes, self.covariance), name)

    def beyond(
        self, num_gpus: float, per_worker_batch: float, *, data_seconds: float = 0.0, nodes: int = 1
    ) -> Estimate:
        """Return T_step where nothing near was timed.

        Its interval spans every law that the timings do not reject.
        """
        value = float(self.constants.step_seconds(num_gpus, per_worker_batch, nodes)) + data_seconds
        features = features_of(num_gpus, per_worker_batch, nodes)
        noise = max(self.noise, LEAST_NOISE)
        low, high = interval_beyond(self.timings, features, data_seconds, noise=noise, t=self.t)
        return Estimate(value=value, low=min(low, value), high=max(high, value))


@dataclass(frozen=True, kw_only=True)
class StepTimeLaw:
    """The best law."""

    times: StepTimes
    fit: Fit
    within: tuple[int, ...]  # numbers of workers of a node that were timed, without 1
    across: tuple[int, ...]  # numbers of nodes that were timed, without 1

    def estimate(self, name: str) -> Estimate | None:
        """Return a figure of `MEASURE` with its interval, and what would identify it.

        None if nothing measured depends on it. alpha_r: summing over two workers of a node. beta_r: what each further
        worker adds, on average up to the most that were timed. alpha_n and beta_n: the same over nodes.
        """
        estimate = self._sync(name) if name[-2:] in ("_r", "_n") else self._constant(name)
        if estimate is None or estimate.identified:
            return estimate
        return replace(estimate, why=f"{estimate.why}; {MEASURE[name]}")

    def why_absent(self, name: str) -> str:
        """Return why there is no figure of this name."""
        counts, where = (self.within, "within a node") if name.endswith("_r") else (self.across, "across nodes")
        if not counts:
            return f"no steps of several workers were timed {where}; {MEASURE[name]}"
        kind = "workers" if name.endswith("_r") else "nodes"
        return f"{where}, no other number of {kind} above 1 than {counts[0]} was timed; {MEASURE[name]}"

    def _constant(self, name: str) -> Estimate:
        if name in self.times.names:
            return self.fit.estimate(name)
        if not (self.within or self.across):
            return unknown(OVERLAPS[0], "with one worker there is nothing to overlap")
        return unknown(OVERLAPS[0], "taken as 1, no overlap, for there are too few places to fit it")

    def _sync(self, name: str) -> Estimate | None:
        counts = self.within if name.endswith("_r") else self.across
        if len(counts) < (1 if name.startswith("alpha") else 2):
            return None
        few, most = (2 if len(counts) > 1 else counts[0]), counts[-1]

        def sync(law: Constants, count: int) -> float:
            return float(law.sync_seconds(count, 1 if counts is self.within else count))

        if name.startswith("alpha"):
            further = 1
            estimate = self.times.figure(lambda law: sync(law, few), name)
        else:
            further = max(most - few, 1)
            estimate = self.times.figure(lambda law: (sync(law, most) - sync(law, few)) / further, name)
        several = self.times.timings.features[len(COMPUTE) :].any(axis=0)
        least = float(np.exp(self.times.timings.logs[several]).min())  # a step of several workers
        effect = math.inf if estimate.high is None else (estimate.high - estimate.value) * further / least
        if not estimate.identified and effect <= NEGLIGIBLE:
            estimate = replace(estimate, identified=True, why="")  # too small to matter
        elif not estimate.identified:
            why = f"nothing measured bounds {name}"
            return replace(estimate, high=None, why=why) if effect > UNBOUNDED else estimate
        if "gamma" not in self.times.names:
            return replace(estimate, identified=False, why=f"{name} is taken at gamma 1, no overlap")
        if len(counts) == 1 and few != 2:
            what = f"summing over {few} {'workers' if counts is self.within else 'nodes'}"
            return replace(estimate, identified=False, why=f"{name} is all that {what} takes")
        return estimate


def held_out_errors(law: StepTimeLaw) -> list[float]:
    """Return relative errors of the law's terms at places that they were not fitted to, one held out at a time.

    A place without which the terms can't be told apart is not held out.
    """
    times, errors = law.times, []
    timings, gamma = times.timings.only(times.names), times.constants.gamma
    used = [COEFFICIENTS.index(name) for name in times.names if name in COEFFICIENTS]
    count = len(timings.logs)
    for index in sorted({round(i) for i in np.linspace(0, count - 1, min(count, MOST_HELD_OUT))}):
        others = timings.without(index)
        columns = others.features[used] / np.linalg.norm(timings.features[used], axis=1)[:, None]
        if len(others.logs) <= len(times.names) or np.linalg.matrix_rank(columns, tol=1e-6) < len(used):
            continue
        found = others.nearest(gamma, times.constants.coefficients)
        seconds = float(step(found, timings.features[:, index], gamma) + timings.data[index])
        errors.append(abs(seconds / math.exp(timings.logs[index]) - 1))
    return errors
