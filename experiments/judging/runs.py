"""Runs that others made: as their source has them, and as a study takes them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from scalestudy.training.exceptions import InputError

Ended = Literal["finished", "cut", "failed", "running"]
"""How a run ended. cut: before its last evaluation, on purpose, such as by a scheduler for being behind."""

Say = Callable[[str], None]
"""Takes a line about what a source has and its reader leaves out."""


class SourceError(InputError):
    """A source that can't be read as runs. what: the source, its row or run, and the value."""


def silent(line: str) -> None:
    """Say nothing."""


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A run as its source has it: names and values as they stand there."""

    where: str
    """Where a reader finds it: `runs.csv, rows 2 to 11`, `MLflow run 4f0c…`, `trial_7, result.json`."""
    name: str
    values: Mapping[str, Any]
    """What is said once of the run: parameters, tags, and figures that it has one of."""
    history: Sequence[Mapping[str, Any]] = ()
    """What is said at each evaluation, in the source's order. Empty where the source has a row a run."""
    ended: Ended | None = None
    """None: the source does not say."""
    started: float | None = None
    """POSIX seconds; None: the source does not say. Likewise stopped."""
    stopped: float | None = None


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The metric at one place of a run."""

    value: float
    seconds: float | None  # since the run began, by its own clock
    steps: float | None  # updates so far
    epochs: float | None  # passes over the training set so far


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run with what a study needs of it."""

    where: str
    name: str
    num_gpus: int
    batch_size: int  # examples an update, all workers together
    learning_rate: float
    seed: int | None
    settings: Mapping[str, Any]
    """What else is said once of the run, by its own name: what may differ between runs that are compared."""
    evaluations: tuple[Evaluation, ...]  # in the order of time
    seconds: float | None  # of the whole run
    ended: Ended
    started: float | None  # POSIX seconds
    machine: str | None
    accelerator: str | None  # type of the GPUs
    result_alone: bool = False
    """Whether its source has a row a run: the one evaluation is the run's result, as good as confirmed."""
