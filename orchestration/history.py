"""Stages 3 to 7: what a study's journal comes to – which trials have ended, and where the open ones stand. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from experiments.journal import Entry
from experiments.plan import TrialPlan
from orchestration.failures import INTERRUPTED

MESSAGE = "the study ended while the trial ran, and was resumed"


@dataclass
class TrialHistory:
    """A trial that has begun and has not ended; times in seconds.

    epochs: records by epoch, the first of each. attempts: begun so far. started_at: since 1970. wall_seconds: that the
    study spent on it in earlier runs. failures: the attempts that were lost, as in trials.jsonl.
    flags, world: as in trials.jsonl, as far as its events told them.
    """

    epochs: dict[int, dict[str, Any]] = field(default_factory=dict)
    attempts: int = 0
    started_at: float | None = None
    wall_seconds: float = 0.0
    failures: list[dict[str, Any]] = field(default_factory=list)
    flags: set[str] = field(default_factory=set)
    world: dict[str, Any] | None = None
    running_since: float | None = None
    last_seen: float = 0.0

    def take(self, entry: Entry) -> None:
        """Brings it up to date with one event of the trial."""
        self.last_seen = entry.at
        self.flags |= set(entry.event.get("flags") or ())
        if entry.type == "running":
            self.world = entry.event.get("world") or self.world
            self.attempts = entry.event["attempt"]
            self.started_at = entry.at if self.started_at is None else self.started_at
            self.running_since = entry.at if self.running_since is None else self.running_since
        elif entry.type == "epoch":
            self.epochs.setdefault(entry.event["epoch"]["epoch"], entry.event["epoch"])
        elif entry.type == "retry":
            self.failures.append({"attempt": entry.event["attempt"], **entry.event["error"]})

    def cut(self, kind: str, message: str) -> None:
        """The engine that ran it has ended under it; a later one goes on."""
        if self.running_since is None:
            return
        self.wall_seconds += self.last_seen - self.running_since
        self.running_since = None
        if self.is_lost(self.attempts):
            return
        self.failures.append({"attempt": self.attempts, "kind": kind, "message": message, "rank": None})

    def is_lost(self, attempt: int) -> bool:
        """Whether an attempt is among the failures."""
        return any(failure["attempt"] == attempt for failure in self.failures)

    def to_order(self) -> dict[str, Any]:
        """What the worker groups' books need to go on with the trial."""
        return {
            "epochs": [self.epochs[number] for number in sorted(self.epochs)],
            "attempts": self.attempts,
            "started_at": self.started_at,
            "wall_seconds": self.wall_seconds,
            "failures": list(self.failures),
            "flags": sorted(self.flags),
            "world": self.world,
        }


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
