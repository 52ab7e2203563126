"""Searches played through without Tune: each trial runs at once, one at a time, and the journal is kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from scalestudy.experiments.plan.plan import TrialPlan, make_plan
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.orchestration.sweep.search import search_for

TPE = """
name: x
train: {epochs: 2}
sweep: {num_gpus: [1, 2], learning_rate: {log_uniform: [0.001, 1]}, seed: [0, 1]}
search: {method: tpe, samples: 14}
"""


def curve_of(trial: TrialPlan) -> list[float]:
    """Test accuracy by epoch: best at a learning rate of 0.1, a little better with two workers."""
    peak = 0.9 - 0.2 * math.log10(trial.learning_rate / 0.1) ** 2 + 0.01 * trial.num_gpus + 0.001 * trial.seed
    return [0.9 * peak, peak]


def epoch_event(number: int, value: float | None) -> dict[str, Any]:
    """An `epoch` event as far as a search looks at it."""
    return {"type": "epoch", "epoch": {"epoch": number, "test_accuracy": value, "train_seconds": 1.0}}


def ended_event(values: Sequence[float | None], status: str = "finished") -> dict[str, Any]:
    """An `ended` event as far as a search looks at it."""
    epochs = [epoch_event(number, value)["epoch"] for number, value in enumerate(values, start=1)]
    return {"type": "ended", "status": status, "epochs": epochs, "error": None}


def suggested_event(trial: TrialPlan, point: int) -> dict[str, Any]:
    """A `suggested` event."""
    return {"type": "suggested", "trial": trial.to_dict(), "point": point}


def at_once(
    spec: StudySpec,
    past: Sequence[tuple[str, dict[str, Any]]] = (),
    status_of: Callable[[TrialPlan], str] = lambda trial: "finished",
) -> list[tuple[str, dict[str, Any]]]:
    """Runs what a search has left after these events, one trial at a time; returns the events of this run."""
    search = search_for(spec, make_plan(spec), past)
    journal: list[tuple[str, dict[str, Any]]] = []
    while (suggestion := search.next()) is not None:
        trial, point = suggestion
        events = [] if point is None else [suggested_event(trial, point)]
        values = curve_of(trial)
        events += [{"type": "running", "attempt": 1}]
        events += [epoch_event(number, value) for number, value in enumerate(values, start=1)]
        events += [ended_event(values, status_of(trial))]
        for event in events:
            journal.append((trial.trial_id, event))
            search.take(trial.trial_id, event)
    return journal
