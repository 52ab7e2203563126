"""Worlds of the benches as tools of others would have recorded them: in MLflow, and in a folder of Ray Tune's."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.worlds import World

STARTED = 1_700_000_000
"""POSIX seconds at which the first training began."""
PAUSE_SECONDS = 60
"""Between the end of a training and the start of the next."""


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


def write_mlflow(uri: str, experiment: str, world: World) -> None:
    """A run a training, by MLflow's client."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    client = MlflowClient(tracking_uri=uri)
    home = client.create_experiment(experiment)
    for training in trainings(world):
        run = client.create_run(home, start_time=round(training.started * 1000)).info.run_id
        params = {
            "num_gpus": training.params["num_gpus"],
            "global_batch_size": training.params["batch_size"],
            "lr": training.params["learning_rate"],
            "seed": training.params["seed"],
        }
        metrics = [
            Metric(name, value, round((training.started + row.seconds) * 1000), row.steps)
            for row in training.rows
            for name, value in (("val_acc", row.accuracy), ("epoch", row.epoch), ("train_time", row.seconds))
        ]
        client.log_batch(run, metrics, [Param(name, repr(value)) for name, value in params.items()])
        client.set_terminated(run, end_time=round(training.stopped * 1000))


def write_tune(folder: Path, world: World) -> Path:
    """The folder of an experiment of Ray 2.60's Tune: a function that reports each epoch, under no scheduler."""
    folder.mkdir(parents=True)
    states = []
    for number, training in enumerate(trainings(world)):
        config = {
            "global_batch_size": training.params["batch_size"],
            "lr": training.params["learning_rate"],
            "num_gpus": training.params["num_gpus"],
            "seed": training.params["seed"],
        }
        trial_id, began = f"5ca1e_{number:05}", _date(training.started)
        tag = f"{number}_lr={training.params['learning_rate']:.4f}"
        trial = folder / f"train_{trial_id}_{tag}_{began}"
        trial.mkdir()
        (trial / "params.json").write_text(json.dumps(config, indent=2, sort_keys=True))
        results = list(_results(training, trial_id, config))
        (trial / "result.json").write_text("".join(f"{json.dumps(result)}\n" for result in results))
        with (trial / "progress.csv").open("w", newline="") as stream:
            tables = [{key: value for key, value in result.items() if key != "config"} for result in results]
            writer = csv.DictWriter(stream, list(tables[0]))
            writer.writeheader()
            writer.writerows(tables)
        state = {"trainable_name": "train", "trial_id": trial_id, "config": config, "evaluated_params": config}
        state |= {"experiment_tag": tag, "stopping_criterion": {}, "max_failures": 0, "status": "TERMINATED"}
        states.append([json.dumps({**state, "relative_logdir": trial.name}), "{}"])
    whole = {"trial_data": states, "runner_data": {}, "stats": {}}
    (folder / f"experiment_state-{_date(STARTED)}.json").write_text(json.dumps(whole))
    return folder


def _results(training: Training, trial_id: str, config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    before = 0.0
    for row in training.rows:
        now = training.started + row.seconds
        yield {
            "val_acc": row.accuracy,
            "epoch": row.epoch,
            "steps": row.steps,
            "timestamp": int(now),
            "checkpoint_dir_name": None,
            "done": False,
            "training_iteration": row.epoch,
            "trial_id": trial_id,
            "date": _date(now),
            "time_this_iter_s": row.seconds - before,
            "time_total_s": row.seconds,
            "pid": 7,
            "hostname": "node1",
            "node_ip": "10.0.0.1",
            "config": config,
            "time_since_restore": row.seconds,
            "iterations_since_restore": row.epoch,
        }
        before = row.seconds


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d_%H-%M-%S")
