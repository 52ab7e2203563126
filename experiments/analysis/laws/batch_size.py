"""The law of steps and examples to a target over batch sizes, each at its best rate (docs/formulas.md §2, §3).

S(B) = S_min (1 + B_crit/B) steps and E(B) = S·B = E_min (1 + B/B_crit) examples, B_crit = E_min/S_min (McCandlish et
al. 2018, arXiv 1812.06162, section 2.3); log η* = a + p · log B. The figures are medians and intervals of the draws of
`steps_to_target`.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from scalestudy.experiments.analysis.laws.estimate import ENDS, ENDS_AND_MEDIAN, WIDEST_RATIO, Estimate
from scalestudy.experiments.analysis.laws.shrinkage import Vector
from scalestudy.experiments.analysis.laws.steps_to_target import BEFOREHAND, RULE, StepsToTarget

Regime = Literal["perfect scaling", "diminishing returns", "flat"]

REGIME_LIMIT = 4.0
"""Up to B_crit/4 scaling counts as perfect: the examples are at most 1/4 above the fewest. From 4·B_crit on it counts
as flat: the steps are at most 1/4 above the fewest. Shallue et al. 2018 (arXiv 1811.03600) name these regimes without
limits."""
NEAR_PERFECT = 0.2
"""Shallue et al. call critical the batch that takes so many more steps than perfect scaling: S·B/E_min = 1 + B/B_crit,
so it is this share of B_crit."""
LEAST_SIZES = 3
"""Fewest batch sizes for a law. Any two lie on some curve of it."""
LEARNT = 0.7
"""Up to this share of its standard deviation beforehand, the exponent was learnt from the trainings."""


@dataclass(frozen=True, kw_only=True)
class BatchLaw:
    """Draws (k,) of the law."""

    log_s_min: Vector  # steps
    log_b_crit: Vector  # examples
    exponent_draws: Vector  # p
    log_rate: Vector  # a
    spread: Vector  # standard deviation of the logarithm of a cell's steps about the law
    tried: tuple[float, float]  # examples of the smallest and of the largest batch
    compared: bool  # whether some batch size was trained at several rates; else the steps are those of the rates tried

    @classmethod
    def of(cls, found: StepsToTarget, num_gpus: int = 1) -> "BatchLaw":
        """Take the law from the draws of its constants. num_gpus: for which it is told, where that changes anything."""
        batch, rate, workers = found.law.middle
        level, critical, _, best, rule, doubling = found.constants.T
        return cls(
            log_s_min=level + doubling * (math.log2(num_gpus) - workers),
            log_b_crit=math.log(2) * (critical + batch),
            exponent_draws=rule,
            log_rate=math.log(2) * (rate + best - rule * batch),
            spread=found.spread,
            tried=(2 ** found.law.span[0], 2 ** found.law.span[1]),
            compared=found.law.compared,
        )

    @cached_property
    def s_min(self) -> Estimate:
        """The fewest steps, which a batch without limit takes."""
        return _estimate(self.log_s_min, "S_min", known=not self._perfect)

    @cached_property
    def b_crit(self) -> Estimate:
        """The examples of a batch that takes twice the fewest steps."""
        return _estimate(self.log_b_crit, "B_crit", known=not (self._perfect or self._flat))

    @cached_property
    def near_perfect(self) -> Estimate:
        """The examples of a batch that takes 20 % more steps than perfect scaling."""
        shift = math.log(NEAR_PERFECT)
        return _estimate(self.log_b_crit + shift, "B_crit/5", known=not (self._perfect or self._flat))

    @cached_property
    def e_min(self) -> Estimate:
        """The fewest examples, which a batch near one takes."""
        return _estimate(self.log_s_min + self.log_b_crit, "E_min", known=not self._flat)

    @property
    def identified(self) -> bool:
        """Whether it tells the steps of batch sizes that were not tried."""
        return self.compared and self.s_min.identified and self.b_crit.identified

    @property
    def _perfect(self) -> bool:
        """Whether every batch size that was tried scales perfectly: what ends it is known from beforehand alone."""
        return float(np.quantile(self.log_b_crit, ENDS[0])) > math.log(REGIME_LIMIT * self.tried[1])

    @property
    def _flat(self) -> bool:
        """Whether no batch size that was tried scales."""
        return float(np.quantile(self.log_b_crit, ENDS[-1])) < math.log(self.tried[0] / REGIME_LIMIT)

    @cached_property
    def exponent(self) -> Estimate:
        """The exponent of the best rate. It is not identified if it is hardly better known than beforehand."""
        low, value, high = np.quantile(self.exponent_draws, ENDS_AND_MEDIAN).tolist()
        learnt = bool(self.exponent_draws.std() <= LEARNT * BEFOREHAND[RULE])
        why = "" if learnt else f"the interval of the exponent reaches from {low:.2f} to {high:.2f}"
        return Estimate(value=value, low=low, high=high, identified=learnt, why=why)

    def steps(self, batch_size: float) -> Estimate:
        """Return the steps to the target by the law. The value is that of its median constants, as they are told."""
        low, high = np.exp(np.quantile(self._log_steps(batch_size), ENDS)).tolist()
        return Estimate(value=steps_of_law(self.s_min.value, self.b_crit.value, batch_size), low=low, high=high)

    def untried(self, batch_size: float) -> Vector:
        """Draw the logarithm of the steps of a batch size that was not trained with (k,), about the law as cells are.

        That they deviate much as their neighbours do is left out, so the interval is rather too wide.
        """
        generator = np.random.default_rng(round(1000 * batch_size))
        return np.asarray(self._log_steps(batch_size) + self.spread * generator.standard_normal(len(self.spread)))

    def _log_steps(self, batch_size: float) -> Vector:
        return np.asarray(self.log_s_min + np.log1p(np.exp(self.log_b_crit) / batch_size))

    def best_rate(self, batch_size: float) -> Estimate:
        """Return the rate that takes the fewest steps."""
        return _estimate(self.log_rate + self.exponent_draws * math.log(batch_size), "the best rate")

    def regime(self, batch_size: float) -> Regime | None:
        """Return the regime of a batch size. None if B_crit is not identified and its interval allows several."""
        if self.b_crit.identified:
            return regime_of(batch_size, self.b_crit.value)
        ends = {regime_of(batch_size, self.b_crit.low or 0.0), regime_of(batch_size, self.b_crit.high or math.inf)}
        return ends.pop() if len(ends) == 1 else None


def _estimate(logs: Vector, name: str, *, known: bool = True) -> Estimate:
    """Return the median and the interval of draws of a logarithm. known: whether what was tried tells it at all."""
    low, value, high = np.exp(np.quantile(logs, ENDS_AND_MEDIAN)).tolist()
    known = known and high < WIDEST_RATIO * low
    why = "" if known else f"{name} may be anything from {low:.3g} to {high:.3g}"
    return Estimate(value=value, low=low, high=high, identified=known, why=why)


def steps_of_law(s_min: float, b_crit: float, batch_size: float) -> float:
    """Return S(B)."""
    return s_min * (1 + b_crit / batch_size)


def regime_of(batch_size: float, b_crit: float) -> Regime:
    """Return the regime of a batch size by `REGIME_LIMIT`. b_crit: examples, from 0 to infinity."""
    if batch_size * REGIME_LIMIT <= b_crit:
        return "perfect scaling"
    return "flat" if batch_size >= b_crit * REGIME_LIMIT else "diminishing returns"
