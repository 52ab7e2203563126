"""Stage 8, analysis: what the study itself cost, and how much of it was not training."""

from bisect import bisect_right
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from experiments.analysis.parts import finite
from experiments.analysis.targets import cost_of
from experiments.analysis.trial_measures import Trial, train_seconds

SAME_TIME_SECONDS = 0.1
"""Two trials that overlap by less ran one after the other."""


def study_cost(
    trials: Sequence[Trial], wall_seconds: float | None, price_per_gpu_hour: float | None = None
) -> dict[str, Any]:
    """wall_seconds, train_seconds and gpu_seconds (training, summed), critical_path_seconds, overhead_ratio, cost.

    overhead_ratio = wall_seconds ÷ critical_path_seconds: 1 would be a study that did nothing but train. Evaluation
    counts as overhead, for train_seconds is time in steps only. wall_seconds None: first start to last end of the
    trials.
    """
    gpu_seconds = sum(train_seconds(trial) * int(trial["params"]["num_gpus"]) for trial in trials)
    path = critical_path_seconds(trials)
    wall = wall_seconds if wall_seconds is not None else _span_seconds(trials)
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
    """Training seconds of the chain of trials, none beginning before the one before has ended, that trained longest.

    For trials run one at a time this is the sum of their training seconds. It is weighted interval scheduling over
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
    """Start and end as POSIX seconds; None where either is missing or they are the wrong way round."""
    start, end = (_posix(trial.get(key)) for key in ("started_at", "ended_at"))
    return (start, end) if start is not None and end is not None and end >= start else None


def _posix(text: Any) -> float | None:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None


def _span_seconds(trials: Sequence[Trial]) -> float | None:
    spans = [span for trial in trials if (span := _span(trial))]
    return max(end for _, end in spans) - min(start for start, _ in spans) if spans else None
