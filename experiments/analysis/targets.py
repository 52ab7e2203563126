"""Stage 8, analysis: time, GPU-seconds and cost to a target of the study's metric, over seeds (docs/formulas.md §6)."""

import math
from collections.abc import Sequence
from typing import Any

from experiments.analysis.cells import Cell, why_no_time
from experiments.analysis.intervals import ENOUGH_SEEDS, holding, over_seeds
from experiments.analysis.parts import finite, median
from experiments.analysis.trial_measures import censored, time_to_target

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
    """Time to one target in one cell: seconds, gpu_seconds, cost, n_seeds, reached, upper_bound, interval, why.

    seconds: training only; undisturbed where the cell has a timing run. interval: of `intervals.over_seeds`, below five
    seeds the range; high null where it reaches to seeds that missed. n_seeds: seeds that had the chance (finished,
    diverged, out of memory, or stopped once they had met the target); reached: those of them that met the target.
    stopped: seeds that were stopped before they met it, which tells nothing of whether and when they would have: they
    are none of n_seeds. upper_bound: whether one met it within its first epoch, whose end then stands for the time.
    """
    counted = cell.counted if cell.is_timed else []
    curves = [(trial["status"], cell.curve(trial)) for trial in counted]
    ended = [(status, time_to_target(points, target, cell.metric)) for status, points in curves]
    times = sorted(time for status, time in ended if not censored(status, time))
    stopped = len(ended) - len(times)
    seconds = typical_time(times)
    gpu_seconds = None if seconds is None else seconds * cell.num_gpus
    reached = sum(math.isfinite(time) for time in times)
    why = None
    if not times:
        why = _why_no_times(cell, stopped, target)
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
        "stopped": stopped,
        "upper_bound": any(points and cell.metric.reached(points[0][1], target) for _, points in curves),
        "interval": holding(over_seeds(times), seconds),
        "why": why,
    }


def _why_no_times(cell: Cell, stopped: int, target: float) -> str:
    if stopped:
        was = "its one seed was" if stopped == 1 else f"all of its {stopped} seeds were"
        return f"{was} stopped before reaching {target:g}"
    return why_no_time(cell)
