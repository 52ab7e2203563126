"""Searches played through without Tune: each trial runs at once, one at a time, and the journal is kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from scalestudy.experiments.plan.plan import TrialPlan, make_plan
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.orchestration.groups.events import Ended, EpochDone, JournalEvent, Running, Status, Suggested
from scalestudy.orchestration.sweep.methods import search_for
from scalestudy.orchestration.sweep.search import Past
from tests.support.epochs import epoch_of
from tests.support.fake_pool import ended

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


def epoch_event(number: int, value: float | None) -> EpochDone:
    """An epoch with this accuracy."""
    return EpochDone(record=epoch_of(number, value))


def ended_event(values: Sequence[float | None], status: Status = "finished") -> Ended:
    """The end of a trial with these accuracies."""
    return ended([epoch_of(number, value) for number, value in enumerate(values, start=1)], status)


def at_once(
    spec: StudySpec, past: Past = (), status_of: Callable[[TrialPlan], Status] = lambda trial: "finished"
) -> list[tuple[str, JournalEvent]]:
    """Runs what a search has left after these events, one trial at a time; returns the events of this run."""
    search = search_for(spec, make_plan(spec), past)
    journal: list[tuple[str, JournalEvent]] = []
    while (suggestion := search.next()) is not None:
        trial, point = suggestion
        values = curve_of(trial)
        events: list[JournalEvent] = [] if point is None else [Suggested(trial=trial, point=point)]
        events += [Running(attempt=1), *(epoch_event(number, value) for number, value in enumerate(values, start=1))]
        events.append(ended_event(values, status_of(trial)))
        for event in events:
            journal.append((trial.trial_id, event))
            search.take(trial.trial_id, event)
    return journal


def suggestions(journal: Past) -> list[Suggested]:
    """What a search has suggested, in order."""
    return [event for _, event in journal if isinstance(event, Suggested)]
