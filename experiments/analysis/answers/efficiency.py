"""Steps to a target over batch sizes, and the gradients' noise scale (docs/formulas.md §3).

The noise scale is a proxy of B_crit. Each epoch's record has the means, over its sampled steps, of two unbiased
estimates, |G|² and tr Σ. Each is averaged over epochs and trainings before they are divided: B_noise = mean(tr Σ) /
mean(|G|²) (McCandlish et al. 2018, arXiv 1812.06162). It depends on the optimizer's path, so it is labelled with the
optimizer.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scalestudy.experiments.analysis.laws.batch_size import LEAST_SIZES, REGIME_LIMIT, BatchLaw, fit_batch_law
from scalestudy.experiments.analysis.laws.least_squares import Estimate
from scalestudy.experiments.analysis.laws.power import ratio_of_means
from scalestudy.experiments.analysis.measures.cells import Cell, Combination, combinations
from scalestudy.experiments.analysis.measures.intervals import holding, over_seeds
from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.analysis.measures.parts import Figure, bound_part, estimate_part, finite, missing
from scalestudy.experiments.analysis.measures.trainings import (
    BatchPoint,
    Training,
    batch_points,
    learns_alike,
    setting,
    trainings_of,
)
from scalestudy.experiments.spec.study_spec import StudySpec

NOT_MEASURED = "no training that finished has recorded its gradients' noise"
MORE = "measure more steps, or more seeds"
NOT_ABOVE_ZERO = "the mean estimate of |G|² or of tr Σ is not above zero: measure more steps, or larger batch sizes"
Noise = tuple[float, float]
"""|G|² and tr Σ."""


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """The batch sizes of one combination, each at its best rate."""

    combination: Combination
    metric: StudyMetric
    num_gpus: tuple[int, ...]  # whose trainings are pooled
    trainings: tuple[Training, ...]
    target: float | None  # None if no target can be used
    points: tuple[BatchPoint, ...]  # at the target


@dataclass(frozen=True, kw_only=True)
class PointsLaw:
    """The law through points."""

    law: BatchLaw | None = None
    bounds: str = ""  # why its figures are only bounds, else ""
    why: str = ""  # the reason if there is no law


def statistical_efficiency(spec: StudySpec, tuned: Sequence[Tuning]) -> Figure:
    """Return the `statistical_efficiency` part of `summary.json`. tuned: from `tunings`.

    Returns:
        `{of, target, num_gpus, s_min, b_crit, e_min, regimes, points, noise_scale, why, others}`. `others` has a part
        of the same form for each other combination of swept keys.

        s_min is in steps, b_crit and e_min in examples: estimates, or missing with a why. num_gpus: whose trainings
        were pooled. training_examples: of an epoch. regimes: up to which batch size scaling is perfect, and from which
        on it is flat; None if B_crit is not identified.

        A point has the median of `steps` over n seeds at the best rate, with its interval; `examples`;
        `examples_per_step`, over which the law is fitted (below the batch size if an epoch ends in a smaller batch);
        `edge` and `rates` of the grid; `upper_bound` (met within the first epoch); `stopped` (seeds that were stopped
        before the target, not among n); `regime` and `fitted_steps` by the law, null without one.
    """
    parts = [_part(spec, tuning) for tuning in tuned]
    if not parts:
        return missing("the study has no cells")
    return {**parts[0], "others": parts[1:]}


def tunings(spec: StudySpec, cells: Sequence[Cell], recommendation: Figure | None = None) -> list[Tuning]:
    """Return each combination of a study's settings with its points.

    Args:
        spec: the study's.
        cells: from `cells.gather`.
        recommendation: from `Analysis.recommend`. The combination of its choice stands first. All combinations
            take its target. Without a choice each has the hardest target that is known well enough.
    """
    metric = StudyMetric.of(spec.workload)
    wanted = (recommendation or {}).get("target")
    targets = {*spec.targets.accuracy, *([] if wanted is None else [wanted])}
    return [_tuning(spec, each, metric, targets, wanted) for each in combinations(cells, recommendation)]


def _tuning(
    spec: StudySpec, combination: Combination, metric: StudyMetric, targets: set[float], wanted: float | None
) -> Tuning:
    trainings = trainings_of(combination.cells)
    if not learns_alike(spec, combination):  # trainings can't be pooled
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


def _usable_target(by_target: dict[float, list[BatchPoint]], wanted: float | None) -> float | None:
    """Return the wanted target, else the hardest that three batch sizes reach, if possible with measured steps.

    by_target: the hardest first.
    """
    if wanted is not None:
        return wanted
    for enough in (lambda point: point.measured, lambda point: point.best is not None):
        for target, points in by_target.items():
            if sum(map(enough, points)) >= LEAST_SIZES:
                return target
    return next((target for target, points in by_target.items() if any(point.best for point in points)), None)


def _part(spec: StudySpec, tuning: Tuning) -> Figure:
    rates = {point.batch_size: point.best.rate for point in tuning.points if point.best}
    optimizer, momentum = (setting(spec, tuning.combination, f"train.optimizer.{key}") for key in ("name", "momentum"))
    named = f"{optimizer}, momentum {momentum:g}" if optimizer == "sgd" and momentum else str(optimizer)
    noise = noise_scale(tuning.trainings, rates, named)
    if not rates and noise["value"] is None:
        return missing(_why_nothing(spec, tuning))
    fitted = law_through(tuning.points) if tuning.points else PointsLaw(why=_why_nothing(spec, tuning))
    drawn = fitted.law if not fitted.bounds else None
    regimes = None
    if drawn is not None and drawn.b_crit.identified:
        critical = drawn.b_crit.value
        regimes = {"perfect_up_to": critical / REGIME_LIMIT, "flat_from": critical * REGIME_LIMIT}
    return {
        "of": tuning.combination.of,
        "target": tuning.target,
        "num_gpus": list(tuning.num_gpus),
        "training_examples": max(
            (each.epoch_examples for each in tuning.trainings if each.epoch_examples), default=None
        ),
        **_estimates(fitted, tuning.points),
        "regimes": regimes,
        "points": [_point(point, drawn) for point in tuning.points],
        "noise_scale": noise,
        "why": fitted.bounds or fitted.why or None,
    }


def _why_nothing(spec: StudySpec, tuning: Tuning) -> str:
    if not tuning.trainings:
        return "no training ended in a way that says how many steps a target takes"
    if not spec.targets.accuracy and not tuning.points:
        return f"the spec names no target {tuning.metric.name} (targets.accuracy)"
    return "no batch size reached a target"


def law_through(points: Sequence[BatchPoint]) -> PointsLaw:
    """Fit the law through the points whose steps were measured.

    Points whose best rate is at the edge of its grid are left out. If too few remain they are used, and the law's
    figures are bounds.
    """
    measured = [point for point in points if point.measured]
    # of batch sizes that all hold the whole training set in a step, the smallest stands
    measured = list({point.examples_per_step: point for point in reversed(measured)}.values())[::-1]
    if len(measured) < LEAST_SIZES:
        others = [f"{point.batch_size}: {point.why_not_measured}" for point in points if not point.measured]
        inside = f" ({'; '.join(others)})" if others else ""
        sizes = f"{len(measured)} batch {'size has' if len(measured) == 1 else 'sizes have'} measured steps"
        return PointsLaw(why=f"a law of batch sizes needs {LEAST_SIZES}, and {sizes} to the target{inside}")
    tuned = [point for point in measured if point.best and point.best.edge is None]
    if len(tuned) >= LEAST_SIZES:
        return PointsLaw(law=_fitted(tuned))
    wanted = []
    for point in measured:
        if (best := point.best) is not None and best.edge is not None:
            beyond = "other rates" if best.rates == 1 else f"{'lower' if best.edge == 'lowest' else 'higher'} rates"
            wanted.append(f"{beyond} than {best.rate:g} at batch {point.batch_size}")
    why = f"the best rate is at the edge of those tried, so steps are upper bounds: try {', '.join(wanted)}"
    return PointsLaw(law=_fitted(measured), bounds=why)


def _fitted(points: Sequence[BatchPoint]) -> BatchLaw:
    """Fit the law through the geometric means over seeds of the fair costs, over the examples of a step."""
    steps = [math.exp(float(np.mean(np.log(point.best.fair)))) for point in points if point.best]
    return fit_batch_law([point.examples_per_step for point in points], steps)


def _estimates(fitted: PointsLaw, points: Sequence[BatchPoint]) -> dict[str, Figure]:
    """Return s_min, b_crit and e_min."""
    law = fitted.law
    if law is None:
        return {name: missing(fitted.why) for name in ("s_min", "b_crit", "e_min")}
    estimates = {"s_min": law.s_min, "b_crit": law.b_crit, "e_min": law.e_min}
    if fitted.bounds:
        return {name: bound_part(estimate.value, fitted.bounds) for name, estimate in estimates.items()}
    sizes = [point.batch_size for point in points if point.measured]
    advice = {
        "s_min": f"try batch sizes above {max(sizes)}, or more of them",
        "e_min": f"try batch sizes below {min(sizes)}, or more of them",
    }
    advice["b_crit"] = advice["e_min"] if law.s_min.identified else advice["s_min"]
    return {name: estimate_part(estimate, advice[name]) for name, estimate in estimates.items()}


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


def noise_scale(trainings: Sequence[Training], rates: Mapping[int, float], optimizer: str) -> Figure:
    """Estimate B_noise in examples, over the trainings at the best rate of their batch size.

    Args:
        trainings: of one combination of settings.
        rates: the best rate by batch size. A batch size that has none counts with all its rates.
        optimizer: its name, with its distinguishing settings.

    Returns:
        `{value, low, high, identified, optimizer, steps, by_batch, why}`. value is null, with a why, if a mean is not
        above zero; identified is false, with a why, if the interval has no ends. low, high: 90 %, Fieller's, over
        trainings; the same batch size, rate and seed on several num_gpus is one training. steps: the steps of the
        measured epochs, of which training samples some. by_batch: if its values differ, the noise scale is no
        single number.
    """
    measured = [
        training
        for training in trainings
        if training.noise is not None and rates.get(training.batch_size, training.rate) == training.rate
    ]
    told: dict[tuple[int, float, int], list[Noise]] = defaultdict(list)
    for training in measured:
        if training.noise is not None:
            told[training.batch_size, training.rate, training.seed].append(training.noise)
    pairs: dict[tuple[int, float, int], Noise] = {}
    by_batch: dict[int, list[Noise]] = defaultdict(list)
    for key, noises in sorted(told.items()):
        squares, traces = zip(*noises, strict=True)
        pairs[key] = statistics.fmean(squares), statistics.fmean(traces)
        by_batch[key[0]].append(pairs[key])

    found = _ratio(pairs.values()) if pairs else None
    figure: dict[str, Any] = {"value": None, "low": None, "high": None, "identified": False}
    figure["why"] = NOT_ABOVE_ZERO if pairs else NOT_MEASURED
    if found is not None:
        figure = {"identified": True, "why": None, **estimate_part(found, MORE)}
    ratios = {batch_size: _ratio(noises) for batch_size, noises in by_batch.items()}
    return {
        **figure,
        "optimizer": optimizer,
        "steps": sum(training.noise_steps for training in measured),
        "by_batch": [{"batch_size": size, "value": ratio and finite(ratio.value)} for size, ratio in ratios.items()],
    }


def _ratio(noises: Iterable[Noise]) -> Estimate | None:
    squares, traces = zip(*noises, strict=True)
    return ratio_of_means(traces, squares)
