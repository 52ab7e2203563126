"""Steps to a target over batch sizes, and the gradients' noise scale (docs/formulas.md §3).

The noise scale is a proxy of B_crit. Each epoch's record has the means, over its sampled steps, of two unbiased
estimates, |G|² and tr Σ. Each is averaged over epochs and trainings before they are divided: B_noise = mean(tr Σ) /
mean(|G|²) (McCandlish et al. 2018, arXiv 1812.06162). It depends on the optimizer's path, so it is labelled with the
optimizer.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from scalestudy.experiments.analysis.answers.judged import LOOP_NOISE, SAID_BY_OTHERS
from scalestudy.experiments.analysis.answers.posterior import Posterior
from scalestudy.experiments.analysis.laws.batch_size import LEAST_SIZES, REGIME_LIMIT, BatchLaw
from scalestudy.experiments.analysis.laws.estimate import Estimate
from scalestudy.experiments.analysis.laws.ratio import ratio_of_means
from scalestudy.experiments.analysis.measures.cells import Combination, combinations
from scalestudy.experiments.analysis.measures.intervals import holding, over_seeds
from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.analysis.measures.parts import Figure, bound_part, estimate_part, finite, missing
from scalestudy.experiments.analysis.measures.trainings import (
    BatchPoint,
    Training,
    batch_points,
    setting,
)
from scalestudy.experiments.spec.study_spec import StudySpec

CURVE_PLACES = 41
NOT_MEASURED = "no training that finished has recorded its gradients' noise"
MORE = "measure more steps, or more seeds"
NOT_ABOVE_ZERO = "the mean estimate of |G|² or of tr Σ is not above zero: measure more steps, or larger batch sizes"
Noise = tuple[float, float]
"""|G|² and tr Σ."""


@dataclass(frozen=True, kw_only=True)
class TunedPoint:
    """A batch size at its best rate."""

    measured: BatchPoint
    estimate: Estimate | None  # of the steps, as in the cells' times (`Learnt.steps`)


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """The batch sizes of one combination, each at its best rate."""

    combination: Combination
    metric: StudyMetric
    num_gpus: tuple[int, ...]  # whose trainings are pooled
    trainings: tuple[Training, ...]
    target: float | None  # None if no target can be used
    points: tuple[TunedPoint, ...]  # at the target
    law: BatchLaw | None
    why: str  # the reason if there is no law, else ""


def statistical_efficiency(spec: StudySpec, tuned: Sequence[Tuning]) -> Figure:
    """Return the `statistical_efficiency` part of `summary.json`. tuned: from `tunings`.

    Returns:
        `{of, target, num_gpus, s_min, b_crit, near_perfect, e_min, regimes, points, curve, noise_scale, why, others}`.
        `others` has a part of the same form for each other combination of swept keys.

        s_min is in steps, b_crit, near_perfect (20 % more steps than perfect scaling) and e_min in examples: estimates,
        or missing with a why. num_gpus: whose trainings were pooled. training_examples: of an epoch. regimes: up to
        which batch size scaling is perfect, and from which on it is flat; None if B_crit is not identified.

        A point has the median of `steps` over n seeds at the best rate, with its interval; `estimate`, of the steps
        from all cells together, which the times of cells have; `examples`; `examples_per_step`, which the law is a
        function of (below the batch size if an epoch ends in a smaller batch); `edge` and `rates` of the grid;
        `upper_bound` (met within the first epoch); `stopped` (seeds that were stopped before the target, not among n);
        `regime` and `fitted_steps` by the law, null without one. curve: the law's steps between the batch sizes.
    """
    parts = [_part(spec, tuning) for tuning in tuned]
    if not parts:
        return missing("the study has no cells")
    return {**parts[0], "others": parts[1:]}


def tunings(posterior: Posterior, recommendation: Figure | None = None) -> list[Tuning]:
    """Return each combination of a study's settings with its points and their law.

    Args:
        posterior: of the study.
        recommendation: from `Analysis.recommend`. The combination of its choice stands first. All combinations
            take its target. Without a choice each has the hardest target that is known well enough.
    """
    wanted = (recommendation or {}).get("target")
    return [_tuning(posterior, each, wanted) for each in combinations(posterior.cells, recommendation)]


def _tuning(posterior: Posterior, combination: Combination, wanted: float | None) -> Tuning:
    spec, metric, trainings = posterior.spec, posterior.metric, posterior.trainings(combination.of)
    most = 1
    if not posterior.pooled(combination.of):  # trainings can't be pooled
        most = statistics.mode(sorted(training.num_gpus for training in trainings)) if trainings else 1
        trainings = [training for training in trainings if training.num_gpus == most]
    target = wanted if wanted is not None else _usable_target(trainings, spec.targets.accuracy, metric)
    points, law, why = _through(posterior, combination.of, trainings, target, most)
    tuning = Tuning(
        combination=combination,
        metric=metric,
        num_gpus=tuple(sorted({training.num_gpus for training in trainings})),
        trainings=tuple(trainings),
        target=target,
        points=points,
        law=law,
        why=why,
    )
    return tuning if points else replace(tuning, why=_why_nothing(spec, tuning))


def _usable_target(trainings: Sequence[Training], targets: Sequence[float], metric: StudyMetric) -> float | None:
    """Return the hardest target that three batch sizes reach, if possible with measured steps."""
    by_target = {target: batch_points(trainings, target, metric) for target in metric.hardest_first(targets)}
    for enough in (lambda point: point.measured, lambda point: point.best is not None):
        for target, points in by_target.items():
            if sum(map(enough, points)) >= LEAST_SIZES:
                return target
    return next((target for target, points in by_target.items() if any(point.best for point in points)), None)


def _through(
    posterior: Posterior, of: str, trainings: Sequence[Training], target: float | None, num_gpus: int
) -> tuple[tuple[TunedPoint, ...], BatchLaw | None, str]:
    """Return the points to a target, each at its best rate, and the law through them or why there is none."""
    if target is None:
        return (), None, ""
    learnt = posterior.learnt(of, target) if trainings else None
    estimates: dict[int, dict[float, Estimate]] = defaultdict(dict)
    for size, rate in {(training.batch_size, training.rate) for training in trainings}:
        if learnt is not None and (found := learnt.steps(size, rate, num_gpus)) is not None:
            estimates[size][rate] = found
    values = {size: {rate: each.value for rate, each in rates.items()} for size, rates in estimates.items()}
    points = tuple(
        TunedPoint(measured=point, estimate=estimates[point.batch_size].get(point.best.rate) if point.best else None)
        for point in batch_points(trainings, target, posterior.metric, values)
    )
    # batch sizes that all hold the whole training set in a step are one
    sizes = {point.measured.examples_per_step for point in points if point.measured.measured}
    if learnt is not None and len(sizes) >= LEAST_SIZES:
        return points, learnt.law(num_gpus), ""
    others = [
        f"{point.measured.batch_size}: {point.measured.why_not_measured}"
        for point in points
        if not point.measured.measured
    ]
    inside = f" ({'; '.join(others)})" if others else ""
    have = f"{len(sizes)} batch {'size has' if len(sizes) == 1 else 'sizes have'} measured steps"
    return points, None, f"a law of batch sizes needs {LEAST_SIZES}, and {have} to the target{inside}"


def _part(spec: StudySpec, tuning: Tuning) -> Figure:
    known = [point.measured for point in tuning.points]
    rates = {point.batch_size: point.best.rate for point in known if point.best}
    optimizer, momentum = (setting(spec, tuning.combination, f"train.optimizer.{key}") for key in ("name", "momentum"))
    named = f"{optimizer}, momentum {momentum:g}" if optimizer == "sgd" and momentum else str(optimizer)
    named = SAID_BY_OTHERS if spec.judged or spec.workload.loop else named
    noise = noise_scale(tuning.trainings, rates, named)
    if spec.workload.loop:
        noise["why"] = LOOP_NOISE
    if not rates and noise["value"] is None:
        return missing(_why_nothing(spec, tuning))
    bounds = _bounds(tuning)
    law = tuning.law if not bounds else None
    regimes = None
    if law is not None and law.b_crit.identified:
        critical = law.b_crit.value
        regimes = {"perfect_up_to": critical / REGIME_LIMIT, "flat_from": critical * REGIME_LIMIT}
    return {
        "of": tuning.combination.of,
        "target": tuning.target,
        "num_gpus": list(tuning.num_gpus),
        "training_examples": max(
            (each.epoch_examples for each in tuning.trainings if each.epoch_examples), default=None
        ),
        **_estimates(tuning, bounds),
        "regimes": regimes,
        "points": [_point(point, law) for point in tuning.points],
        "curve": _curve(law, [point.examples_per_step for point in known if point.measured]),
        "noise_scale": noise,
        "why": bounds or tuning.why or None,
    }


def _why_nothing(spec: StudySpec, tuning: Tuning) -> str:
    if not tuning.trainings:
        return "no training ended in a way that says how many steps a target takes"
    if not spec.targets.accuracy and not tuning.points:
        return f"the spec names no target {tuning.metric.name} (targets.accuracy)"
    return "no batch size reached a target"


def _bounds(tuning: Tuning) -> str:
    """Return why the law's figures are only bounds: no batch size was trained at several rates. Else an empty text."""
    if tuning.law is None or tuning.law.compared:
        return ""
    rates = [
        f"{best.rate:g} at batch {point.measured.batch_size}"
        for point in tuning.points
        if (best := point.measured.best)
    ]
    return (
        f"each batch size was trained at one rate, so steps are upper bounds: try other rates than {', '.join(rates)}"
    )


def _estimates(tuning: Tuning, bounds: str) -> dict[str, Figure]:
    """Return s_min, b_crit, near_perfect and e_min."""
    law, names = tuning.law, ("s_min", "b_crit", "near_perfect", "e_min")
    if law is None:
        return {name: missing(tuning.why) for name in names}
    estimates: dict[str, Estimate] = {name: getattr(law, name) for name in names}
    if bounds:
        return {name: bound_part(estimate.value, bounds) for name, estimate in estimates.items()}
    sizes = [point.measured.batch_size for point in tuning.points if point.measured.measured]
    advice = {
        "s_min": f"try batch sizes above {max(sizes)}, or more of them",
        "e_min": f"try batch sizes below {min(sizes)}, or more of them",
    }
    advice["b_crit"] = advice["near_perfect"] = advice["e_min" if law.s_min.identified else "s_min"]
    return {name: estimate_part(estimate, advice[name]) for name, estimate in estimates.items()}


def _point(point: TunedPoint, law: BatchLaw | None) -> dict[str, Any]:
    measured, best = point.measured, point.measured.best
    steps = finite(statistics.median(best.costs)) if best else None
    interval = holding(over_seeds(best.costs), steps) if best else None
    return {
        "batch_size": measured.batch_size,
        "examples_per_step": measured.examples_per_step,
        "learning_rate": best.rate if best else None,
        "steps": steps,
        "low": interval and interval["low"],
        "high": interval and interval["high"],
        "estimate": estimate_part(point.estimate) if point.estimate is not None else None,
        "examples": None if steps is None else steps * measured.examples_per_step,
        "n": len(best.costs) if best else 0,
        "edge": best.edge if best else None,
        "rates": best.rates if best else None,
        "upper_bound": measured.upper_bound,
        "stopped": measured.stopped,
        "regime": law.regime(measured.examples_per_step) if law else None,
        "fitted_steps": law.steps(measured.examples_per_step).value if law else None,
    }


def _curve(law: BatchLaw | None, sizes: Sequence[float]) -> list[dict[str, Any]]:
    """Return the law between the smallest and the largest of these examples of a step; nothing without a law."""
    if law is None:
        return []
    places = np.geomspace(min(sizes), max(sizes), CURVE_PLACES).tolist()
    return [{"examples_per_step": size, **estimate_part(law.steps(size))} for size in places]


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
