"""How the best learning rate follows the batch size, as measured (docs/formulas.md §2)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from scalestudy.experiments.analysis.answers.efficiency import Tuning
from scalestudy.experiments.analysis.laws.least_squares import Estimate
from scalestudy.experiments.analysis.laws.power import LEAST_POINTS, PowerLaw, fit_power
from scalestudy.experiments.analysis.measures.parts import Figure, estimate_part, missing
from scalestudy.experiments.analysis.measures.trainings import BestRate, final_rates, setting
from scalestudy.experiments.spec.study_spec import StudySpec

Rule = Literal["linear", "sqrt", "constant"]
EXPONENTS: Mapping[Rule, float] = {"linear": 1.0, "sqrt": 0.5, "constant": 0.0}
"""p of each rule in η = η₀·(B/B₀)^p."""
APPLIED: Mapping[str, float] = {"none": 0.0, "linear": 1.0, "sqrt": 0.5}
"""p by which `train.lr_rule` scales the nominal rate. AdaScale's gain follows the gradients, and has none."""


def lr_rule(spec: StudySpec, tuned: Sequence[Tuning]) -> Figure:
    """Return the `lr_rule` part of `summary.json`: log η* = a + p·log B. tuned: from `efficiency.tunings`.

    If three batch sizes reach the target, the best rate is the one that reaches it soonest: after the last epoch many
    rates have come to the same metric, and differ in how soon they did. Else the best rate has the best metric after
    the last epoch.

    Returns:
        `{of, exponent, target_or_metric, target, applied_rule, nearest, by_resolution, points, why, others}`.

        exponent: of the effective rate, which is the nominal one after `train.lr_rule`. It is missing, with a why, if
        fewer than three batch sizes have their best rate inside the grid. nearest: the rule whose exponent lies in the
        interval, null if none or several do. by_resolution: whether the interval is set by the grid's spacing and by
        rates that the seeds can't tell apart, rather than by scatter about the rule.

        A point has `best_rate` (nominal), `effective_rate`, `low` and `high` (nominal, the range in which grid and
        seeds leave it), `edge`, `rates` tried, n seeds, `fitted_rate` (nominal).
    """
    parts = [_part(spec, tuning) for tuning in tuned]
    if not parts:
        return missing("the study has no cells")
    return {**parts[0], "others": parts[1:]}


def _part(spec: StudySpec, tuning: Tuning) -> Figure:
    by_target = sum(point.best is not None for point in tuning.points) >= LEAST_POINTS
    if by_target:
        rates = {point.batch_size: point.best for point in tuning.points}
        chosen_by = f"soonest to {tuning.target:g} {tuning.metric.title}"
    else:
        rates = final_rates(tuning.trainings, tuning.metric)
        chosen_by = f"{tuning.metric.title} at the last evaluation"
    known = {size: best for size, best in rates.items() if best is not None}
    if not known:
        return missing("no training finished")
    rule = setting(spec, tuning.combination, "train.lr_rule")
    base, power = setting(spec, tuning.combination, "train.base_batch_size"), APPLIED.get(rule)
    factors = None if power is None else {size: (size / base) ** power for size in known}  # effective over nominal rate
    law, why = _law(known, factors)
    exponent, nearest = missing(why), None
    if law is not None:
        remedy = "a finer grid of rates" if law.by_resolution else "more batch sizes"
        exponent = estimate_part(law.exponent, f"try {remedy}, or batch sizes further apart")
        nearest = _nearest(law.exponent)
    return {
        "of": tuning.combination.of,
        "exponent": exponent,
        "target_or_metric": chosen_by,
        "target": tuning.target if by_target else None,
        "applied_rule": rule,
        "nearest": nearest,
        "by_resolution": law.by_resolution if law is not None else None,
        "points": [_point(size, best, factors, law) for size, best in known.items()],
        "why": why or exponent.get("why"),
    }


def _law(known: Mapping[int, BestRate], factors: Mapping[int, float] | None) -> tuple[PowerLaw | None, str]:
    """Fit the law through the rates inside their grids, or say why there is none.

    factors: effective over nominal rate.
    """
    if factors is None:
        return None, "under adascale the rate of a step follows its gradients, and not the batch size alone"
    inside = {size: best for size, best in known.items() if best.edge is None}
    if len(inside) >= LEAST_POINTS:
        middles = [best.middle * factors[size] for size, best in inside.items()]
        return fit_power(list(inside), middles, [best.width for best in inside.values()]), ""
    tries = []
    for size, best in known.items():
        if best.edge is not None:
            wanted = "rates other than" if best.rates == 1 else f"rates {'below' if best.edge == 'lowest' else 'above'}"
            tries.append(f"{wanted} {best.rate:g} at batch {size}")
    have = f"{len(inside)} {'has its best rate' if len(inside) == 1 else 'have their best rates'} inside the grid"
    remedy = f"; at the edge it is a bound: try {', '.join(tries)}" if tries else ""
    return None, f"the rule needs {LEAST_POINTS} batch sizes, and {have}{remedy}"


def _nearest(exponent: Estimate) -> Rule | None:
    """Return the one rule whose exponent lies in the interval."""
    if exponent.low is None or exponent.high is None:
        return None
    inside = [rule for rule, power in EXPONENTS.items() if exponent.low <= power <= exponent.high]
    return inside[0] if len(inside) == 1 else None


def _point(size: int, best: BestRate, factors: Mapping[int, float] | None, law: PowerLaw | None) -> dict[str, Any]:
    factor = factors[size] if factors is not None else None
    return {
        "batch_size": size,
        "best_rate": best.rate,
        "effective_rate": None if factor is None else best.rate * factor,
        "low": best.low,
        "high": best.high,
        "edge": best.edge,
        "rates": best.rates,
        "n": sum(math.isfinite(cost) for cost in best.costs),
        "fitted_rate": None if law is None or factor is None else law.value(size) / factor,
    }
