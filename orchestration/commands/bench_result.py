"""What `bench max-batch` found on one machine: tables, notes and metrics, and the run in MLflow that keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from scalestudy.orchestration.base.errors import StudyError

NAME = "max-batch"
"""The bench, as on the command line; the name of its run in MLflow."""
EXPERIMENT = "scalestudy-bench"
"""MLflow's experiment of it."""


@dataclass(frozen=True)
class Table:
    """Rows under a header; the heading of a column of numbers names the unit."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str | int | float, ...], ...]


@dataclass(frozen=True)
class Run:
    """The run in MLflow that keeps the result."""

    tracking_uri: str | None = None  # None: not kept
    run_id: str | None = None


@dataclass(frozen=True)
class LargestBatches:
    """The largest batches of one worker on one machine, and where they are kept."""

    question: str
    tables: tuple[Table, ...]
    notes: tuple[str, ...]  # what holds on this machine, a sentence or two each
    metrics: Mapping[str, float]  # names end with the unit
    machine: Mapping[str, str]
    quick: bool  # small sizes
    mlflow: Run = Run()
    untracked: StudyError | None = None  # why MLflow does not have it, if it should

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for --json and as the run's artifact."""
        facts = asdict(replace(self, untracked=None))
        del facts["untracked"]
        return {"name": NAME, **facts}

    @property
    def measured_on(self) -> str:
        """What the figures were measured on, in one line."""
        said = self.machine
        how = ", small sizes (--quick), whose figures mean little" if self.quick else ""
        return f"on {said['device']}, {said['cores']} cores, {said['threads']} threads, torch {said['torch']}{how}"
