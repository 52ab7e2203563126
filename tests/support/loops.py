"""Training loops as users of Ray Train write them, which compute nothing: each ends in its own way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ray.train
import torch
from ray.train import Checkpoint

import scalestudy

LEFT = "left-behind"
"""Argument of the process that a loop leaves behind, by which a test finds it."""


def counts(config: dict[str, Any]) -> None:
    """Reports once an epoch, with a checkpoint; goes on from one. `breaks` says what happens before a report."""
    began, epoch, seen = time.monotonic(), 0, 0
    if (checkpoint := ray.train.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder, "state.pt"), weights_only=True)
        epoch, seen = state["epoch"], state["seen"]
    while epoch < config["epochs"]:
        for _ in range(10):
            seen += config["batch_size"]
            if config.get("steps"):
                scalestudy.step(config["batch_size_per_worker"])
        time.sleep(config.get("sleep", 0.0))
        _break(config, epoch + 1)
        epoch += 1
        metrics = {
            "eval_acc": config.get("learning_rate", 0.1) * epoch,
            "seen": seen,
            "own_seconds": time.monotonic() - began,
        }
        if ray.train.get_context().get_world_rank() == 0:
            with tempfile.TemporaryDirectory() as folder:
                torch.save({"epoch": epoch, "seen": seen}, Path(folder, "state.pt"))
                ray.train.report(metrics, checkpoint=Checkpoint.from_directory(folder))
        else:
            ray.train.report(metrics)


def _break(config: dict[str, Any], report: int) -> None:
    """Do what `config["breaks"]` says, on the rank and before the report that it names; with a file `once`, once."""
    for each in config.get("breaks", ()):
        if report != each["at"] or ray.train.get_context().get_world_rank() != each["rank"]:
            continue
        if each["once"]:
            if Path(each["once"]).exists():
                continue
            Path(each["once"]).touch()
        if each["how"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif each["how"] == "exit":
            sys.exit(0)
        else:
            time.sleep(3600)


def reports_on_one_rank(config: dict[str, Any]) -> None:
    """Rank 0 reports alone, which Ray Train waits for ever for."""
    if ray.train.get_context().get_world_rank() == 0:
        ray.train.report({"eval_acc": 0.5})
    else:
        time.sleep(3600)


def sums_and_leaves_a_process(config: dict[str, Any]) -> None:
    """Reports the sum of a Ray data set once an epoch, and leaves a process behind that would run for an hour."""
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)", LEFT])
    total = sum(row["id"] for row in ray.train.get_dataset_shard("train").iter_rows())
    for _ in range(config["epochs"]):
        ray.train.report({"eval_acc": float(total)})


def numbers() -> Any:
    """A Ray data set of 0 to 99."""
    import ray.data

    return ray.data.range(100)
