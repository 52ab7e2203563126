"""Stage 8, analysis: the gradient noise scale from what training has measured (docs/formulas.md §3).

Each epoch's record has the means over its sampled steps of two unbiased estimates, |G|² and tr Σ. They are averaged
apart, over epochs and trainings, and then divided: B_noise = mean(tr Σ) / mean(|G|²) (McCandlish et al. 2018, arXiv
1812.06162). It is a proxy of B_crit that hangs on the optimizer's path, so that it is labelled with the optimizer.
"""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.analysis.estimates import estimate_part
from experiments.analysis.laws.least_squares import Estimate
from experiments.analysis.laws.ratio import ratio_of_means
from experiments.analysis.parts import Part, finite
from experiments.analysis.trainings import Training

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
