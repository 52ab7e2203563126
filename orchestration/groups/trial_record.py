"""The one fold of a trial's events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from scalestudy.experiments.study.journal import Entry
from scalestudy.orchestration.groups.failures import Failure

WARM_UP_INCLUDED = "warm_up_included"


def utc_text(seconds: float) -> str:
    """Seconds since 1970 as ISO 8601 in UTC, with milliseconds and a Z."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def error_of(kind: str, message: str, rank: int | None = None) -> dict[str, Any]:
    """A trial's error as `trials.jsonl` holds it."""
    return {"kind": kind, "message": message, "rank": rank}


def worker_flags(members: Sequence[dict[str, Any]]) -> set[str]:
    """`oversubscribed` when the workers on one host have more threads than it has cores; GPU workers don't count."""
    on_cpu = [member for member in members if member["device"] == "cpu"]
    threads: dict[str, int] = {}
    for member in on_cpu:
        threads[member["host"]] = threads.get(member["host"], 0) + member["threads"]
    return {"oversubscribed"} if any(threads[member["host"]] > member["cores"] for member in on_cpu) else set()


@dataclass
class Outcome:
    """Collects a trial's facts over all its attempts; the first record of an epoch wins.

    Attempts may have been made by earlier engines of the study: what they left comes in by `of_history`.
    """

    world: dict[str, Any] = field(default_factory=lambda: {"device": None, "nodes": 0, "workers": []})
    flags: set[str] = field(default_factory=set)
    details: dict[str, Any] = field(default_factory=dict)  # what training picked by itself: shards, memory order …
    epochs: dict[int, dict[str, Any]] = field(default_factory=dict)
    running_since: float | None = None
    startup_seconds: float | None = None
    lost_seconds: float = 0.0  # training time of the epoch in which the trial diverged, which has no record
    failures: list[Failure] = field(default_factory=list)  # lost attempts, in order
    first_started_at: float | None = None  # when an earlier engine first did something for the trial
    earlier_seconds: float = 0.0  # in which earlier engines were at it

    @classmethod
    def of_history(cls, history: Mapping[str, Any]) -> Outcome:
        """What earlier attempts have left: `epochs`, `started_at` (seconds since 1970), `wall_seconds`,
        `startup_seconds`, `flags`, `failures` and `world`, each where it is known."""
        outcome = cls(
            flags=set(history.get("flags") or ()) - {WARM_UP_INCLUDED},
            epochs={epoch["epoch"]: epoch for epoch in history.get("epochs") or ()},
            startup_seconds=history.get("startup_seconds"),
            failures=[Failure(**failure) for failure in history.get("failures") or ()],
            first_started_at=history.get("started_at"),
            earlier_seconds=history.get("wall_seconds") or 0.0,
        )
        outcome.world = history.get("world") or outcome.world
        return outcome

    def granted(self, now: float, members: Sequence[dict[str, Any]], flags: set[str]) -> None:
        """A group has taken the trial."""
        workers = [{key: member[key] for key in ("rank", "node", "device", "threads")} for member in members]
        kinds = {member["device"].split(":")[0] for member in members}
        nodes = len({member["node"] for member in members})
        self.world = {"device": "+".join(sorted(kinds)), "nodes": nodes, "workers": workers}
        self.flags |= flags
        self.running_since = now

    def training_started(self, now: float, started_at: float | None, *, resumed: bool) -> None:
        """Rank 0 is about to take its first step; later attempts don't change what start-up cost."""
        if resumed:
            self.flags.add("resumed")
        if self.startup_seconds is None and started_at is not None:
            self.startup_seconds = now - started_at

    def new_epoch(self, epoch: dict[str, Any]) -> bool:
        """Keeps an epoch's record unless an earlier attempt has recorded that epoch; says whether it was kept."""
        if epoch["epoch"] in self.epochs:
            return False
        self.epochs[epoch["epoch"]] = epoch
        return True

    def forget_after(self, epoch: int) -> None:
        """The trial has been stopped at that epoch: what came later does not count."""
        self.epochs = {number: record for number, record in self.epochs.items() if number <= epoch}
        self.lost_seconds = 0.0

    def training_ended(self, event: dict[str, Any]) -> None:
        """Rank 0's last word on the attempt that ends the trial."""
        if event["status"] == "diverged":
            self.lost_seconds = event["lost_seconds"]
        self.details = dict(event.get("details") or {})

    def over_time(self, now: float, limit_seconds: float) -> bool:
        """Whether the current attempt has run longer than the limit."""
        return self.running_since is not None and now - self.running_since > limit_seconds

    def to_dict(
        self, *, status: str, attempts: int, started_at: float | None, now: float, error: dict[str, Any] | None
    ) -> dict[str, Any]:
        """The part of a line of `trials.jsonl` that the engine knows; seconds, ISO times in UTC.

        started_at: when this engine first did something for the trial; None: never.
        """
        began = now if started_at is None else started_at
        first = began if self.first_started_at is None else self.first_started_at
        trained = sum(epoch["train_seconds"] for epoch in self.epochs.values()) + self.lost_seconds
        return {
            "status": status,
            "attempts": attempts,
            "started_at": utc_text(first),
            "ended_at": utc_text(now),
            "wall_seconds": round(self.earlier_seconds + now - began, 6),
            "train_seconds": round(trained, 6),
            "startup_seconds": None if self.startup_seconds is None else round(self.startup_seconds, 6),
            "world": self.world,
            "flags": sorted(self.flags | self._timing_flags()),
            **({"details": self.details} if self.details else {}),
            **({"failures": [failure.to_dict() for failure in self.failures]} if self.failures else {}),
            "epochs": [self.epochs[number] for number in sorted(self.epochs)],
            "error": error,
        }

    def _timing_flags(self) -> set[str]:
        """`warm_up_included` when no epoch had steps left after the warm-up ones."""
        measured = [epoch["samples_per_second"] is not None for epoch in self.epochs.values()]
        return {WARM_UP_INCLUDED} if measured and not any(measured) else set()


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
