"""Time and cost to a target, and the cost of the study itself."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from scalestudy.experiments.analysis.measures.arrivals import NEVER, Arrival, arrival_of
from scalestudy.experiments.analysis.measures.cells import Cell, why_no_time
from scalestudy.experiments.analysis.measures.parts import finite
from scalestudy.experiments.analysis.measures.trial import Trial
from scalestudy.experiments.analysis.measures.turnbull import median_arrival
from scalestudy.experiments.analysis.measures.units import plural
from scalestudy.experiments.analysis.measures.usable import (
    CUT,
    reached_at_once,
)

SECONDS_PER_HOUR = 3600.0
LOST = ("diverged", "out_of_memory")
"""Statuses of trials that would not have met a target later."""
SAME_TIME_SECONDS = 0.1
"""Two trials that overlap by less ran one after the other."""


def target_row(cell: Cell, target: float, confirmed: float) -> dict[str, Any]:
    """Return the time to one target as measured in one cell: seconds, n_seeds, reached, met_last, censored, cut,
    upper_bound, why.

    seconds: training only, undisturbed if the cell has timing runs; the median over seeds (`median_arrival`). n_seeds:
    seeds whose end says something about the target. reached: how many of them met it. censored: how many ended before
    it with no sign that they would have missed it. cut: how many of these were stopped before their last epoch.
    met_last: how many seeds met it at their last evaluation alone, which another would have to confirm.
    upper_bound: whether a seed met the target at its first evaluation, which then stands for the time.

    confirmed: the chance that another evaluation would (`confirmed_share`).
    """
    counted = cell.counted if cell.is_timed else []
    curves = [(trial.status, cell.curve(trial)) for trial in counted]
    arrivals = []
    for status, points in curves:
        arrival = arrival_of(points, target, cell.metric, confirmed)
        lost = not points or status in LOST
        arrivals.append(NEVER if lost and not arrival.sure else arrival)
    seconds = finite(median_arrival(arrivals))
    reached = sum(arrival.sure for arrival in arrivals)
    ended = [points[-1][0] for (_, points), each in zip(curves, arrivals, strict=True) if _is_censored(each)]
    met_last = sum(arrival.chance < 1 for arrival in arrivals)
    why = None
    if not arrivals:
        why = why_no_time(cell)
    elif seconds is None and met_last:
        why = f"{met_last} of {plural(len(arrivals), 'seed')} met {target:g} at the last evaluation only"
        why += f", {reached} before" if reached else ", the others did not meet it"
        if met_last == len(arrivals):
            why = f"it met {target:g} at the last evaluation"
    elif seconds is None:
        longest = f" within {max(ended):.3g} s" if ended else ""
        why = f"{len(arrivals) - reached} of {plural(len(arrivals), 'seed')} did not reach {target:g}{longest}"
    return {
        "label": cell.label,
        "params": dict(cell.params),
        "target": target,
        "seconds": seconds,
        "n_seeds": len(arrivals),
        "reached": reached,
        "met_last": met_last,
        "censored": len(ended),
        "cut": sum(status in CUT and _is_censored(each) for (status, _), each in zip(curves, arrivals, strict=True)),
        "upper_bound": any(reached_at_once(points, target, cell.metric) for _, points in curves),
        "why": why,
    }


def _is_censored(arrival: Arrival) -> bool:
    return not arrival.sure and arrival != NEVER


def study_cost(
    trials: Sequence[Trial], wall_seconds: float | None, price_per_gpu_hour: float | None = None
) -> dict[str, Any]:
    """Return what the study took, in time and cost.

    Keys: wall_seconds, train_seconds and worker_seconds (training, summed), critical_path_seconds, overhead_ratio,
    cost.

    overhead_ratio = wall_seconds ÷ critical_path_seconds; 1 would be a study that did nothing but train. Evaluation
    counts as overhead, since train_seconds is time in steps only. wall_seconds: None takes the time from the first
    start to the last end of the trials.
    """
    worker_seconds = sum(trial.train_seconds * trial.num_gpus for trial in trials)
    path = critical_path_seconds(trials)
    wall = wall_seconds
    if wall is None:
        spans = [trial.span for trial in trials if trial.span]
        wall = max(end for _, end in spans) - min(start for start, _ in spans) if spans else None
    why = "no trial trained" if path <= 0 else ("the study's wall time is not known" if wall is None else None)
    return {
        "wall_seconds": finite(wall),
        "train_seconds": sum(trial.train_seconds for trial in trials),
        "worker_seconds": worker_seconds,
        "critical_path_seconds": path,
        "overhead_ratio": wall / path if wall is not None and path > 0 else None,
        "why": why,
        "price_per_gpu_hour": price_per_gpu_hour,
        "cost": cost_of(worker_seconds, price_per_gpu_hour),
    }


def critical_path_seconds(trials: Sequence[Trial]) -> float:
    """Return the training seconds of the longest chain of trials in which each begins after the one before has ended.

    If trials ran one at a time, this is the sum of their training seconds. It is weighted interval scheduling over
    [started_at, ended_at], O(n log n). Trials without both times count as run one after the other.
    """
    timed = [(trial.span, trial.train_seconds) for trial in trials if trial.span]
    untimed = sum(trial.train_seconds for trial in trials if not trial.span)
    ends: list[float] = []
    longest: list[float] = [0.0]
    for (start, end), seconds in sorted(timed, key=lambda item: item[0][1]):
        before = bisect_right(ends, start + SAME_TIME_SECONDS)
        longest.append(max(longest[-1], longest[before] + seconds))
        ends.append(end)
    return longest[-1] + untimed


def cost_of(worker_seconds: float | None, price_per_gpu_hour: float | None) -> float | None:
    """Return the price of worker-seconds, in the currency of the hourly price. None if either is unknown."""
    if worker_seconds is None or price_per_gpu_hour is None:
        return None
    return worker_seconds / SECONDS_PER_HOUR * price_per_gpu_hour
