"""Runs that others made, by hand, and worlds of the benches as a CSV."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from scalestudy.experiments.judging.columns import Columns, Mode, Question, Said, take_columns
from scalestudy.experiments.judging.runs import Recorded

if TYPE_CHECKING:
    from tests.support.worlds import World

USUAL: Mapping[str, Any] = {"num_gpus": 2, "global_batch_size": 64, "lr": 0.1, "seed": 0}
"""Parameters that no question is asked of."""
STARTED = 1_700_000_000
"""POSIX seconds at which the first training began."""
PAUSE_SECONDS = 60
"""Between the end of a training and the start of the next."""


def run(
    values: Mapping[str, Any] | None = None, history: Sequence[Mapping[str, Any]] = (), name: str = "a", **more: Any
) -> Recorded:
    """A run as its source has it."""
    return Recorded(
        where=f"runs.csv, {name}", name=name, values=USUAL if values is None else values, history=history, **more
    )


def curve(*values: float, step: int = 10, seconds: float = 5.0, metric: str = "val_acc") -> list[dict[str, Any]]:
    """Evaluations at equal distances."""
    return [
        {"global_step": step * place, "train_time": seconds * place, metric: value}
        for place, value in enumerate(values, start=1)
    ]


def taken(
    runs: Sequence[Recorded],
    *columns: str,
    metric: str = "val_acc",
    mode: Mode | None = None,
    given: Sequence[str] = (),
) -> tuple[Columns, list[Question]]:
    """What is taken as what, and what is asked. columns, given: as `--column` and `--set` have them."""
    return take_columns(runs, metric, mode, Said().with_columns(columns).with_given(given))


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """A table of these rows."""
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(dict.fromkeys(key for row in rows for key in row)))
        writer.writeheader()
        writer.writerows(rows)
    return path


def small(world: World, several: int = 3) -> World:
    """A part of a world that is written in seconds: 2 numbers of workers, several batch sizes and rates."""
    return replace(world, workers=world.workers[:2], batches=world.batches[:several], rates=world.rates[:several])


class Row(NamedTuple):
    """An evaluation of a training."""

    epoch: int
    steps: int  # so far
    seconds: float  # since it began
    accuracy: float  # NaN: it diverged


class Training(NamedTuple):
    """A training of a world, when it began and its evaluations."""

    params: Mapping[str, Any]
    started: float
    rows: list[Row]

    @property
    def stopped(self) -> float:
        return self.started + self.rows[-1].seconds


def trainings(world: World) -> Iterator[Training]:
    """Yields the trainings, one after the other in time."""
    now = float(STARTED)
    for line in world.trials():
        rows: list[Row] = []
        steps, seconds = 0, 0.0
        for epoch in line["epochs"]:
            steps, seconds = steps + epoch["steps"], seconds + epoch["train_seconds"]
            value = epoch["test_accuracy"]
            rows.append(Row(epoch["epoch"], steps, seconds, math.nan if value is None else value))
        training = Training(line["params"], now, rows)
        yield training
        now = training.stopped + PAUSE_SECONDS


def world_rows(world: World) -> list[dict[str, Any]]:
    """A world's trainings as rows of a long table."""
    return [
        {
            "run": f"run-{number}",
            "GPUs": training.params["num_gpus"],
            "global batch size": training.params["batch_size"],
            "config/lr": training.params["learning_rate"],
            "Seed": training.params["seed"],
            "epoch": row.epoch,
            "global_step": row.steps,
            "train_time": repr(row.seconds),
            "val/acc": repr(row.accuracy),
        }
        for number, training in enumerate(trainings(world))
        for row in training.rows
    ]
