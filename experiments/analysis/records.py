"""Stage 8, analysis: which lines of `trials.jsonl` can be used, before anything else is asked of them.

A damaged line must not stop a report: one that does not say what ran, or how it ended, is left out of every figure, and
a caveat says so.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.analysis.trial_measures import TIMED, WITHOUT_FIRST, Trial, epochs_of, warms_up_first
from experiments.timing_runs import step_key

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
