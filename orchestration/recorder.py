"""Stage 7, tracking: writes down what trials report – journal, `trials.jsonl`, MLflow – and closes the study."""

from __future__ import annotations

import json
import math
import time
from typing import Any

from experiments.analysis.metric import StudyMetric
from experiments.journal import Journal
from experiments.plan import TrialPlan
from experiments.study_folder import StudyFolder
from orchestration.folders import complete_trials
from orchestration.history import History
from orchestration.operations import Operations
from orchestration.outcomes import Outcome
from orchestration.tracking import Cursor, Tracker
from orchestration.trial_states import states_of

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
        from experiments.report import write_report

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
