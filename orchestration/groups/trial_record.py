"""The one fold of a trial's events: what is known of it over all of its attempts.

The pool keeps a `TrialRecord` for each trial that it serves. The study folds another from the journal, and hands it to
the pool when a later run, or a new engine, takes up the trial.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, assert_never

from scalestudy.experiments.plan.timing_flags import TimingFlag
from scalestudy.orchestration.groups.events import (
    Ended,
    EpochDone,
    Failure,
    JournalEvent,
    LoopCheckpoint,
    Lost,
    Member,
    Reopened,
    Retried,
    Running,
    Status,
    Suggested,
    TrainingEnded,
    TrialError,
    TrialEvent,
    World,
)
from scalestudy.training.gpu_state import GpuState
from scalestudy.training.records import EpochRecord, utc_text

MOST_STARVED = 0.2
"""Above this share of its computing time without a core, a worker is starved: it kept less than 0.8 of the core."""


def worker_flags(members: Sequence[Member]) -> set[str]:
    """Return `oversubscribed` if the CPU workers on one host have more threads than it has cores; else nothing."""
    on_cpu = [member for member in members if member.device == "cpu"]
    threads: dict[str, int] = {}
    for member in on_cpu:
        threads[member.host] = threads.get(member.host, 0) + member.threads
    return {TimingFlag.OVERSUBSCRIBED} if any(threads[member.host] > member.cores for member in on_cpu) else set()


def epoch_flags(epochs: Sequence[EpochRecord], known: Collection[str] = ()) -> set[str]:
    """Return the flags that a trial's epochs show: `warm_up_included`, and `starved`.

    A trial is starved in its median epoch, as its times are medians too. known: its other flags; more threads than
    cores explain that they had none.
    """
    flags = set[str]()
    if epochs and all(epoch.samples_per_second is None for epoch in epochs):  # none had steps after the warm-up
        flags.add(TimingFlag.WARM_UP_INCLUDED)
    shares = [epoch.starved_share for epoch in epochs if epoch.starved_share is not None]
    if shares and statistics.median(shares) > MOST_STARVED and TimingFlag.OVERSUBSCRIBED not in known:
        flags.add(TimingFlag.STARVED)
    return flags


@dataclass
class TrialRecord:
    """A trial's facts over all of its attempts; the first record of an epoch wins.

    An *engine* is one life of the pool. Moments are seconds since 1970.
    """

    epochs: dict[int, EpochRecord] = field(default_factory=dict)
    attempts: int = 0  # so far, including those that were lost before they had workers
    failures: list[Failure] = field(default_factory=list)  # lost attempts, in order
    forgiven: int = 0  # number of failures that no budget counts any more
    flags: set[str] = field(default_factory=set)
    world: World = field(default_factory=World)
    started_at: float | None = None  # when the first engine began with it
    begun_at: float | None = None  # when the present engine began with it; None: it has not
    earlier_seconds: float = 0.0  # that earlier engines spent on it
    last_seen: float = 0.0  # moment of its last event
    startup_seconds: float | None = None  # from the present engine's start on it to the first step
    lost_seconds: float = 0.0  # training time of the epoch in which it diverged, which has no record
    details: dict[str, Any] = field(default_factory=dict)  # what training picked by itself: shards, memory order …
    gpus: tuple[GpuState, ...] = ()  # of the ranks that had one, as the training ended
    code: dict[str, str] = field(default_factory=dict)  # as in `TrainingEnded`
    checkpoint: LoopCheckpoint | None = None  # of a user's loop
    ended: Ended | None = None

    def is_news(self, event: TrialEvent) -> bool:
        """Return whether an event changes the record.

        The first record of an epoch wins. An attempt begins once and is lost once. A trial ends once. The pool repeats
        a trial's events to the process that replaces a lost Tune process.
        """
        if self.ended:
            return isinstance(event, Reopened)
        match event:
            case Running():
                return event.attempt > self.attempts
            case EpochDone():
                return event.record.epoch not in self.epochs
            case Retried():
                return not self.is_lost(event.attempt)
            case Suggested() | Ended() | Lost():
                return True
            case Reopened():
                return False  # it has not ended
        assert_never(event)

    def apply(self, event: JournalEvent, at: float) -> None:
        """Take an event that came at this moment."""
        self.last_seen = at
        match event:
            case Running():
                self.begin(at)
                self.attempts = event.attempt
                self.world = self.world if event.world == World() else event.world
            case EpochDone():
                self.epochs.setdefault(event.record.epoch, event.record)
                self.flags.update(event.flags)
                self.checkpoint = event.checkpoint or self.checkpoint
            case Retried():
                self.attempts = max(self.attempts, event.attempt)
                self.failures.append(Failure.of(event.attempt, event.error))
            case Ended():
                self.ended = event

    @classmethod
    def reopened(cls, ended: Ended) -> TrialRecord:
        """Return what is left of a trial that is to run again after this end."""
        failures = list(ended.failures)
        return cls(attempts=ended.attempts, failures=failures, forgiven=len(failures))

    @property
    def counted_failures(self) -> list[Failure]:
        """The lost attempts that count against its budgets."""
        return self.failures[self.forgiven :]

    def is_lost(self, attempt: int) -> bool:
        """Return whether an attempt is among the failures."""
        return any(failure.attempt == attempt for failure in self.failures)

    def begin(self, at: float) -> None:
        """Note that the present engine does something for the trial; later calls change nothing."""
        self.begun_at = at if self.begun_at is None else self.begun_at
        self.started_at = at if self.started_at is None else self.started_at

    def training_started(self, at: float, *, resumed: bool) -> None:
        """Note that rank 0 is about to take its first step. Later attempts leave the cost of the start-up as it is."""
        if resumed:
            self.flags.add(TimingFlag.RESUMED)
        if self.startup_seconds is None and self.begun_at is not None:
            self.startup_seconds = at - self.begun_at

    def training_ended(self, post: TrainingEnded) -> None:
        """Take rank 0's last report on the attempt that ends the trial."""
        if post.status == "diverged":
            self.lost_seconds = post.lost_seconds
        self.details, self.gpus, self.code = dict(post.details), post.gpus, dict(post.code)
        if any(gpu.is_throttled for gpu in post.gpus):
            self.flags.add(TimingFlag.THROTTLED)
        if any(gpu.others for gpu in post.gpus):
            self.flags.add(TimingFlag.SHARED_GPU)

    def cut(self, error: TrialError) -> None:
        """Note that the engine that ran the trial has ended; a later one goes on with it."""
        if self.begun_at is None:
            return
        self.earlier_seconds += self.last_seen - self.begun_at
        self.begun_at = None
        if not self.is_lost(self.attempts):
            self.failures.append(Failure.of(self.attempts, error))

    def forget_after(self, epoch: int) -> None:
        """Drop what came after an epoch, even the trial's own end."""
        self.epochs = {number: record for number, record in self.epochs.items() if number <= epoch}
        self.lost_seconds = 0.0
        self.ended = None

    def end(self, status: Status, *, attempts: int, error: TrialError | None, at: float) -> Ended:
        """End the trial; return the event that says so, with all that is known."""
        begun = at if self.begun_at is None else self.begun_at
        started = begun if self.started_at is None else self.started_at
        trained = sum(epoch.train_seconds for epoch in self.epochs.values()) + self.lost_seconds
        self.ended = Ended(
            status=status,
            attempts=attempts,
            started_at=utc_text(started),
            ended_at=utc_text(at),
            wall_seconds=round(self.earlier_seconds + at - begun, 6),
            train_seconds=round(trained, 6),
            startup_seconds=None if self.startup_seconds is None else round(self.startup_seconds, 6),
            world=self.world,
            flags=tuple(sorted(self.flags | epoch_flags(list(self.epochs.values()), self.flags))),
            details=dict(self.details),
            gpus=self.gpus,
            fingerprint={module: [digest] for module, digest in self.code.items()},
            failures=tuple(self.failures),
            epochs=tuple(self.epochs[number] for number in sorted(self.epochs)),
            error=error,
        )
        return self.ended

    def end_of_lost(self, lost: Lost, at: float) -> Ended:
        """Return the end of a trial that can't report it, from what is recorded of it. The record stays as it is."""
        known = deepcopy(self)
        known.begun_at = None  # only the pool knew how long the present engine worked on it
        if lost.last_epoch is not None:
            known.forget_after(lost.last_epoch)
        return known.end(lost.status, attempts=max(self.attempts, 1), error=lost.error, at=at)
