"""Stages 3 to 7, watched from outside: how a study stands, by its folder alone."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from experiments.analysis.metric import StudyMetric
from experiments.journal import Journal
from orchestration.board import Board, clock
from orchestration.folders import open_folder, readable, spec_of
from orchestration.history import History
from orchestration.lock import Holder, lock_of
from orchestration.tracking import Cursor


@dataclass(frozen=True, kw_only=True)
class RunningNow:
    """A trial that has begun and has not ended. metric: its last value, null before the first epoch."""

    name: str
    trial_id: str
    attempt: int
    epoch: int
    epochs: int
    metric: float | None


@dataclass(frozen=True, kw_only=True)
class Status:
    """How a study stands.

    state: running, finished, stopped (cleanly) or interrupted (its process died). trials: by status, with the number
    planned. wall_seconds: of all of its runs. silent_seconds: since the last sign of life of the process that runs it;
    null when none does. best: the best value so far with its trial. unsent: journal entries that MLflow has not got.
    """

    study: str
    state: str
    trials: dict[str, int]
    running: tuple[RunningNow, ...]
    best: dict[str, Any] | None
    wall_seconds: float
    holder: str | None
    silent_seconds: float | None
    unsent: int
    folder: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for --json."""
        return asdict(self)


def status_of(path: str | Path) -> Status:
    """How the study in a folder stands. Raises RequestError where it is not a study's."""
    folder = open_folder(path)
    with readable(folder):
        spec, plan, journal = spec_of(folder), folder.read_plan(), Journal(folder.journal_folder)
        history = History.of(journal.entries())
    holder = lock_of(folder).holder()
    alive = holder if holder and holder.is_alive else None
    trials = plan.with_trials(history.suggested.values()).by_id()
    board = Board(trials, StudyMetric.of(spec.workload), expected=plan.expected_trials)
    board.catch_up(history.past)
    counts = {status: list(board.statuses.values()).count(status) for status in sorted(set(board.statuses.values()))}
    return Status(
        study=folder.study_id,
        state=_state(history, alive),
        trials={"planned": board.total, **counts},
        running=tuple(
            RunningNow(
                name=each.trial.run_name,
                trial_id=trial_id,
                attempt=each.attempt,
                epoch=len(each.epochs),
                epochs=each.trial.train["epochs"],
                metric=each.values[-1] if each.epochs else None,
            )
            for trial_id, each in board.resting.items()
        ),
        best={"value": board.best[0], "trial": board.best[1].run_name} if board.best else None,
        wall_seconds=history.wall_seconds_at(time.time()) if alive else history.wall_seconds,
        holder=f"process {alive.pid} on {alive.host}" if alive else None,
        silent_seconds=alive.silent_seconds if alive else None,
        unsent=max(0, journal.last_number - Cursor(folder.cursor_file).read()),
        folder=folder.address,
    )


def _state(history: History, alive: Holder | None) -> str:
    if alive:
        return "running"
    return history.state if history.state in ("finished", "stopped") else "interrupted"


def status_lines(found: Status) -> list[str]:
    """The status in words."""
    trials = dict(found.trials)
    planned = trials.pop("planned")
    ended = sum(trials.values())
    counts = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in trials.items())
    by = f" by {found.holder}, seen {found.silent_seconds:.0f} s ago" if found.holder else ""
    lines = [
        f"{found.study}: {found.state}{by}",
        f"{ended}/{planned} trials ended{f' ({counts})' if counts else ''}, {clock(found.wall_seconds)} of running",
    ]
    word = "running" if found.holder else "to go on"
    for trial in found.running:
        value = "" if trial.metric is None else f", last {trial.metric:.4g}"
        lines.append(f"{word}: {trial.name}: epoch {trial.epoch}/{trial.epochs}, attempt {trial.attempt}{value}")
    if found.best:
        lines.append(f"best so far: {found.best['value']:.4g} ({found.best['trial']})")
    if not found.holder and found.state != "finished":
        lines.append(f"to go on: scalestudy resume {quote(found.folder)}")
    if not found.holder and found.unsent:
        lines.append(f"MLflow has not got {found.unsent} entries of the journal: scalestudy sync {quote(found.folder)}")
    return lines
