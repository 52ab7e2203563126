"""Time and cost to a target, and the cost of the study itself."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from scalestudy.experiments.analysis.measures.cells import Cell, why_no_time
from scalestudy.experiments.analysis.measures.intervals import ENOUGH_SEEDS, holding, over_seeds
from scalestudy.experiments.analysis.measures.parts import finite, median
from scalestudy.experiments.analysis.measures.records import Trial, censored, time_to_target, train_seconds

SECONDS_PER_HOUR = 3600.0
SAME_TIME_SECONDS = 0.1
"""Two trials that overlap by less ran one after the other."""


def target_row(cell: Cell, target: float, price_per_gpu_hour: float | None = None) -> dict[str, Any]:
    """Time to one target in one cell: seconds, gpu_seconds, cost, n_seeds, reached, upper_bound, interval, why.

    seconds: training only, undisturbed if the cell has a timing run. interval: from `intervals.over_seeds`; high is
    null if it reaches to seeds that missed. n_seeds: seeds that had the chance (finished, diverged, out of memory, or
    stopped after they had met the target). reached: how many of them met it. stopped: seeds that were stopped before
    they met it; whether they would have is unknown, so they are not among n_seeds. upper_bound: whether a seed met the
    target within its first epoch, whose end then stands for the time.
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
    if not times and stopped:
        was = "its one seed was" if stopped == 1 else f"all of its {stopped} seeds were"
        why = f"{was} stopped before reaching {target:g}"
    elif not times:
        why = why_no_time(cell)
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


def typical_time(times: Sequence[float]) -> float | None:
    """One time for several seeds, or None if they do not support one. A seed that missed counts as infinity.

    Five seeds or more: the mean without the fastest and the slowest, so two misses make the cell invalid (MLPerf).
    Fewer: the median, which is infinite, hence None, if half of the seeds or more missed.
    """
    if len(times) >= ENOUGH_SEEDS:
        inner = sorted(times)[1:-1]
        return finite(sum(inner) / len(inner))
    return finite(median(times))


def study_cost(
    trials: Sequence[Trial], wall_seconds: float | None, price_per_gpu_hour: float | None = None
) -> dict[str, Any]:
    """wall_seconds, train_seconds and gpu_seconds (training, summed), critical_path_seconds, overhead_ratio, cost.

    overhead_ratio = wall_seconds ÷ critical_path_seconds; 1 would be a study that did nothing but train. Evaluation
    counts as overhead, since train_seconds is time in steps only. wall_seconds: None takes the time from the first
    start to the last end of the trials.
    """
    gpu_seconds = sum(train_seconds(trial) * int(trial["params"]["num_gpus"]) for trial in trials)
    path = critical_path_seconds(trials)
    wall = wall_seconds
    if wall is None:
        spans = [span for trial in trials if (span := _span(trial))]
        wall = max(end for _, end in spans) - min(start for start, _ in spans) if spans else None
    why = "no trial trained" if path <= 0 else ("the study's wall time is not known" if wall is None else None)
    return {
        "wall_seconds": finite(wall),
        "train_seconds": sum(train_seconds(trial) for trial in trials),
        "gpu_seconds": gpu_seconds,
        "critical_path_seconds": path,
        "overhead_ratio": wall / path if wall is not None and path > 0 else None,
        "why": why,
        "price_per_gpu_hour": price_per_gpu_hour,
        "cost": cost_of(gpu_seconds, price_per_gpu_hour),
    }


def critical_path_seconds(trials: Sequence[Trial]) -> float:
    """Training seconds of the longest chain of trials in which each begins after the one before has ended.

    If trials ran one at a time, this is the sum of their training seconds. It is weighted interval scheduling over
    [started_at, ended_at], O(n log n). Trials without both times count as run one after the other.
    """
    timed = [(span, train_seconds(trial)) for trial in trials if (span := _span(trial))]
    untimed = sum(train_seconds(trial) for trial in trials if not _span(trial))
    ends: list[float] = []
    longest: list[float] = [0.0]
    for (start, end), seconds in sorted(timed, key=lambda item: item[0][1]):
        before = bisect_right(ends, start + SAME_TIME_SECONDS)
        longest.append(max(longest[-1], longest[before] + seconds))
        ends.append(end)
    return longest[-1] + untimed


def _span(trial: Trial) -> tuple[float, float] | None:
    """Start and end as POSIX seconds, or None if one is missing or the end is before the start."""
    try:
        start, end = (datetime.fromisoformat(str(trial.get(key))).timestamp() for key in ("started_at", "ended_at"))
    except ValueError:
        return None
    return (start, end) if end >= start else None


def cost_of(gpu_seconds: float | None, price_per_gpu_hour: float | None) -> float | None:
    """The price of GPU-seconds, in the currency of the hourly price. None if either is unknown."""
    if gpu_seconds is None or price_per_gpu_hour is None:
        return None
    return gpu_seconds / SECONDS_PER_HOUR * price_per_gpu_hour
