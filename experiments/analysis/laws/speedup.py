"""Laws of speed-up over the number of workers: Amdahl's, Gustafson's, Karp and Flatt's, Gunther's (USL).

Amdahl (1967), for a fixed problem: S = 1/(s + (1 − s)/N). Gustafson (1988), for a problem that grows with N: S = N −
s(N − 1). Karp–Flatt (1990), the serial part that a measured S shows: e = (1/S − 1/N)/(1 − 1/N). If it is the same for
all N, it is a serial part. If it rises, it is overhead. Above 1 the workers together are slower than one.

Gunther (2007), the USL: X(N) = scale · N / (1 + sigma (N − 1) + kappa N (N − 1)). sigma is contention, kappa coherency.
The scale is fitted, not taken from X(1), whose noise would affect every ratio. Published fits often take residuals
between throughputs, not between their logarithms; `relative=False` does the same.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from scalestudy.experiments.analysis.laws.least_squares import (
    Estimate,
    Fit,
    NoLawError,
    Parameter,
    Vector,
    fit,
    unknown,
)

LEAST_SERIAL_SIZES = 3
"""A serial part is fitted to at least so many numbers of workers: a curve of two constants through two points shows
nothing.
"""
LEAST_USL_SIZES = 4
"""The law has three constants, so fewer numbers of workers are reported, not fitted."""
FURTHEST = 4
"""Up to how many times the workers timed a law is followed.

Beyond, laws that fit the timings equally well say anything.
"""
SAME_SPEED = 0.05
"""Speed-ups that differ by less are the same: repeated timings on a quiet machine differ by as much."""
MEASURE = "time more numbers of workers, and larger ones"
"""What would identify the law."""
STARTS = ((0.02, 0.3), (1e-3, 1e-5))
"""Starts of sigma and of kappa, a pair for each fit."""


def amdahl(serial: float, num_workers: ArrayLike) -> Vector:
    """Return the speed-up of a fixed problem, whose part `serial` runs on one worker alone."""
    count = np.asarray(num_workers, dtype=float)
    return 1 / (serial + (1 - serial) / count)


def gustafson(serial: float, num_workers: ArrayLike) -> Vector:
    """Return the speed-up of a problem that grows with the workers.

    Workers spend a part `serial` of the time in serial work.
    """
    count = np.asarray(num_workers, dtype=float)
    return count - serial * (count - 1)


def fit_amdahl(num_workers: Sequence[float], throughputs: Sequence[ArrayLike]) -> Estimate:
    """Fit the serial part of a fixed problem; the throughput of one worker is fitted with it.

    throughputs: for each number of workers a value, or its repeats. Raises NoLawError below three numbers.
    """
    return _fit_serial(amdahl, np.inf, num_workers, throughputs)


def fit_gustafson(num_workers: Sequence[float], throughputs: Sequence[ArrayLike]) -> Estimate:
    """Fit the serial part of a problem that grows with the workers; otherwise as `fit_amdahl`."""
    most = max(max(num_workers), 2.0)
    return _fit_serial(gustafson, most / (most - 1) * (1 - 1e-6), num_workers, throughputs)


def _fit_serial(
    law: Callable[[float, ArrayLike], Vector],
    most: float,
    num_workers: Sequence[float],
    throughputs: Sequence[ArrayLike],
) -> Estimate:
    sizes = np.asarray(num_workers, dtype=float)
    if (count := len(set(sizes.tolist()))) < LEAST_SERIAL_SIZES:
        raise NoLawError(f"{count} numbers of workers; a serial part is fitted to {LEAST_SERIAL_SIZES} or more")
    parameters = [
        scale_parameter(num_workers, throughputs),
        Parameter(name="the serial part", low=0.0, high=most, starts=(0.05, 0.5)),
    ]
    fitted = fit(lambda values: values[0] * law(values[1], sizes), throughputs, parameters)
    return fitted.estimate("the serial part")


def scale_parameter(num_workers: Sequence[float], throughputs: Sequence[ArrayLike]) -> Parameter:
    """Return the throughput of one worker, as a parameter that begins at the median of the throughputs a worker."""
    pairs = zip(throughputs, num_workers, strict=True)
    each = float(np.median([float(np.median(np.asarray(rates))) / size for rates, size in pairs]))
    return Parameter(name="scale", low=each / 1e6, high=each * 1e6, starts=(each, each))


def karp_flatt(speed_up: float, num_workers: float) -> float:
    """Return the serial part that a measured speed-up shows.

    Raises ValueError below two workers or without a speed-up.
    """
    if num_workers <= 1 or not speed_up > 0:
        raise ValueError(f"a speed-up of {speed_up!r} with {num_workers!r} workers has no serial part; give 2 or more")
    return (1 / speed_up - 1 / num_workers) / (1 - 1 / num_workers)


def karp_flatt_words(serial: Mapping[float, float]) -> str:
    """Say what the serial parts show. serial: by number of workers.

    Changes that 5 % of speed-up explains do not count.
    """
    if not serial:
        return ""
    (few, first), (many, last) = min(serial.items()), max(serial.items())
    if last > 1:
        return f"{last:.3g} at {many:g} workers: above 1, slower than one worker"
    if last < -_slack(last, many):
        return f"{last:.3g} at {many:g} workers: below 0, faster than the workers' number alone explains"
    if len(serial) == 1:
        return f"{last:.3g} at {many:g} workers: one value does not tell a serial part from overhead"
    change = last - first
    if abs(change) <= math.hypot(_slack(first, few), _slack(last, many)):
        return f"about the same ({first:.3g} to {last:.3g}) from {few:g} to {many:g} workers: a serial part"
    if change > 0:
        return f"rises from {first:.3g} to {last:.3g} between {few:g} and {many:g} workers: overhead that grows"
    return f"falls from {first:.3g} to {last:.3g} between {few:g} and {many:g} workers: a cost that is paid once"


def _slack(serial: float, num_workers: float) -> float:
    """Return by how much a serial part changes when its speed-up changes by `SAME_SPEED`.

    e's slope in log S is 1/S over 1 − 1/N, and 1/S = e(1 − 1/N) + 1/N.
    """
    return SAME_SPEED * abs(serial + 1 / (num_workers - 1))


def is_retrograde(speed_ups: Mapping[float, float]) -> bool:
    """Whether some number of workers is slower than a smaller one. speed_ups: by number of workers, 1 included."""
    ordered = [speed_ups[size] for size in sorted(speed_ups)]
    return any(after < before for before, after in pairwise(ordered))


@dataclass(frozen=True, kw_only=True)
class Usl:
    """A fitted law."""

    scale: Estimate  # throughput of one worker
    sigma: Estimate
    kappa: Estimate
    peak: Estimate
    """Workers of highest throughput; infinite if kappa is 0. Its why, if not identified, ends with what to time."""
    fit: Fit

    def throughput(self, num_workers: float) -> Estimate:
        """Return X(N) with its interval."""
        return self.fit.predict(lambda values: float(usl_throughput(num_workers, *values)), f"X({num_workers:g})")


def usl_throughput(num_workers: ArrayLike, scale: float, sigma: float, kappa: float) -> Vector:
    """Return X(N), in the unit of the scale."""
    count = np.asarray(num_workers, dtype=float)
    return scale * count / (1 + sigma * (count - 1) + kappa * count * (count - 1))


def peak_workers(sigma: float, kappa: float) -> float:
    """Return N* = √((1 − sigma)/kappa), at which throughput is largest. At least 1, and infinite without kappa."""
    return max(math.sqrt(max(1 - sigma, 0.0) / kappa), 1.0) if kappa > 0 else math.inf


def fit_usl(
    num_workers: Sequence[float],
    throughputs: Sequence[ArrayLike],
    *,
    relative: bool = True,
) -> Usl:
    """Fit the law of throughputs: a value for each number of workers, or the values of its repeats.

    Raises:
        NoLawError: fewer than four numbers of workers.
    """
    sizes = np.asarray(num_workers, dtype=float)
    if len(set(sizes.tolist())) < LEAST_USL_SIZES:
        count = len(set(sizes.tolist()))
        raise NoLawError(f"{count} numbers of workers; fewer than {LEAST_USL_SIZES} are reported, not fitted")
    parameters = [
        scale_parameter(num_workers, throughputs),
        Parameter(name="sigma", low=0.0, high=1.0, starts=STARTS[0]),
        Parameter(name="kappa", low=0.0, high=np.inf, starts=STARTS[1]),
    ]
    fitted = fit(lambda values: usl_throughput(sizes, *values), throughputs, parameters, relative=relative)
    scale, sigma, kappa = (fitted.estimate(parameter.name) for parameter in parameters)
    misfit = _misfit(sizes, throughputs, fitted.values) if fitted.misfit else None
    peak = unknown(peak_workers(*fitted.values[1:]), misfit) if misfit else _peak(fitted, kappa, float(sizes.max()))
    return Usl(scale=scale, sigma=sigma, kappa=kappa, peak=peak, fit=fitted)


def _misfit(sizes: Vector, throughputs: Sequence[ArrayLike], values: Vector) -> str:
    """Return the words on the number of workers that is farthest from its law."""
    shares = np.array([float(np.median(np.asarray(rates))) for rates in throughputs]) / usl_throughput(sizes, *values)
    worst = int(np.abs(np.log(shares)).argmax())
    off = float(shares[worst]) - 1
    return (
        f"the throughput of {sizes[worst]:g} workers is {abs(off):.0%} {'above' if off > 0 else 'below'} the nearest "
        f"law, which repeats do not explain; time {sizes[worst]:g} workers again, and numbers beside it"
    )


def _peak(fitted: Fit, kappa: Estimate, most: float) -> Estimate:
    """Return N* with its interval. most: workers timed.

    Only a lower limit is known in two cases: kappa may be 0, for throughput then may rise for ever; or the peak lies
    beyond the sizes that the law is followed to.
    """
    _, sigma, value = fitted.values.tolist()
    peak = peak_workers(sigma, value)
    if kappa.high is None:
        return unknown(peak, f"{kappa.why}; {MEASURE}")
    if not kappa.low:
        why = f"kappa is at most {kappa.high:.3g}, and may be 0: throughput may go on rising; {MEASURE}"
        return Estimate(value=peak, low=peak_workers(sigma, kappa.high), high=None, identified=False, why=why)
    found = fitted.predict(lambda values: peak_workers(values[1], values[2]), "the peak")
    if peak > FURTHEST * most:
        why = (
            f"the law has its peak at {peak:.3g} workers, more than {FURTHEST} times the {most:g} timed; time "
            f"{math.ceil(peak / FURTHEST)} workers or more"
        )
        low = min(found.low or 1.0, FURTHEST * most)
        return Estimate(value=peak, low=low, high=None, identified=False, why=why)
    return found if found.identified else replace(found, why=f"{found.why}; {MEASURE}")
