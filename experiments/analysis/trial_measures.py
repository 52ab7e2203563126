"""Stage 8, analysis: what one trial's record says – its metric, seconds an epoch, time to a target, phases.

A trial is one line of `trials.jsonl` (DESIGN §5). Nothing in it is taken for granted: a missing, zero or negative
measurement counts as not measured.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.analysis.metric import StudyMetric
from experiments.analysis.parts import finite, positive

Trial = Mapping[str, Any]

PHASES = ("data", "forward_backward", "gradient_sync", "optimizer")
TIMED = ("finished", "stopped")
"""Statuses whose epochs were timed undisturbed to their end."""
COUNTED = ("finished", "stopped", "diverged", "out_of_memory")
"""Statuses that say something about the cell: a target they do not reach is missed. The others never had the chance."""
EPOCHS_WITHOUT_FIRST = 3
"""From so many epochs on, the first one (caches, buffers, thread pools to warm up) is left out of timings."""


def epochs_of(trial: Trial) -> list[Mapping[str, Any]]:
    """The records of the trial's epochs, in order; the first record of an epoch wins."""
    first: dict[int, Mapping[str, Any]] = {}
    for epoch in trial.get("epochs") or ():
        first.setdefault(int(epoch["epoch"]), epoch)
    return [first[number] for number in sorted(first)]


def timed_epochs(trial: Trial) -> list[Mapping[str, Any]]:
    """The epochs that timings are taken from: those with a time, without the first where enough are left."""
    timed = [epoch for epoch in epochs_of(trial) if positive(epoch.get("train_seconds"))]
    return timed[1:] if len(timed) >= EPOCHS_WITHOUT_FIRST else timed


def test_values(trial: Trial, metric: StudyMetric) -> list[float]:
    """The metric after each epoch that has it."""
    values = [finite(epoch.get(metric.key)) for epoch in epochs_of(trial)]
    return [value for value in values if value is not None]


def final_value(trial: Trial, metric: StudyMetric) -> float | None:
    """The metric after the last epoch, the book's figure."""
    values = test_values(trial, metric)
    return values[-1] if values else None


def best_value(trial: Trial, metric: StudyMetric) -> float | None:
    """The best value of the metric after any epoch."""
    return metric.best(test_values(trial, metric))


def curve(trial: Trial, metric: StudyMetric) -> list[tuple[float, float]]:
    """(training seconds so far, value of the metric) after each epoch, up to the first epoch without a time.

    Evaluation is not timed (METHODS §6).
    """
    points: list[tuple[float, float]] = []
    elapsed = 0.0
    for epoch in epochs_of(trial):
        seconds, value = positive(epoch.get("train_seconds")), finite(epoch.get(metric.key))
        if seconds is None:
            break
        elapsed += seconds
        if value is not None:
            points.append((elapsed, value))
    return points


def time_to_target(points: Sequence[tuple[float, float]], target: float, metric: StudyMetric) -> float:
    """Training seconds until the metric first meets the target; infinity where it never does. points: of `curve`.

    Interpolated between the epochs on both sides, not rounded up; met in the first epoch: that epoch's end, an upper
    bound (METHODS §6).
    """
    before: tuple[float, float] | None = None
    for seconds, value in points:
        if metric.reached(value, target):
            return seconds if before is None else _interpolated(before, (seconds, value), target)
        before = (seconds, value)
    return math.inf


def _interpolated(before: tuple[float, float], after: tuple[float, float], target: float) -> float:
    share = (target - before[1]) / (after[1] - before[1])
    return before[0] + share * (after[0] - before[0])


def train_seconds(trial: Trial) -> float:
    """Seconds in training steps; the sum over its epochs where the trial itself does not say; 0 where none ran."""
    total = finite(trial.get("train_seconds"))
    if total is not None and total >= 0:
        return total
    return sum(positive(epoch.get("train_seconds")) or 0.0 for epoch in epochs_of(trial))


def epoch_phases(epoch: Mapping[str, Any]) -> dict[str, float] | None:
    """Seconds a step of each phase, in the order of a step; None where they were not measured."""
    phases, steps = epoch.get("phases"), positive(epoch.get("steps"))
    if not isinstance(phases, Mapping) or steps is None:
        return None
    seconds = {name: finite(phases.get(name)) for name in PHASES}
    known = {name: value for name, value in seconds.items() if value is not None and value >= 0}
    return {name: value / steps for name, value in known.items()} if len(known) == len(PHASES) else None


def samples_per_second(epoch: Mapping[str, Any]) -> float | None:
    """Examples a second over all workers: as recorded, else samples over the epoch's training seconds."""
    recorded = positive(epoch.get("samples_per_second"))
    samples, seconds = positive(epoch.get("samples")), positive(epoch.get("train_seconds"))
    return recorded or (samples / seconds if samples and seconds else None)
