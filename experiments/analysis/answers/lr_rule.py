"""How the best learning rate follows the batch size (docs/formulas.md §2)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from scalestudy.experiments.analysis.answers.efficiency import Tuning
from scalestudy.experiments.analysis.laws.batch_size import LEAST_SIZES
from scalestudy.experiments.analysis.laws.estimate import Estimate
from scalestudy.experiments.analysis.measures.parts import Figure, estimate_part, missing, present
from scalestudy.experiments.analysis.measures.trainings import BestRate, final_rates, setting
from scalestudy.experiments.spec.study_spec import StudySpec

Rule = Literal["linear", "sqrt", "constant"]
EXPONENTS: Mapping[Rule, float] = {"linear": 1.0, "sqrt": 0.5, "constant": 0.0}
"""p of each rule in η = η₀·(B/B₀)^p."""
APPLIED: Mapping[str, float] = {"none": 0.0, "linear": 1.0, "sqrt": 0.5}
"""p by which `train.lr_rule` scales the nominal rate. AdaScale's gain follows the gradients, and has none."""


def lr_rule(spec: StudySpec, tuned: Sequence[Tuning]) -> Figure:
    """Return the `lr_rule` part of `summary.json`: log η* = a + p·log B. tuned: from `efficiency.tunings`.

    If three batch sizes reach the target, a best rate is the one that reaches it soonest: after the last epoch many
    rates have come to the same metric, and differ in how soon they did. Else it has the best metric after the last
    epoch, and there is no law.

    Returns:
        `{of, exponent, target_or_metric, target, applied_rule, nearest, points, why, others}`.

        exponent: of the effective rate, which is the nominal one after `train.lr_rule`. It is missing, with a why, if
        there is no law of the steps, or no batch size was trained at several rates. nearest: the rule whose exponent
        lies in the interval, null if none or several do.

        A point has `best_rate`, of those tried, and the law's `fitted_rate` with `low` and `high`, all nominal;
        `effective_rate` of the best one, `edge`, `rates` tried, n seeds.
    """
    parts = [_part(spec, tuning) for tuning in tuned]
    if not parts:
        return missing("the study has no cells")
    return {**parts[0], "others": parts[1:]}


def _part(spec: StudySpec, tuning: Tuning) -> Figure:
    points = [point.measured for point in tuning.points]
    by_target = sum(point.best is not None for point in points) >= LEAST_SIZES
    if by_target:
        rates = {point.batch_size: point.best for point in points}
        chosen_by = f"soonest to {tuning.target:g} {tuning.metric.title}"
    else:
        rates = final_rates(tuning.trainings, tuning.metric)
        chosen_by = f"{tuning.metric.title} at the last evaluation"
    known = {size: best for size, best in rates.items() if best is not None}
    if not known:
        return missing("no training finished")
    rule = setting(spec, tuning.combination, "train.lr_rule")
    base, power = setting(spec, tuning.combination, "train.base_batch_size"), APPLIED.get(rule)
    law, exponent, nearest = tuning.law, missing(tuning.why), None
    if power is None:
        exponent = missing("under adascale the rate of a step follows its gradients, and not the batch size alone")
    elif law is not None and not law.compared:
        exponent = missing("each batch size was trained at one rate: try others")
    elif law is not None:
        nominal = law.exponent
        effective = replace(nominal, **{end: getattr(nominal, end) + power for end in ("value", "low", "high")})
        exponent = estimate_part(effective, "try batch sizes further apart, or more rates")
        nearest = _nearest(effective)
    examples = {point.batch_size: point.examples_per_step for point in points}

    def point(size: int, best: BestRate) -> dict[str, Any]:
        fitted = law.best_rate(examples[size]) if law is not None and present(exponent) else None
        return {
            "batch_size": size,
            "best_rate": best.rate,
            "effective_rate": None if power is None else best.rate * (size / base) ** power,
            "fitted_rate": fitted and fitted.value,
            "low": fitted and fitted.low,
            "high": fitted and fitted.high,
            "edge": best.edge,
            "rates": best.rates,
            "n": sum(math.isfinite(cost) for cost in best.costs),
        }

    return {
        "of": tuning.combination.of,
        "exponent": exponent,
        "target_or_metric": chosen_by,
        "target": tuning.target if by_target else None,
        "applied_rule": rule,
        "nearest": nearest,
        "points": [point(size, best) for size, best in known.items()],
        "why": exponent.get("why"),
    }


def _nearest(exponent: Estimate) -> Rule | None:
    """Return the one rule whose exponent lies in the interval."""
    if exponent.low is None or exponent.high is None or not exponent.identified:
        return None
    inside = [rule for rule, power in EXPONENTS.items() if exponent.low <= power <= exponent.high]
    return inside[0] if len(inside) == 1 else None
