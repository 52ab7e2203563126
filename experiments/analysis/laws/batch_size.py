"""The law of steps and examples to a target over batch sizes (docs/formulas.md §3).

S(B) = S_min (1 + B_crit/B) steps and E(B) = S·B = E_min (1 + B/B_crit) examples, B_crit = E_min/S_min (McCandlish et
al. 2018, arXiv 1812.06162, section 2.3). It is fitted as S = S_min + E_min/B with positive parameters. If one of them
vanishes, only examples, or only steps, count.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from scalestudy.experiments.analysis.laws.least_squares import Estimate, Fit, NoLawError, Parameter, fit

Regime = Literal["perfect scaling", "diminishing returns", "flat"]

REGIME_LIMIT = 4.0
"""Up to B_crit/4 scaling counts as perfect: the examples are at most 1/4 above the fewest. From 4·B_crit on it counts
as flat: the steps are at most 1/4 above the fewest. Shallue et al. 2018 (arXiv 1811.03600) name these regimes without
limits."""
LEAST_SIZES = 3
"""Fewest batch sizes for a fit. Any two lie on some curve of the law."""


@dataclass(frozen=True, kw_only=True)
class BatchLaw:
    """The fitted law.

    If steps fall over all batch sizes tried, S_min does not show. b_crit has only a lower end then, maybe infinite.
    """

    fit: Fit
    s_min: Estimate  # steps
    e_min: Estimate  # examples
    b_crit: Estimate  # examples

    def steps(self, batch_size: float) -> float:
        """Return the steps to the target by the law."""
        return float(self.fit.values[0] + self.fit.values[1] / batch_size)

    def regime(self, batch_size: float) -> Regime | None:
        """Return the regime of a batch size. None if B_crit is not identified and its interval allows several."""
        if self.b_crit.identified:
            return regime_of(batch_size, self.b_crit.value)
        ends = {regime_of(batch_size, self.b_crit.low or 0.0), regime_of(batch_size, self.b_crit.high or math.inf)}
        return ends.pop() if len(ends) == 1 else None


def regime_of(batch_size: float, b_crit: float) -> Regime:
    """Return the regime of a batch size by `REGIME_LIMIT`. b_crit: examples, from 0 to infinity."""
    if batch_size * REGIME_LIMIT <= b_crit:
        return "perfect scaling"
    return "flat" if batch_size >= b_crit * REGIME_LIMIT else "diminishing returns"


def fit_batch_law(batch_sizes: ArrayLike, steps: ArrayLike) -> BatchLaw:
    """Fit the law through the steps that each batch size took, one figure for each.

    Seeds are not separate figures. A batch size misses the law mainly by its tuning, which affects all its seeds.
    Intervals from independent seeds would hold the truth too rarely.

    Args:
        batch_sizes: (n,), examples, different ones, above zero.
        steps: (n,), to the target, means over seeds, above zero.

    Raises:
        NoLawError: fewer than three batch sizes.
        ValueError: a figure is not above zero, or a batch size is there twice.
    """
    sizes, taken = np.asarray(batch_sizes, dtype=float), np.asarray(steps, dtype=float)
    if not (sizes > 0).all() or len(np.unique(sizes)) < len(sizes):
        raise ValueError(f"batch_sizes: {sizes.tolist()}: every one must be above 0, and there once")
    if len(sizes) < LEAST_SIZES:
        raise NoLawError(f"{len(sizes)} batch sizes make no law of batch sizes; measure {LEAST_SIZES} or more")
    parameters = (_parameter("S_min", taken), _parameter("E_min", sizes * taken))
    fitted = fit(lambda values: values[0] + values[1] / sizes, list(taken), parameters)
    s_min, e_min = (_above_zero(fitted.estimate(name), name) for name in ("S_min", "E_min"))
    if s_min.low or not fitted.values[1]:
        b_crit = fitted.predict(lambda values: float(values[1] / values[0]), "B_crit")
    else:
        b_crit = _inverse_of_ratio(fitted)
    return BatchLaw(fit=fitted, s_min=s_min, e_min=e_min, b_crit=b_crit)


def _above_zero(estimate: Estimate, name: str) -> Estimate:
    """Mark a limit that may be zero as not identified, even if it hardly changes the measured steps."""
    if estimate.low or not estimate.identified:
        return estimate
    return replace(estimate, identified=False, why=f"{name} is at most {estimate.high:.3g}, and may be far less")


def _parameter(name: str, figures: np.ndarray) -> Parameter:
    """Make a parameter from zero to twice the largest figure.

    Fits begin where it explains most of the least figure, and little of it.
    """
    least, most = float(np.min(figures)), float(np.max(figures))
    return Parameter(name=name, low=0.0, high=2 * most, starts=(0.9 * least, 0.1 * least))


def _inverse_of_ratio(fitted: Fit) -> Estimate:
    """Return B_crit if S_min may be zero. 1/B_crit then has an interval around zero, so B_crit has a lower end."""
    inverse = fitted.predict(lambda values: float(values[0] / values[1]), "1/B_crit")
    low = 1 / inverse.high if inverse.high else None
    high = 1 / inverse.low if inverse.low else None
    value = 1 / inverse.value if inverse.value else math.inf
    if inverse.identified:
        return Estimate(value=value, low=low, high=high)
    why = "B_crit is not bounded" if low is None else f"B_crit is at least {low:.3g}, and may be far more"
    return Estimate(value=value, low=low, high=high, identified=False, why=why)
