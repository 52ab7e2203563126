"""Journal, trials.jsonl, best model; the journal's fold."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.plan.plan import TrialPlan
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.experiments.study.journal import Entry, Journal
from scalestudy.orchestration.groups.events import (
    WITH_MODEL,
    Ended,
    EngineLost,
    JournalEvent,
    Lost,
    Origin,
    Reopened,
    StudyAnswer,
    StudyBegan,
    StudyEvent,
    StudyFinished,
    StudyStopped,
    Suggested,
    TrialError,
    TrialEvent,
    UnknownEventError,
    from_plain,
    study_event_from_plain,
    study_event_to_plain,
    to_plain,
)
from scalestudy.orchestration.groups.failures import INTERRUPTED
from scalestudy.orchestration.groups.trial_record import TrialRecord
from scalestudy.orchestration.storage.trial_states import states_of
from scalestudy.orchestration.tracking.mlflow_store import TrackedStudy
from scalestudy.orchestration.tracking.run_content import answer_of
from scalestudy.orchestration.tracking.writer import Cursor, TrackingWriter

logger = logging.getLogger(__name__)

SHARE_SECONDS = 10.0
"""Between two times that `trials.jsonl` goes to an object store."""


@dataclass
class History:
    """A study's journal, folded. A trial that was reopened counts as begun: of before it only its attempts do, and in
    `past` its end.

    ended: the line of trials.jsonl of each ended trial. open: those begun and not ended. suggested: the trials that a
    search has made, in order. past: every trial's events, in order. reopened: trials that were. unjournalled: lines of
    trials.jsonl that the journal has lost. state: "new", "running" (or cut off), "stopped" or "finished". origin: of
    the last run of the study that told one. Moments are seconds since 1970.
    """

    ended: dict[str, dict[str, Any]] = field(default_factory=dict)
    open: dict[str, TrialRecord] = field(default_factory=dict)
    suggested: dict[str, TrialPlan] = field(default_factory=dict)
    past: list[tuple[str, JournalEvent]] = field(default_factory=list)
    unjournalled: list[dict[str, Any]] = field(default_factory=list)
    reopened: set[str] = field(default_factory=set)
    state: str = "new"
    origin: Origin | None = None
    earlier_seconds: float = 0.0  # that earlier runs of the study took
    told_seconds: float | None = None  # all runs, as the last one's own last word has it; None: it said none
    began: float = 0.0  # this run's first event
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

    @property
    def study_seconds(self) -> float:
        """What a study that does not run took over all its runs: as its report says, else up to its last event."""
        return self.wall_seconds if self.told_seconds is None else self.told_seconds

    def wall_seconds_at(self, now: float) -> float:
        """The same of a study that still runs, up to a moment."""
        return self.earlier_seconds + now - self.began

    def take(self, entry: Entry) -> None:
        """Brings it up to date with one entry."""
        try:
            if entry.type == "study":
                self._take_study_event(study_event_from_plain(entry.event), entry.at)
            else:
                self._take_trial_event(entry)
        except UnknownEventError as error:
            logger.warning("skipping entry %d of the journal: %s", entry.number, error)
            return
        self.began = self.began or entry.at  # a torn first entry
        self.last_seen = entry.at

    def is_news(self, trial_id: str, event: TrialEvent) -> bool:
        """Whether an event tells something new. See `TrialRecord.is_news`; a trial is suggested once."""
        if isinstance(event, Reopened):
            return trial_id in self.ended
        if trial_id in self.ended:
            return False
        if isinstance(event, Suggested):
            return trial_id not in self.suggested
        return self.open.get(trial_id, TrialRecord()).is_news(event)

    def record_of(self, trial_id: str) -> TrialRecord:
        """What an earlier run, or an earlier engine, has left of a trial that has not ended."""
        return deepcopy(self.open.get(trial_id, TrialRecord()))

    def _take_trial_event(self, entry: Entry) -> None:
        event = from_plain(entry.event)
        if isinstance(event, Suggested):
            self.suggested[event.trial.trial_id] = event.trial
        elif isinstance(event, Reopened):
            self._reopen(entry.trial_id)
        elif isinstance(event, Ended):
            line = {key: value for key, value in entry.event.items() if key != "type"}
            self.ended.setdefault(entry.trial_id, line)
            self.open.pop(entry.trial_id, None)
        elif entry.trial_id not in self.ended:
            self.open.setdefault(entry.trial_id, TrialRecord()).apply(event, entry.at)
        self.past.append((entry.trial_id, event))

    def _reopen(self, trial_id: str) -> None:
        line = self.ended.pop(trial_id, None)
        if line is not None:
            self.open[trial_id] = TrialRecord.reopened(Ended.from_facts(line))
        self.reopened.add(trial_id)
        kept = (Suggested, Ended, Reopened)  # a search has acted on the end
        self.past = [(each, event) for each, event in self.past if each != trial_id or isinstance(event, kept)]

    def _take_study_event(self, event: StudyEvent, at: float) -> None:
        match event:
            case StudyBegan():
                self.state, self.origin, self.told_seconds = "running", event.origin or self.origin, None
                self.earlier_seconds += self.last_seen - self.began if self.began else 0.0
                self.began = at
                error = TrialError(kind=INTERRUPTED, message="the study ended while the trial ran, and was resumed")
            case EngineLost():
                error = TrialError(kind="engine_lost", message=event.message)
            case StudyStopped():
                self.state, self.told_seconds = "stopped", event.wall_seconds
                return
            case StudyFinished():
                self.state, self.told_seconds = "finished", event.wall_seconds
                return
        for record in self.open.values():
            record.cut(error)


def complete_trials(folder: StudyFolder, history: History) -> None:
    """Brings `trials.jsonl` up to the journal, which may be ahead of it.

    A driver was killed between the two, or an object store, which can't append, has an older one. Raises OSError, or
    ValueError for a broken line.
    """
    written = {trial["trial_id"] for trial in folder.read_trials()}
    if written & history.reopened - history.ended.keys():
        folder.write_trials(history.ended.values())
        return
    for trial_id, line in history.ended.items():
        if trial_id not in written:
            folder.append_trial(line)


class Recorder:
    """Takes the study's events, each once, in order. Writing raises OSError where the storage is full or gone.

    Attributes:
        history: what all events so far come to.
    """

    def __init__(self, study: TrackedStudy, writer: TrackingWriter, history: History) -> None:
        self._study, self._folder, self._writer = study, study.folder, writer
        self._journal = Journal(study.folder.journal_folder, share=study.folder.share_new)
        self._shared_at = -SHARE_SECONDS
        self._metric = StudyMetric.of(study.spec.workload)
        self._best: tuple[float, str] | None = None
        self._answer: StudyAnswer | None = None
        self._reported_seconds: float | None = None  # of the study, in the report
        self._states = states_of(study.folder)
        self.history = history
        for line in history.ended.values():
            self._note_best(line)

    def begin(self, event: StudyBegan, cursor: Cursor) -> None:
        """Opens this run of the study: what earlier runs left undone is done, for MLflow too."""
        for entry in self._journal.entries(after=cursor.read()):
            self._writer.tell(entry)
        complete_trials(self._folder, self.history)
        for line in self.history.unjournalled:
            self._write(line["trial_id"], {"type": "ended", **line})
        self.take_study(event)

    def take_study(self, event: StudyEvent) -> None:
        """Writes down an event of the study itself."""
        self._write("", study_event_to_plain(event))

    def take(self, trial_id: str, event: TrialEvent) -> JournalEvent | None:
        """Writes down one event; returns what it has written. None: it is no news, or a later run takes it up."""
        if not self.history.is_news(trial_id, event):
            return None
        if isinstance(event, Lost):
            event = self.history.record_of(trial_id).end_of_lost(event, time.time())
        if not isinstance(event, Ended):
            self._write(trial_id, to_plain(event))
            if isinstance(event, Reopened):
                self._folder.write_trials(self.history.ended.values())
            return event
        if not event.is_final:
            return None
        line = event.to_line(self._study.trials[trial_id])
        self._write(trial_id, {"type": "ended", **line})
        self._folder.append_trial(line)
        if time.monotonic() - self._shared_at >= SHARE_SECONDS:
            # an object store can't append: now and then it gets the file whole, which the journal can make again
            self._shared_at = time.monotonic()
            self._folder.share(self._folder.trials_file)
        before = self._best
        if not self._note_best(line):
            self._states.forget(trial_id)
        elif before:
            self._states.forget(before[1])
        self._states.forget_checkpoints(trial_id)
        return event

    def finish(self) -> dict[str, Any]:
        """Writes summary and report; returns the summary."""
        from scalestudy.experiments.report import write_report

        self._folder.share(self._folder.trials_file)
        self._reported_seconds = self.wall_seconds
        write_report(self._folder, wall_seconds=self._reported_seconds)
        summary: dict[str, Any] = json.loads(self._folder.summary_file.read_text(encoding="utf-8"))
        self._answer = answer_of(summary)
        return summary

    def close(self, *, interrupted: bool) -> None:
        """Writes the study's last word: in MLflow its runs end, and with the study the best model is logged."""
        answer, wall_seconds = self._answer, self._reported_seconds
        if wall_seconds is None:
            wall_seconds = self.wall_seconds
        if interrupted:
            self.take_study(StudyStopped(open=tuple(self.history.open), wall_seconds=wall_seconds, answer=answer))
        else:
            best = self._best[1] if self._best else None
            self.take_study(StudyFinished(best=best, wall_seconds=wall_seconds, answer=answer))

    @property
    def wall_seconds(self) -> float:
        """The time that the study has taken up to now, over all of its runs."""
        return self.history.wall_seconds_at(time.time())

    def _write(self, trial_id: str, event: dict[str, Any]) -> None:
        entry = self._journal.append(trial_id, event)
        self.history.take(entry)
        self._writer.tell(entry)

    def _note_best(self, line: dict[str, Any]) -> bool:
        """Whether a trial is the best so far, of those whose model is there; remembers it."""
        value = line["epochs"][-1].get(self._metric.key) if line["epochs"] else None
        if line["status"] not in WITH_MODEL or value is None:
            return False
        if self._best is not None and not self._metric.better(value, self._best[0]):
            return False
        if not self._states.has_model(line["trial_id"]):
            return False
        self._best = (value, line["trial_id"])
        return True
