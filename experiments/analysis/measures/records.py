"""Usable records; what one trial says.

A trial is one line of `trials.jsonl` (docs/concepts.md: Words). Nothing in it is taken for granted: a missing, zero or
negative measurement counts as not measured.

A damaged line must not stop a report: one that does not say what ran, or how it ended, is left out of every figure, and
a caveat says so.

docs/concepts.md, "Timed alone", says what they are for.

Such a run has made so many steps of some epochs, the last one cut off, and was not evaluated. Its figures are means
over its steps: the runs are short, and epochs cut to different lengths have no median worth the name.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.analysis.measures.parts import Part, finite, missing, positive
from scalestudy.experiments.plan.timing_runs import step_key

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


STATUSES = ("finished", "stopped", "diverged", "out_of_memory", "failed", "skipped")


class Usable(list[Trial]):
    """Lines as `usable` gives them, which need not be asked again."""


def usable(trials: Sequence[Trial]) -> Usable:
    """The lines that have an id, a known status and whole parameters, their epochs in order and their stopped trainings
    marked by `without_warm_up`."""
    if isinstance(trials, Usable):
        return trials
    complete = [{**trial, "epochs": epochs_of(trial)} for trial in trials if _complete(trial)]
    return Usable(without_warm_up(complete))


def _complete(trial: Any) -> bool:
    if (
        not isinstance(trial, Mapping)
        or trial.get("status") not in STATUSES
        or not isinstance(trial.get("trial_id"), str)
    ):
        return False
    params = trial.get("params")
    if not isinstance(params, Mapping) or not all(_count(params.get(key)) for key in ("num_gpus", "batch_size")):
        return False
    of_steps_only = trial.get("kind") == "timing"  # any rate and seed have the same steps
    return of_steps_only or (_number(params.get("learning_rate")) and _whole(params.get("seed")))


def _number(value: Any) -> bool:
    """Whether a parameter is a number; one beyond all measure may well have been asked for."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _whole(value: Any) -> bool:
    return _number(value) and value == int(value)


def _count(value: Any) -> bool:
    return _whole(value) and value >= 1


def without_warm_up(trials: Sequence[Trial]) -> list[Trial]:
    """The trials, each stopped training marked `WITHOUT_FIRST` whose siblings' first epoch is left out of timings.

    Siblings have the same steps, whatever their rate and seed. A training that was stopped early has too few epochs to
    leave out the first, which is slow, by itself: its timings would not be comparable with theirs.
    """
    trainings = [trial for trial in trials if trial.get("kind") != "timing" and trial["status"] in TIMED]
    warmed = {step_key(trial["params"]) for trial in trainings if warms_up_first(trial)}
    return [
        {**trial, WITHOUT_FIRST: True}
        if trial["status"] == "stopped" and step_key(trial["params"]) in warmed
        else trial
        for trial in trials
    ]


def caveat(lines: Sequence[Trial], used: Sequence[Trial]) -> str | None:
    """What a reader must know of the lines that were left out."""
    count = len(lines) - len(used)
    if not count:
        return None
    records, lack = ("record", "lacks") if count == 1 else ("records", "lack")
    return (
        f"{count} {records} of trials.jsonl {lack} an id, a known status, or whole parameters (num_gpus, batch_size, "
        "learning_rate, seed): left out of every figure."
    )


def stopped_caveat(trials: Sequence[Trial]) -> str | None:
    """What a reader must know where a scheduler has stopped trainings."""
    count = sum(trial["status"] == "stopped" and trial.get("kind") != "timing" for trial in trials)
    if not count:
        return None
    was = "1 training was" if count == 1 else f"{count} trainings were"
    return (
        f"{was} stopped early. Whether one that had not met a target would have met it is not known: it is left out of "
        "that target's seeds, not counted as a miss."
    )


def is_timing(trial: Trial) -> bool:
    """Whether a line of trials.jsonl is of a timing run."""
    return trial.get("kind") == "timing"


def without(trials: Iterable[Trial]) -> list[Trial]:
    """The lines that are of no timing run."""
    return [trial for trial in trials if not is_timing(trial)]


def by_step(trials: Sequence[Trial]) -> dict[str, Trial]:
    """The timing runs that ended well, by what they have timed (`step_key`); of several the last."""
    good = [trial for trial in trials if is_timing(trial) and trial["status"] in TIMED]
    return {step_key(trial["params"]): trial for trial in good if step_seconds(trial) is not None}


def _rated(timing: Trial) -> list[tuple[float, float, float]]:
    """Of each epoch that timings are taken from: examples, steps, and their seconds at the rate after the warm-up."""
    rated = []
    for epoch in timed_epochs(timing):
        samples, steps, rate = positive(epoch.get("samples")), positive(epoch.get("steps")), samples_per_second(epoch)
        if samples and steps and rate:
            rated.append((samples, steps, samples / rate))
    return rated


def rate(timing: Trial) -> float | None:
    """Samples/s over all workers."""
    rated = _rated(timing)
    return sum(samples for samples, _, _ in rated) / sum(seconds for _, _, seconds in rated) if rated else None


def step_seconds(timing: Trial) -> float | None:
    """Seconds a step."""
    rated = _rated(timing)
    return sum(seconds for _, _, seconds in rated) / sum(steps for _, steps, _ in rated) if rated else None


def repeats(timing: Trial, steps: float | None) -> list[tuple[float | None, float | None]]:
    """Seconds an epoch of so many steps, and samples/s, as each epoch of the run has them."""
    return [
        (None if steps is None else seconds / made * steps, samples / seconds)
        for samples, made, seconds in _rated(timing)
    ]


def phase_seconds(timing: Trial) -> Part:
    """Seconds a step of each phase, their sum the undisturbed step: the shares of the steps that were looked into."""
    epochs = [(phases, epoch["steps"]) for epoch in timed_epochs(timing) if (phases := epoch_phases(epoch))]
    sums: Mapping[str, float] = {name: math.fsum(phases[name] * steps for phases, steps in epochs) for name in PHASES}
    whole, seconds = math.fsum(sums.values()), step_seconds(timing)
    if not whole or seconds is None:
        return missing("phases were not measured")
    return {name: value / whole * seconds for name, value in sums.items()}


def timing_counts(trials: Sequence[Trial]) -> dict[str, int]:
    """Timing runs: how many there were, and how many of them gave figures."""
    runs = [trial for trial in trials if is_timing(trial)]
    return {"runs": len(runs), "used": len(by_step(runs))}


def timing_caveat(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """What a reader must know of cells whose timings are not of their own trials."""
    timed = sum(row["timed_apart"] for row in rows)
    if not timed:
        return None
    return (
        f"Timings of {timed} of {len(rows)} cells are from short runs with the node to themselves; their time to a "
        "target is epochs to target times undisturbed seconds an epoch."
    )
