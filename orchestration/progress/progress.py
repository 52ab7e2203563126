"""The state of a study, folded from its events; `live` shows it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from scalestudy.experiments.analysis.measures.metric import ACCURACY, StudyMetric
from scalestudy.experiments.analysis.measures.units import plural
from scalestudy.experiments.plan.plan import TrialPlan
from scalestudy.orchestration.groups.events import Ended, EpochDone, Reopened, Retried, Running, TrialEvent
from scalestudy.orchestration.groups.failures import OUTSIDE
from scalestudy.training.records import EpochRecord

SPARKS = "▁▂▃▄▅▆▇█"


def finite_metric(epoch: EpochRecord) -> float | None:
    """Return an epoch's value of the study's metric; None: not measured, or not finite."""
    return epoch.test_metric if math.isfinite(epoch.test_metric) else None


@dataclass
class RunningTrial:
    """A trial that trains now."""

    trial: TrialPlan
    attempt: int = 1
    epochs: list[EpochRecord] = field(default_factory=list)

    @property
    def values(self) -> list[float | None]:
        """The study's metric by epoch."""
        return [finite_metric(epoch) for epoch in self.epochs]

    @property
    def samples_per_second(self) -> float | None:
        """The rate of the last epoch that has one."""
        rates = [epoch.samples_per_second for epoch in self.epochs if epoch.samples_per_second is not None]
        return rates[-1] if rates else None

    @property
    def tokens_per_second(self) -> float | None:
        """The rate of the last epoch that has one, in tokens; None: the task counts none."""
        rates = [epoch.tokens_per_second for epoch in self.epochs if epoch.tokens_per_second is not None]
        return rates[-1] if rates else None


@dataclass
class StudyProgress:
    """The state of a study, folded from its events."""

    trials: dict[str, TrialPlan]  # by id; a search adds some later
    metric: StudyMetric = ACCURACY
    expected: int | None = None  # number of trials of the study; None: the known ones
    grows: bool = False  # whether an adaptive search adds trials until it is sure, so that no total is known
    ended_before: int = 0  # number that earlier runs of the study ended
    started: float = field(default_factory=time.monotonic)
    running: dict[str, RunningTrial] = field(default_factory=dict)
    statuses: dict[str, str] = field(default_factory=dict)  # how each trial ended, timing runs left out
    timings: dict[str, str] = field(default_factory=dict)  # how each timing run ended
    best: tuple[float, TrialPlan] | None = None
    resting: dict[str, RunningTrial] = field(default_factory=dict)  # begun earlier or put off, and not taken up yet
    stopping: bool = False  # the study ends early, by Ctrl-C for instance: what is in `running` is cut off

    def catch_up(self, past: Iterable[tuple[str, TrialEvent]]) -> None:
        """Take the events of the study's earlier runs, (trial id, event) each."""
        for trial_id, event in past:
            if trial_id in self.trials:
                self.take(trial_id, event)
        self.resting, self.running = self.running, {}
        self.ended_before = len(self.statuses)

    def take(self, trial_id: str, event: TrialEvent) -> None:
        """Bring the state up to date with one event."""
        trial = self.trials[trial_id]
        match event:
            case Running():
                before = self.running.get(trial_id) or self.resting.pop(trial_id, None)
                epochs = before.epochs if before else []  # an earlier attempt's epochs are not repeated
                self.running[trial_id] = RunningTrial(trial, event.attempt, epochs)
            case EpochDone():
                if trial_id in self.running:
                    self.running[trial_id].epochs.append(event.record)
                value = finite_metric(event.record)
                if value is not None and (self.best is None or self.metric.better(value, self.best[0])):
                    self.best = (value, trial)
            case Retried() if event.error.kind in OUTSIDE and trial_id in self.running:
                self.resting[trial_id] = self.running.pop(trial_id)
            case Ended():
                self.running.pop(trial_id, None)
                self.resting.pop(trial_id, None)  # it was over its budget, or found no room
                (self.timings if trial.kind == "timing" else self.statuses)[trial_id] = event.status
            case Reopened():
                (self.timings if trial.kind == "timing" else self.statuses).pop(trial_id, None)

    @property
    def total(self) -> int:
        """The number of trials of the study, including those that are still to be suggested; if it grows, so far."""
        known = len(self.trials) - self.total_timings
        return known if self.expected is None or self.grows else max(self.expected, known)

    @property
    def count(self) -> str:
        """How many trials have ended, `7/16`; only `7` if the study grows."""
        return str(len(self.statuses)) if self.grows else f"{len(self.statuses)}/{self.total}"

    @property
    def total_timings(self) -> int:
        """The number of timing runs of the study; 0 before its trials have ended."""
        return sum(trial.kind == "timing" for trial in list(self.trials.values()))

    @property
    def elapsed_seconds(self) -> float:
        """The seconds since this run of the study began."""
        return time.monotonic() - self.started

    @property
    def remaining_seconds(self) -> float | None:
        """The time left at the pace so far; None before the first trial has ended, while the study stops, and if it
        grows."""
        ended = len(self.statuses) - self.ended_before
        if not ended or self.stopping or self.grows:
            return None
        return self.elapsed_seconds / ended * (self.total - len(self.statuses))

    def line(self) -> str:
        """Return `7/16 trials · 0:31 elapsed · about 0:40 left`, with the trials that did not finish."""
        so_far = " so far" if self.grows else ""
        parts = [f"{self.count} trials{so_far}", f"{clock(self.elapsed_seconds)} elapsed"]
        left = self.remaining_seconds
        if left is not None and len(self.statuses) < self.total:
            parts.append(f"about {clock(left)} left")
        if self.stopping:
            parts.append(f"stopping, {plural(len(self.running), 'trial')} cut off" if self.running else "stopping")
        odd = [status for status in list(self.statuses.values()) if status != "finished"]
        parts.extend(f"{odd.count(status)} {status.replace('_', ' ')}" for status in sorted(set(odd)))
        if self.total_timings:
            parts.append(f"{len(self.timings)}/{self.total_timings} timing runs")
        if self.best:
            best = self.metric.named(self.metric.text(self.best[0], 4))
            parts.append(f"best so far {best} ({self.best[1].name})")
        return " · ".join(parts)


def sparkline(values: Sequence[float | None], width: int = 12, *, share: bool = True) -> str:
    """Return the last values as bars, one an epoch; a gap where there is none.

    Bars reach from 0 to 1; for values that are no shares, from the smallest shown to the largest.
    """
    last = list(values)[-width:]
    known = [value for value in last if value is not None]
    low, high = (0.0, 1.0) if share or not known else (min(known), max(known))
    bars = ""
    for value in last:
        if value is None:
            bars += " "
            continue
        height = (value - low) / (high - low) if high > low else 0.5
        bars += SPARKS[min(int(max(height, 0.0) * len(SPARKS)), len(SPARKS) - 1)]
    return bars


def clock(seconds: float) -> str:
    """Return minutes and seconds as 1:05, or hours as 2:03:04."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
