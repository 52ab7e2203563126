"""Stage 8, analysis: the Universal Scalability Law (Gunther, Guerrilla Capacity Planning, 2007; docs/formulas.md §5).

X(N) = scale · N / (1 + sigma (N − 1) + kappa N (N − 1)): sigma is contention, kappa coherency. The scale is fitted, not
taken from X(1), whose noise would else go into every ratio. Published fits often take residuals between throughputs
and not their logarithms; `relative=False` does as they do.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from experiments.analysis.laws.least_squares import LEVEL, Estimate, Fit, NoLawError, Parameter, Vector, fit, unknown
from experiments.analysis.laws.speedup import scale_parameter

LEAST_SIZES = 4
"""Fewer numbers of workers are reported, not fitted: the law has three constants."""
STARTS = ((0.02, 0.3), (1e-3, 1e-5))
"""Of sigma and of kappa, one set a fit."""


@dataclass(frozen=True, kw_only=True)
class Usl:
    """A fitted law. scale: throughput of one worker. peak: workers of the most throughput; infinite if kappa is 0."""

    scale: Estimate
    sigma: Estimate
    kappa: Estimate
    peak: Estimate
    fit: Fit

    def throughput(self, num_workers: float) -> Estimate:
        """X(N) with its interval."""
        return self.fit.predict(lambda values: float(usl_throughput(num_workers, *values)), f"X({num_workers:g})")


def usl_throughput(num_workers: ArrayLike, scale: float, sigma: float, kappa: float) -> Vector:
    """X(N), in the unit of the scale."""
    count = np.asarray(num_workers, dtype=float)
    return scale * count / (1 + sigma * (count - 1) + kappa * count * (count - 1))


def peak_workers(sigma: float, kappa: float) -> float:
    """N* = √((1 − sigma)/kappa), where throughput is largest; infinite without kappa, and at least 1."""
    return max(math.sqrt(max(1 - sigma, 0.0) / kappa), 1.0) if kappa > 0 else math.inf


def fit_usl(
    num_workers: Sequence[float],
    throughputs: Sequence[ArrayLike],
    *,
    level: float = LEVEL,
    relative: bool = True,
) -> Usl:
    """The law of throughputs: of each number of workers a value, or the values of its repeats.

    Raises:
        NoLawError: fewer than four numbers of workers.
    """
    sizes = np.asarray(num_workers, dtype=float)
    if len(set(sizes.tolist())) < LEAST_SIZES:
        count = len(set(sizes.tolist()))
        raise NoLawError(f"{count} numbers of workers; fewer than {LEAST_SIZES} are reported, not fitted")
    parameters = [
        scale_parameter(num_workers, throughputs),
        Parameter(name="sigma", low=0.0, high=1.0, starts=STARTS[0]),
        Parameter(name="kappa", low=0.0, high=np.inf, starts=STARTS[1]),
    ]
    found = fit(lambda values: usl_throughput(sizes, *values), throughputs, parameters, level=level, relative=relative)
    scale, sigma, kappa = (found.estimate(parameter.name) for parameter in parameters)
    return Usl(scale=scale, sigma=sigma, kappa=kappa, peak=_peak(found, kappa), fit=found)


def _peak(found: Fit, kappa: Estimate) -> Estimate:
    """N* with its interval; where kappa may be 0, throughput may rise for ever, and only a lower limit is known."""
    _, sigma, value = found.values.tolist()
    peak = peak_workers(sigma, value)
    if kappa.high is None:
        return unknown(peak, kappa.why)
    if not kappa.low:
        why = f"kappa is at most {kappa.high:.3g}, and may be 0: throughput may go on rising"
        return Estimate(value=peak, low=peak_workers(sigma, kappa.high), high=None, identified=False, why=why)
    return found.predict(lambda values: peak_workers(values[1], values[2]), "the peak")
