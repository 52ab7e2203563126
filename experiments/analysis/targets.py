"""Stage 8, analysis: time, GPU-seconds and cost to a target of the study's metric, over seeds (METHODS §6)."""

import math
from collections.abc import Sequence
from typing import Any

from experiments.analysis.cells import Cell, why_untimed
from experiments.analysis.parts import finite, median
from experiments.analysis.trial_measures import curve, time_to_target

ENOUGH_SEEDS = 5
"""From so many seeds on, the outermost two are dropped and a cell is more than provisional (MLPerf's rule)."""
SECONDS_PER_HOUR = 3600.0


def typical_time(times: Sequence[float]) -> float | None:
    """One time for several seeds, infinity for a miss; None where the seeds do not support one.

    Five or more: drop the fastest and the slowest, mean of the rest; two misses make the cell invalid (MLPerf).
    Fewer: the median, which is infinite – hence None – when half of the seeds or more missed.
    """
    if len(times) >= ENOUGH_SEEDS:
        inner = sorted(times)[1:-1]
        return finite(sum(inner) / len(inner))
    return finite(median(times))


def cost_of(gpu_seconds: float | None, price_per_gpu_hour: float | None) -> float | None:
    """GPU-seconds in money, in the currency of the price."""
    if gpu_seconds is None or price_per_gpu_hour is None:
        return None
    return gpu_seconds / SECONDS_PER_HOUR * price_per_gpu_hour


def target_row(cell: Cell, target: float, price_per_gpu_hour: float | None = None) -> dict[str, Any]:
    """Time to one target in one cell: seconds, gpu_seconds, cost, n_seeds, reached, interval, why.

    seconds: training only. interval: the range over seeds, high null where a seed missed. n_seeds: seeds that had the
    chance (finished, stopped, diverged, out of memory); reached: those of them that met the target.
    """
    times = sorted(time_to_target(curve(trial, cell.metric), target, cell.metric) for trial in cell.counted)
    seconds = typical_time(times)
    gpu_seconds = None if seconds is None else seconds * cell.num_gpus
    reached = sum(math.isfinite(time) for time in times)
    why = None
    if not times:
        why = why_untimed(cell)
    elif seconds is None:
        why = f"{len(times) - reached} of {len(times)} seeds did not reach {target:g}"
    return {
        "label": cell.label,
        "params": dict(cell.params),
        "target": target,
        "seconds": seconds,
        "gpu_seconds": gpu_seconds,
        "cost": cost_of(gpu_seconds, price_per_gpu_hour),
        "n_seeds": len(times),
        "reached": reached,
        "interval": {"kind": "range", "low": finite(times[0]), "high": finite(times[-1])} if times else None,
        "why": why,
    }
