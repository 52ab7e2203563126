"""Steps over batch sizes; noise scale.

Each epoch's record has the means over its sampled steps of two unbiased estimates, |G|² and tr Σ. They are averaged
apart, over epochs and trainings, and then divided: B_noise = mean(tr Σ) / mean(|G|²) (McCandlish et al. 2018, arXiv
1812.06162). It is a proxy of B_crit that hangs on the optimizer's path, so that it is labelled with the optimizer.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scalestudy.experiments.analysis.laws.batch_size import LEAST_SIZES, REGIME_LIMIT, BatchLaw, fit_batch_law
from scalestudy.experiments.analysis.laws.least_squares import Estimate
from scalestudy.experiments.analysis.laws.power import ratio_of_means
from scalestudy.experiments.analysis.measures.cells import Cell, Combination, combinations
from scalestudy.experiments.analysis.measures.intervals import holding, over_seeds
from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.analysis.measures.parts import Part, bound_part, estimate_part, finite, missing
from scalestudy.experiments.analysis.measures.trainings import BatchPoint, Training, batch_points, trainings_of
from scalestudy.experiments.spec.checks import inexact_findings
from scalestudy.experiments.spec.study_spec import StudySpec

NOT_MEASURED = "no training that finished has recorded its gradients' noise"
MORE = "measure more steps, or more seeds"
NOT_ABOVE_ZERO = "the mean estimate of |G|² or of tr Σ is not above zero: measure more steps, or larger batch sizes"


def noise_scale(trainings: Sequence[Training], rates: Mapping[int, float], optimizer: str) -> Part:
    """B_noise in examples, over the trainings at the best rate of their batch size.

    Args:
        trainings: of one combination of settings.
        rates: the best rate by batch size; of a batch size that has none all rates count.
        optimizer: its name, with what else sets it off.

    Returns:
        `{value, low, high, identified, optimizer, steps, by_batch, why}`. value null, with a why, where a mean is not
        above zero; identified false, with a why, where the interval has no ends.
        low, high: 90 %, Fieller's, over trainings; the same batch size, rate and seed on several num_gpus is one
        training. steps: those of the epochs that were measured, of which training samples some.
    """
    measured = [
        training
        for training in trainings
        if training.noise is not None and rates.get(training.batch_size, training.rate) == training.rate
    ]
    pairs = _pairs(measured)
    found = ratio_of_means(*_columns(list(pairs.values()))) if pairs else None
    return {
        **_figures(found, NOT_ABOVE_ZERO if pairs else NOT_MEASURED),
        "optimizer": optimizer,
        "steps": sum(training.noise_steps for training in measured),
        "by_batch": _by_batch(pairs),
    }


def _figures(found: Estimate | None, why: str) -> dict[str, Any]:
    if found is None:
        return {"value": None, "low": None, "high": None, "identified": False, "why": why}
    return {"identified": True, "why": None, **estimate_part(found, MORE)}


def _pairs(trainings: Sequence[Training]) -> dict[tuple[int, float, int], tuple[float, float]]:
    """Mean |G|² and tr Σ by batch size, rate and seed."""
    told: dict[tuple[int, float, int], list[tuple[float, float]]] = defaultdict(list)
    for training in trainings:
        if training.noise is not None:
            told[training.batch_size, training.rate, training.seed].append(training.noise)
    return {key: _means(noises) for key, noises in sorted(told.items())}


def _means(noises: Sequence[tuple[float, float]]) -> tuple[float, float]:
    traces, squares = _columns(noises)
    return statistics.fmean(squares), statistics.fmean(traces)


def _columns(pairs: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """tr Σ and |G|² apart, as the ratio takes them."""
    return [trace for _, trace in pairs], [squared for squared, _ in pairs]


def _by_batch(pairs: Mapping[tuple[int, float, int], tuple[float, float]]) -> list[dict[str, Any]]:
    """B_noise by batch size: where these differ, the noise scale is no single number."""
    members: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for (batch_size, _, _), pair in pairs.items():
        members[batch_size].append(pair)
    ratios = {batch_size: ratio_of_means(*_columns(found)) for batch_size, found in members.items()}
    return [{"batch_size": size, "value": ratio and finite(ratio.value)} for size, ratio in ratios.items()]


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Batch sizes at their best rates, of one combination. num_gpus: whose trainings are pooled. target: None where no
    target can be used. points: at the target."""

    combination: Combination
    metric: StudyMetric
    num_gpus: tuple[int, ...]
    trainings: tuple[Training, ...]
    target: float | None
    points: tuple[BatchPoint, ...]


@dataclass(frozen=True, kw_only=True)
class PointsLaw:
    """The law through points. bounds: why its figures are bounds only, "" where they aren't. why: why there is none."""

    law: BatchLaw | None = None
    bounds: str = ""
    why: str = ""


def statistical_efficiency(spec: StudySpec, found: Sequence[Tuning]) -> Part:
    """The `statistical_efficiency` part of `summary.json`.

    Args:
        spec: the study's.
        found: of `tunings`.

    Returns:
        `{of, target, num_gpus, s_min, b_crit, e_min, regimes, points, noise_scale, why, others}`, a part of the same
        form in `others` for each other combination of swept keys. s_min in steps, b_crit and e_min in examples:
        estimates, or missing with a why. num_gpus: whose trainings were pooled. training_examples: of an
        epoch. regimes: up to which batch size scaling
        is perfect and from which on flat; None where B_crit is not identified. A point: the median of `steps` over n
        seeds at the best rate, their interval, `examples`, `examples_per_step` (below the batch size where an epoch
        ends in a smaller batch; what the law is fitted over), `edge` and `rates` of the grid, `upper_bound` (met within
        the first epoch), `stopped` (seeds that were stopped before the target, none of n), `regime` and `fitted_steps`
        by the law, null where there is none.
    """
    parts = [_part(spec, tuning) for tuning in found]
    if not parts:
        return missing("the study has no cells")
    return {**parts[0], "others": parts[1:]}


def tunings(spec: StudySpec, cells: Sequence[Cell], recommendation: Part | None = None) -> list[Tuning]:
    """Each combination of a study's settings with its points, at the target that is its own.

    Args:
        spec: the study's.
        cells: of `cells.gather`.
        recommendation: of `recommendation.choose`; the combination of its choice stands first, and its target is used
            where no target is reached by three batch sizes.
    """
    metric = StudyMetric.of(spec.workload)
    wanted = (recommendation or {}).get("target")
    targets = {*spec.targets.accuracy, *([] if wanted is None else [wanted])}
    return [_tuning(spec, each, metric, targets, wanted) for each in combinations(cells, recommendation)]


def _tuning(
    spec: StudySpec, combination: Combination, metric: StudyMetric, targets: set[float], wanted: float | None
) -> Tuning:
    trainings = trainings_of(combination.cells)
    if _sets_workers_apart(spec, combination):
        most = statistics.mode(sorted(training.num_gpus for training in trainings)) if trainings else 0
        trainings = [training for training in trainings if training.num_gpus == most]
    by_target = {target: batch_points(trainings, target, metric) for target in metric.hardest_first(targets)}
    target = _usable_target(by_target, wanted)
    return Tuning(
        combination=combination,
        metric=metric,
        num_gpus=tuple(sorted({training.num_gpus for training in trainings})),
        trainings=tuple(trainings),
        target=target,
        points=tuple(by_target[target]) if target is not None else (),
    )


def _sets_workers_apart(spec: StudySpec, combination: Combination) -> bool:
    """Whether what a step learns depends on num_gpus beyond rounding (docs/formulas.md §7), as far as the spec tells:
    trainings on different num_gpus are then not the same ones."""
    findings = inexact_findings(spec, lambda key: [setting(spec, combination, key.removeprefix("train."))])
    return next(findings, None) is not None


def _usable_target(by_target: dict[float, list[BatchPoint]], wanted: float | None) -> float | None:
    """The hardest target of which three batch sizes have measured steps; else that three reach; else the wanted one.

    by_target: the hardest first.
    """
    for enough in (lambda point: point.measured, lambda point: point.best is not None):
        for target, points in by_target.items():
            if sum(map(enough, points)) >= LEAST_SIZES:
                return target
    reached = [target for target, points in by_target.items() if any(point.best for point in points)]
    return wanted if wanted in reached else next(iter(reached), None)


def setting(spec: StudySpec, combination: Combination, key: str) -> Any:
    """The value of a key of `train` in a combination: as swept, else the spec's. key: dotted, without `train.`."""
    if f"train.{key}" in combination.settings:
        return combination.settings[f"train.{key}"]
    value: Any = spec.train
    for name in key.split("."):
        value = getattr(value, name)
    return value


def _part(spec: StudySpec, tuning: Tuning) -> Part:
    rates = {point.batch_size: point.best.rate for point in tuning.points if point.best}
    noise = noise_scale(tuning.trainings, rates, _optimizer(spec, tuning.combination))
    if not rates and noise["value"] is None:
        return missing(_why_nothing(spec, tuning))
    found = law_through(tuning.points) if tuning.points else PointsLaw(why=_why_nothing(spec, tuning))
    drawn = found.law if not found.bounds else None
    return {
        "of": tuning.combination.of,
        "target": tuning.target,
        "num_gpus": list(tuning.num_gpus),
        "training_examples": max(
            (each.epoch_examples for each in tuning.trainings if each.epoch_examples), default=None
        ),
        **_estimates(found, tuning.points),
        "regimes": _regimes(drawn),
        "points": [_point(point, drawn) for point in tuning.points],
        "noise_scale": noise,
        "why": found.bounds or found.why or None,
    }


def _why_nothing(spec: StudySpec, tuning: Tuning) -> str:
    if not tuning.trainings:
        return "no training ended in a way that says how many steps a target takes"
    if not spec.targets.accuracy and not tuning.points:
        return f"the spec names no target {tuning.metric.name} (targets.accuracy)"
    return "no batch size reached a target"


def _optimizer(spec: StudySpec, combination: Combination) -> str:
    """`sgd`, `sgd, momentum 0.9`."""
    name, momentum = (setting(spec, combination, f"optimizer.{key}") for key in ("name", "momentum"))
    return f"{name}, momentum {momentum:g}" if name == "sgd" and momentum else str(name)


def law_through(points: Sequence[BatchPoint]) -> PointsLaw:
    """The law through the points whose steps were measured.

    Those whose best rate is at the edge of its grid are left out; if too few are left, they are taken in, and what
    follows are bounds.
    """
    measured = _different([point for point in points if point.measured])
    if len(measured) < LEAST_SIZES:
        return PointsLaw(why=_why_no_law(points, len(measured)))
    tuned = [point for point in measured if point.best and point.best.edge is None]
    if len(tuned) >= LEAST_SIZES:
        return PointsLaw(law=_fitted(tuned))
    return PointsLaw(law=_fitted(measured), bounds=_why_bounds([point for point in measured if point not in tuned]))


def _different(points: Sequence[BatchPoint]) -> list[BatchPoint]:
    """Without batch sizes whose steps have as many examples as a smaller one's, both being the whole training set."""
    return list({point.examples_per_step: point for point in reversed(points)}.values())[::-1]


def _fitted(points: Sequence[BatchPoint]) -> BatchLaw:
    """Through the geometric means over seeds of the fair costs, over the examples that a step has."""
    steps = [math.exp(float(np.mean(np.log(point.best.fair)))) for point in points if point.best]
    return fit_batch_law([point.examples_per_step for point in points], steps)


def _why_no_law(points: Sequence[BatchPoint], measured: int) -> str:
    others = [f"{point.batch_size}: {point.why_not_measured}" for point in points if not point.measured]
    inside = f" ({'; '.join(others)})" if others else ""
    sizes = f"{measured} batch {'size has' if measured == 1 else 'sizes have'} measured steps to the target"
    return f"a law of batch sizes needs {LEAST_SIZES}, and {sizes}{inside}"


def _why_bounds(edged: Sequence[BatchPoint]) -> str:
    """Names the measurement that would identify the law."""
    wanted = []
    for point in edged:
        best = point.best
        if best is not None:
            beyond = "other rates" if best.rates == 1 else f"{'lower' if best.edge == 'lowest' else 'higher'} rates"
            wanted.append(f"{beyond} than {best.rate:g} at batch {point.batch_size}")
    return f"the best rate is at the edge of those tried, so that steps are upper bounds: try {', '.join(wanted)}"


def _estimates(found: PointsLaw, points: Sequence[BatchPoint]) -> dict[str, Part]:
    """s_min, b_crit and e_min."""
    law = found.law
    if law is None:
        return {name: missing(found.why) for name in ("s_min", "b_crit", "e_min")}
    estimates = {"s_min": law.s_min, "b_crit": law.b_crit, "e_min": law.e_min}
    if found.bounds:
        return {name: bound_part(estimate.value, found.bounds) for name, estimate in estimates.items()}
    sizes = [point.batch_size for point in points if point.measured]
    advice = {
        "s_min": f"try batch sizes above {max(sizes)}, or more of them",
        "e_min": f"try batch sizes below {min(sizes)}, or more of them",
    }
    advice["b_crit"] = advice["e_min"] if law.s_min.identified else advice["s_min"]
    return {name: estimate_part(estimate, advice[name]) for name, estimate in estimates.items()}


def _regimes(law: BatchLaw | None) -> dict[str, float] | None:
    if law is None or not law.b_crit.identified:
        return None
    return {"perfect_up_to": law.b_crit.value / REGIME_LIMIT, "flat_from": law.b_crit.value * REGIME_LIMIT}


def _point(point: BatchPoint, law: BatchLaw | None) -> dict[str, Any]:
    best = point.best
    steps = finite(statistics.median(best.costs)) if best else None
    interval = holding(over_seeds(best.costs), steps) if best else None
    return {
        "batch_size": point.batch_size,
        "examples_per_step": point.examples_per_step,
        "learning_rate": best.rate if best else None,
        "steps": steps,
        "low": interval and interval["low"],
        "high": interval and interval["high"],
        "examples": None if steps is None else steps * point.examples_per_step,
        "n": len(best.costs) if best else 0,
        "edge": best.edge if best else None,
        "rates": best.rates if best else None,
        "upper_bound": point.upper_bound,
        "stopped": point.stopped,
        "regime": law.regime(point.examples_per_step) if law else None,
        "fitted_steps": law.steps(point.examples_per_step) if law else None,
    }
