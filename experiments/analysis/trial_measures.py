"""Stage 8, analysis: what one trial's record says – its metric, seconds an epoch, time to a target, phases.

A trial is one line of `trials.jsonl` (docs/concepts.md: Words). Nothing in it is taken for granted: a missing, zero or
negative measurement counts as not measured.
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
WITHOUT_FIRST = "without_first_epoch"
"""Key that `records.usable` adds to a stopped trial: its first epoch is left out, however few epochs it has."""


class Epochs(list[Mapping[str, Any]]):
    """Epochs as `epochs_of` gives them: what has been put in order once, every figure can take as it is."""


def epochs_of(trial: Trial) -> Epochs:
    """The records of the trial's epochs, in order; the first record of an epoch wins.

    A record that does not say which epoch it is gets the number of its place.
    """
    if isinstance(epochs := trial.get("epochs"), Epochs):
        return epochs
    first: dict[int, Mapping[str, Any]] = {}
    for place, epoch in enumerate(epochs or (), start=1):
        if isinstance(epoch, Mapping):
            number = positive(epoch.get("epoch"))
            first.setdefault(int(number or place), epoch if number else {**epoch, "epoch": place})
    return Epochs(first[number] for number in sorted(first))


def timed_epochs(trial: Trial) -> list[Mapping[str, Any]]:
    """The epochs that timings are taken from: those with a time, without the first where enough are left, or where
    those of its siblings are without it."""
    timed = _with_time(trial)
    if len(timed) >= EPOCHS_WITHOUT_FIRST:
        return timed[1:]
    first = epochs_of(trial)[0] if trial.get(WITHOUT_FIRST) and timed else None
    return [epoch for epoch in timed if first is None or epoch["epoch"] != first["epoch"]]


def warms_up_first(trial: Trial) -> bool:
    """Whether the trial has epochs enough to leave the first out of its timings."""
    return len(_with_time(trial)) >= EPOCHS_WITHOUT_FIRST


def _with_time(trial: Trial) -> list[Mapping[str, Any]]:
    return [epoch for epoch in epochs_of(trial) if positive(epoch.get("train_seconds"))]


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


def curve(trial: Trial, metric: StudyMetric, epoch_seconds: float | None = None) -> list[tuple[float, float]]:
    """(training seconds so far, value of the metric) after each epoch, up to the first epoch without a time.

    Evaluation is not timed (docs/formulas.md §6). epoch_seconds: what an epoch takes undisturbed; None: as it was
    measured.
    """
    points: list[tuple[float, float]] = []
    elapsed = 0.0
    for epoch in epochs_of(trial):
        seconds, value = positive(epoch.get("train_seconds")), finite(epoch.get(metric.key))
        seconds = seconds if seconds is None or epoch_seconds is None else epoch_seconds
        if seconds is None:
            break
        elapsed += seconds
        if value is not None:
            points.append((elapsed, value))
    return points


def time_to_target(points: Sequence[tuple[float, float]], target: float, metric: StudyMetric) -> float:
    """Training seconds until the metric first meets the target; infinity where it never does. points: of `curve`.

    Interpolated between the epochs on both sides, not rounded up; met in the first epoch: that epoch's end, an upper
    bound (docs/formulas.md §6).
    """
    before: tuple[float, float] | None = None
    for seconds, value in points:
        if metric.reached(value, target):
            return seconds if before is None else _interpolated(before, (seconds, value), target)
        before = (seconds, value)
    return math.inf


def censored(status: str, cost: float) -> bool:
    """Whether a trial was stopped before a target, of which it tells nothing then. cost: to it, infinity for a miss."""
    return status == "stopped" and not math.isfinite(cost)


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


def spans_nodes(trial: Trial) -> bool:
    """Whether its workers were on several nodes."""
    return ((trial.get("world") or {}).get("nodes") or 1) > 1


def samples_per_second(epoch: Mapping[str, Any]) -> float | None:
    """Examples a second over all workers: as recorded, else samples over the epoch's training seconds."""
    recorded = positive(epoch.get("samples_per_second"))
    samples, seconds = positive(epoch.get("samples")), positive(epoch.get("train_seconds"))
    return recorded or (samples / seconds if samples and seconds else None)
