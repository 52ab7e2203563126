"""Journal, trials.jsonl, best model; the journal's fold."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.plan.plan import TrialPlan
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.experiments.study.journal import Entry, Journal
from scalestudy.orchestration.groups.failures import INTERRUPTED
from scalestudy.orchestration.groups.trial_record import Outcome, TrialHistory
from scalestudy.orchestration.storage.trial_states import states_of
from scalestudy.orchestration.tracking.mlflow_store import Operations
from scalestudy.orchestration.tracking.writer import Cursor, Tracker

MESSAGE = "the study ended while the trial ran, and was resumed"


@dataclass
class History:
    """A study's journal, folded.

    ended: the line of trials.jsonl of each ended trial. open: those begun and not ended. suggested: the trials that a
    search has made, in order. unjournalled: lines of trials.jsonl that the journal has lost. state: of the study, as
    its last own event says. wall_seconds: of all its runs.
    """

    ended: dict[str, dict[str, Any]] = field(default_factory=dict)
    open: dict[str, TrialHistory] = field(default_factory=dict)
    suggested: dict[str, TrialPlan] = field(default_factory=dict)
    past: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    unjournalled: list[dict[str, Any]] = field(default_factory=list)
    state: str = "new"
    earlier_seconds: float = 0.0
    began: float = 0.0
    last_seen: float = 0.0

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> History:
        """The history that a journal tells."""
        history = cls()
        for entry in entries:
            history.take(entry)
        return history

    @property
    def wall_seconds(self) -> float:
        """From the beginning to the last event of each run of the study, summed."""
        return self.wall_seconds_at(self.last_seen)

    def wall_seconds_at(self, now: float) -> float:
        """The same of a study that still runs, up to a moment (seconds since 1970)."""
        return self.earlier_seconds + now - self.began

    def take(self, entry: Entry) -> None:
        """Brings it up to date with one entry."""
        if entry.type == "study":
            self._study(entry)
        elif entry.type == "suggested":
            trial = TrialPlan(**entry.event["trial"])
            self.suggested[trial.trial_id] = trial
        elif entry.type == "ended":
            self.ended.setdefault(entry.trial_id, {key: entry.event[key] for key in entry.event if key != "type"})
            self.open.pop(entry.trial_id, None)
        elif entry.trial_id not in self.ended:
            self.open.setdefault(entry.trial_id, TrialHistory()).take(entry)
        self.began = self.began or entry.at  # a torn first entry
        if entry.trial_id:
            self.past.append((entry.trial_id, entry.event))
        self.last_seen = entry.at

    def is_news(self, trial_id: str, event: dict[str, Any]) -> bool:
        """Whether an event tells something: the first record of an epoch wins, an attempt begins and is lost once, a
        trial ends once. The books tell a trial's events again to whoever takes the place of a lost Tune process.
        """
        if trial_id in self.ended:
            return False
        if event["type"] == "suggested":
            return trial_id not in self.suggested
        trial = self.open.get(trial_id) or TrialHistory()
        if event["type"] == "epoch":
            return event["epoch"]["epoch"] not in trial.epochs
        if event["type"] == "running":
            return bool(event["attempt"] > trial.attempts)
        return not (event["type"] == "retry" and trial.is_lost(event["attempt"]))

    def order_of(self, trial_id: str) -> dict[str, Any] | None:
        """What an earlier run, or an earlier engine, has left of a trial; None where it has not begun."""
        trial = self.open.get(trial_id)
        return trial.to_order() if trial and trial.attempts else None

    def _study(self, entry: Entry) -> None:
        self.state = entry.event["state"]
        if self.state in ("started", "resumed", "extended"):
            self.earlier_seconds += self.last_seen - self.began if self.began else 0.0
            self.began = entry.at
            self._cut(INTERRUPTED, MESSAGE)
        elif self.state == "engine_lost":
            self._cut("engine_lost", entry.event["message"])

    def _cut(self, kind: str, message: str) -> None:
        for trial in self.open.values():
            trial.cut(kind, message)


def complete_trials(folder: StudyFolder, history: History) -> None:
    """Brings `trials.jsonl` up to the journal, which is ahead of it: a driver was killed between the two, or an object
    store, which can't append, has an older one. Raises OSError, or ValueError for a broken line."""
    written = {trial["trial_id"] for trial in folder.read_trials()}
    for trial_id, record in history.ended.items():
        if trial_id not in written:
            folder.append_trial(record)


Event = dict[str, Any]

SHARE_SECONDS = 10.0
"""Between two times that `trials.jsonl` goes to an object store."""


class Recorder:
    """Takes the study's events, each once, in order. What is written raises OSError where the storage is full or gone.

    Attributes:
        history: what all events so far come to.
    """

    def __init__(self, folder: StudyFolder, operations: Operations, tracker: Tracker, history: History) -> None:
        self._folder, self._operations, self._tracker = folder, operations, tracker
        self._journal = Journal(folder.journal_folder, share=folder.share_new)
        self._shared_at = -SHARE_SECONDS
        self._metric = StudyMetric.of(operations.spec.workload)
        self._best: tuple[float, str] | None = None
        self._states = states_of(folder)
        self.history = history
        for record in history.ended.values():
            self._note_best(record)

    def begin(self, state: str, cursor: Cursor) -> None:
        """Opens this run of the study: what earlier runs left undone is done, for MLflow too."""
        for entry in self._journal.entries(after=cursor.read()):
            self._tracker.tell(entry.number, self._operations.of(entry))
        complete_trials(self._folder, self.history)
        for record in self.history.unjournalled:
            self._write(record["trial_id"], {"type": "ended", **record})
        self.study(state)

    def study(self, state: str, **facts: Any) -> None:
        """Writes down that the study has begun, has been resumed, has ended."""
        self._write("", {"type": "study", "state": state, **facts})

    def take(self, trial_id: str, event: Event) -> list[Event]:
        """Writes down one event; returns the events that it means for those who watch."""
        if not self.history.is_news(trial_id, event):
            return []
        if event["type"] == "lost":
            event = lost_event(event, self.history.order_of(trial_id))
        if event["type"] == "ended":
            return self._end(trial_id, event)
        self._write(trial_id, event)
        return [event]

    def finish(self) -> dict[str, Any]:
        """Writes summary and report; returns the summary."""
        from scalestudy.experiments.report import write_report

        self._folder.share(self._folder.trials_file)
        write_report(self._folder, wall_seconds=self.wall_seconds)
        summary: dict[str, Any] = json.loads(self._folder.summary_file.read_text(encoding="utf-8"))
        return summary

    def close(self, *, interrupted: bool) -> None:
        """The study's last word: in MLflow its runs end, and with the study the best model is logged."""
        facts = {"wall_seconds": self.wall_seconds}
        if interrupted:
            self.study("stopped", open=list(self.history.open), **facts)
        else:
            self.study("finished", best=self._best[1] if self._best else None, **facts)

    @property
    def wall_seconds(self) -> float:
        """The time that the study has taken up to now, over all of its runs."""
        return self.history.wall_seconds_at(time.time())

    def _write(self, trial_id: str, event: Event) -> None:
        entry = self._journal.append(trial_id, event)
        self.history.take(entry)
        self._tracker.tell(entry.number, self._operations.of(entry))

    def _end(self, trial_id: str, event: Event) -> list[Event]:
        if (event["error"] or {}).get("kind") == "stopped":
            return []  # the study was stopped under it: it has not ended, and a later run may take it up
        record = trial_record(self._operations.trials[trial_id], event)
        self._write(trial_id, {"type": "ended", **record})
        self._folder.append_trial(record)
        self._share_trials()
        self._keep_best(record)
        self._states.forget_checkpoints(trial_id)
        return [event]

    def _share_trials(self) -> None:
        """An object store can't append: it gets the file whole, which the journal can make again, now and then."""
        if time.monotonic() - self._shared_at >= SHARE_SECONDS:
            self._shared_at = time.monotonic()
            self._folder.share(self._folder.trials_file)

    def _keep_best(self, record: dict[str, Any]) -> None:
        """Remembers the best finished trial; the models of those before it are no longer needed."""
        before = self._best
        if not self._note_best(record):
            self._states.forget(record["trial_id"])
        elif before:
            self._states.forget(before[1])

    def _note_best(self, record: dict[str, Any]) -> bool:
        """Whether a trial is the best so far, of those whose model is there."""
        value = record["epochs"][-1].get(self._metric.key) if record["epochs"] else None
        better = value is not None and (self._best is None or self._metric.better(value, self._best[0]))
        if record["status"] != "finished" or value is None or not better:
            return False
        if not self._states.has_model(record["trial_id"]):
            return False
        self._best = (value, record["trial_id"])
        return True


def trial_record(trial: TrialPlan, ended: Event) -> dict[str, Any]:
    """A trial's line of `trials.jsonl` from its plan and its `ended` event, keys in the order of the design."""
    facts = {key: value for key, value in ended.items() if key != "type"}
    return {"trial_id": trial.trial_id, "kind": trial.kind, "params": dict(trial.params), **facts}


def lost_event(lost: Event, left: dict[str, Any] | None) -> Event:
    """The `ended` event of a trial that can't report any more; what was recorded of it is kept.

    lost: its error, its status (failed where it says nothing) and the last epoch that counts (all where it says
    nothing). left: `TrialHistory.to_order`.
    """
    before = left or {}
    last = lost.get("last_epoch", math.inf)
    epochs = [epoch for epoch in before.get("epochs", ()) if epoch["epoch"] <= last]
    facts = Outcome.of_history({**before, "epochs": epochs}).to_dict(
        status=lost.get("status", "failed"),
        attempts=before.get("attempts", 1),
        started_at=None,
        now=time.time(),
        error=lost["error"],
    )
    return {"type": "ended", **facts}
