"""The recorder, which writes a study's journal, trials.jsonl and best model; and the history folded from a journal."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.plan.plan import TrialPlan
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.orchestration.groups.events import (
    WITH_MODEL,
    Ended,
    EngineLost,
    EpochDone,
    FreshWorkers,
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
)
from scalestudy.orchestration.groups.failures import INTERRUPTED
from scalestudy.orchestration.groups.trial_record import TrialRecord
from scalestudy.orchestration.storage.trial_states import forget_run, states_of
from scalestudy.orchestration.tracking.entries import Recorded, StudyJournal, fingerprint_after
from scalestudy.orchestration.tracking.mlflow_store import TrackedStudy
from scalestudy.orchestration.tracking.run_content import answer_of
from scalestudy.orchestration.tracking.writer import Cursor, TrackingWriter
from scalestudy.training.fingerprint import Fingerprint

SHARE_SECONDS = 10.0
"""Time between two writes of `trials.jsonl` to an object store."""


@dataclass
class History:
    """A study's journal, folded. Moments are seconds since 1970.

    A reopened trial counts as begun: from before, only its attempts count, and in `past` its end.
    """

    ended: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # ended trials → their lines of trials.jsonl
    open: dict[str, TrialRecord] = field(default_factory=dict)  # trials that have begun and not ended
    suggested: dict[str, TrialPlan] = field(default_factory=dict)  # trials that a search has made, in order
    past: list[tuple[str, JournalEvent]] = field(default_factory=list)  # every trial's events, in order
    unjournalled: list[dict[str, Any]] = field(default_factory=list)
    """Lines of trials.jsonl that are missing in the journal."""
    reopened: set[str] = field(default_factory=set)  # trials that were reopened
    state: str = "new"  # or "running" (it may have been cut off), "stopped", "finished"
    origin: Origin | None = None  # of the last run of the study that has one
    fingerprint: Fingerprint = field(default_factory=Fingerprint)  # see `fingerprint_after`
    fingerprints: list[Fingerprint] = field(default_factory=list)  # of the runs that have trained, each once
    trained_with: dict[str, list[Fingerprint]] = field(default_factory=dict)
    """Open trials → the fingerprints of the runs that have recorded their epochs."""
    fresh_workers: str = ""  # why every trial gets fresh workers; "": groups stay warm
    earlier_seconds: float = 0.0  # time that earlier runs of the study took
    told_seconds: float | None = None  # of all runs, by the last event of the last one; None: it was cut off
    began: float = 0.0  # moment of this run's first event
    last_seen: float = 0.0  # moment of the last event

    @classmethod
    def of(cls, entries: Iterable[Recorded]) -> History:
        """Fold a journal."""
        history = cls()
        for entry in entries:
            history.take(entry)
        return history

    @property
    def wall_seconds(self) -> float:
        """The time from the beginning to the last event of each run of the study, summed."""
        return self.wall_seconds_at(self.last_seen)

    @property
    def study_seconds(self) -> float:
        """The time of a study that does not run, over all its runs: from its report, else up to its last event."""
        return self.wall_seconds if self.told_seconds is None else self.told_seconds

    def wall_seconds_at(self, now: float) -> float:
        """Return the time of a study that still runs, up to a moment, over all its runs."""
        return self.earlier_seconds + now - self.began

    def take(self, entry: Recorded) -> None:
        """Take one more entry."""
        self.fingerprint = fingerprint_after([entry], self.fingerprint)
        if isinstance(entry.event, StudyEvent):
            self._take_study_event(entry.event, entry.at)
        else:
            self._take_trial_event(entry, entry.event)
        self.began = self.began or entry.at  # a torn first entry
        self.last_seen = entry.at

    def is_news(self, trial_id: str, event: TrialEvent) -> bool:
        """Return whether an event is new. See `TrialRecord.is_news`; a trial is suggested once."""
        if isinstance(event, Reopened):
            return trial_id in self.ended
        if trial_id in self.ended:
            return False
        if isinstance(event, Suggested):
            return trial_id not in self.suggested
        return self.open.get(trial_id, TrialRecord()).is_news(event)

    def record_of(self, trial_id: str) -> TrialRecord:
        """Return the record that an earlier run, or an earlier engine, left of a trial that has not ended."""
        return deepcopy(self.open.get(trial_id, TrialRecord()))

    def made_of(self, trial: TrialPlan, told: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        """Return `Ended.fingerprint` of a trial that ends now.

        told: of its code, by the worker that has trained it last, since an edit may have come before that one started.
        """
        found: dict[str, list[str]] = {}
        for fingerprint in (*self.trained_with.get(trial.trial_id, ()), self.fingerprint):
            own = {name: [digest] for name, digest in fingerprint.digests(trial.workload, trial.train).items()}
            for name, digests in {**own, **(told if fingerprint == self.fingerprint else {})}.items():
                found[name] = list(dict.fromkeys([*found.get(name, ()), *digests]))
        return found

    def _take_trial_event(self, entry: Recorded, event: JournalEvent) -> None:
        if isinstance(event, EpochDone | Ended):
            self._note_fingerprint(self.fingerprints)
        if isinstance(event, Suggested):
            self.suggested[event.trial.trial_id] = event.trial
        elif isinstance(event, Reopened):
            self._reopen(entry.trial_id)
        elif isinstance(event, Ended):
            assert entry.line is not None
            self.ended.setdefault(entry.trial_id, entry.line)
            self.open.pop(entry.trial_id, None)
            self.trained_with.pop(entry.trial_id, None)
        elif entry.trial_id not in self.ended:
            self.open.setdefault(entry.trial_id, TrialRecord()).apply(event, entry.at)
            if isinstance(event, EpochDone):
                self._note_fingerprint(self.trained_with.setdefault(entry.trial_id, []))
        self.past.append((entry.trial_id, event))

    def _note_fingerprint(self, known: list[Fingerprint]) -> None:
        """Add that of the run in progress, if it has one."""
        if self.fingerprint and self.fingerprint not in known:
            known.append(self.fingerprint)

    def _reopen(self, trial_id: str) -> None:
        line = self.ended.pop(trial_id, None)
        if line is not None:
            self.open[trial_id] = TrialRecord.reopened(Ended.from_facts(line))
        self.reopened.add(trial_id)
        kept = (Suggested, Ended, Reopened)  # a search has learnt from the end
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
            case FreshWorkers():
                self.fresh_workers = event.why
                return
            case StudyStopped():
                self.state, self.told_seconds = "stopped", event.wall_seconds
                return
            case StudyFinished():
                self.state, self.told_seconds = "finished", event.wall_seconds
                return
        for record in self.open.values():
            record.cut(error)


def complete_trials(folder: StudyFolder, history: History) -> None:
    """Bring `trials.jsonl` up to the journal, which may be ahead of it.

    That happens if the driver was killed between the two, or if an object store, which can't append, has an older file.
    Raises OSError, or ValueError for a broken line.
    """
    written = {trial["trial_id"] for trial in folder.read_trials()}
    if written & history.reopened - history.ended.keys():
        folder.write_trials(history.ended.values())
        return
    for trial_id, line in history.ended.items():
        if trial_id not in written:
            folder.append_trial(line)


class Recorder:
    """The one writer of a study's records. It takes each event once, in order.

    Writing raises OSError if the storage is full or gone. `history` is the fold of all events so far.
    """

    def __init__(self, study: TrackedStudy, writer: TrackingWriter, history: History) -> None:
        self._study, self._folder, self._writer = study, study.folder, writer
        self._journal = StudyJournal(study.folder)
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
        """Begin this run of the study, and first do what earlier runs left undone, for MLflow too."""
        for entry in self._journal.entries(after=cursor.read()):
            self._writer.tell(entry)
        complete_trials(self._folder, self.history)
        for line in self.history.unjournalled:
            self._note(self._journal.append(line["trial_id"], Ended.from_facts(line), line))
        self.take_study(event)

    def take_study(self, event: StudyEvent) -> None:
        """Write an event of the study itself."""
        self._note(self._journal.append_study(event))

    def take(self, trial_id: str, event: TrialEvent) -> JournalEvent | None:
        """Write an event of a trial; return what was written.

        None: the event is no news, or the trial ended only because the study stops, and a later run takes it up.
        """
        if not self.history.is_news(trial_id, event):
            return None
        record = self.history.open.get(trial_id)
        known = record.checkpoint if record else None
        if isinstance(event, Lost):
            event = self.history.record_of(trial_id).end_of_lost(event, time.time())
        if not isinstance(event, Ended):
            self._note(self._journal.append(trial_id, event))
            if known and isinstance(event, EpochDone) and event.checkpoint and event.checkpoint.run != known.run:
                forget_run(known.run)  # of the group that trained it before
            if isinstance(event, Reopened):
                self._folder.write_trials(self.history.ended.values())
            return event
        if not event.is_final:
            return None
        trial = self._study.trials[trial_id]
        event = replace(event, fingerprint=self.history.made_of(trial, event.fingerprint))
        line = event.to_line(trial)
        self._note(self._journal.append(trial_id, event, line))
        self._folder.append_trial(line)
        if time.monotonic() - self._shared_at >= SHARE_SECONDS:
            # an object store can't append, so it gets the whole file now and then; the journal can restore it
            self._shared_at = time.monotonic()
            self._folder.share(self._folder.trials_file)
        before = self._best
        if not self._note_best(line):
            self._states.forget(trial_id)
        elif before:
            self._states.forget(before[1])
        self._states.forget_checkpoints(trial_id)
        if known:
            forget_run(known.run)
        return event

    def finish(self) -> dict[str, Any]:
        """Write summary and report; return the summary."""
        from scalestudy.experiments.report import write_report

        self._folder.share(self._folder.trials_file)
        self._reported_seconds = self.wall_seconds
        write_report(self._folder, self._reported_seconds, fresh_workers=self.history.fresh_workers)
        summary: dict[str, Any] = json.loads(self._folder.summary_file.read_text(encoding="utf-8"))
        self._answer = answer_of(summary)
        return summary

    def close(self, *, interrupted: bool) -> None:
        """Write the study's last event. In MLflow it ends the study's runs; a finished study gets its best model."""
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

    def _note(self, entry: Recorded) -> None:
        """Hand on an entry that the journal now has."""
        self.history.take(entry)
        self._writer.tell(entry)

    def _note_best(self, line: Mapping[str, Any]) -> bool:
        """Remember a trial if it is the best so far of those whose model exists; return whether it is."""
        value = line["epochs"][-1].get(self._metric.key) if line["epochs"] else None
        if line["status"] not in WITH_MODEL or value is None:
            return False
        if self._best is not None and not self._metric.better(value, self._best[0]):
            return False
        if not self._states.has_model(line["trial_id"]):
            return False
        self._best = (value, line["trial_id"])
        return True
