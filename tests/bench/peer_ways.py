"""The ways to run one study that `make bench-peers` compares: what each is started with, and reading what it leaves."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from tests.support.studies import REPOSITORY, command, environment

PROGRAMS = REPOSITORY / "tests" / "bench" / "peers"
NOTED_MODEL = "tests.bench.peers.workload:NotedLeNet"


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A grid and the epochs of each of its trials."""

    num_gpus: Sequence[int]
    batch_size: Sequence[int]
    learning_rate: Sequence[float]
    seed: Sequence[int] = (0,)
    epochs: int = 2

    def lists(self) -> dict[str, list[Any]]:
        """The lists, by name."""
        names = ("num_gpus", "batch_size", "learning_rate", "seed")
        return {name: list(getattr(self, name)) for name in names}

    def points(self) -> list[dict[str, Any]]:
        """Every trial's parameters."""
        lists = self.lists()
        return [dict(zip(lists, point, strict=True)) for point in itertools.product(*lists.values())]


@dataclass(frozen=True)
class Trained:
    """One trial in a way's own records."""

    params: dict[str, Any]
    epochs: list[dict[str, Any]]  # epoch, train_loss, test_accuracy, train_seconds, at; each once

    @property
    def ended(self) -> float:
        """When its last epoch was done."""
        return float(self.epochs[-1]["at"])


@dataclass(frozen=True)
class Way:
    """A way to run the study."""

    name: str
    files: tuple[str, ...]  # what its user writes
    settings: Callable[[Path, Sweep, bool], list[str]]  # writes them to a folder; what is to be run there
    records: Callable[[Path], list[Trained]]

    def written(self) -> list[Path]:
        """The files that its user writes."""
        return [PROGRAMS / name for name in self.files]

    @contextmanager
    def running(self, folder: Path, sweep: Sweep, *, noted: bool = False, **variables: str) -> Iterator[Running]:
        """The study as a command in a folder of its own; noted: with the model that notes its steps."""
        folder.mkdir(parents=True)
        arguments = self.settings(folder, sweep, noted)
        with (folder / "said").open("wb") as said:
            process = subprocess.Popen(
                arguments,
                cwd=folder,
                env=environment(RAY_USAGE_STATS_ENABLED="0", **variables),
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                yield Running(self, folder, sweep, process)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@dataclass(frozen=True)
class Running:
    """A study under way."""

    way: Way
    folder: Path
    sweep: Sweep
    process: subprocess.Popen[bytes]

    def trials(self) -> list[Trained]:
        """What has been recorded of trials that are whole."""
        return [trial for trial in self.way.records(self.folder) if len(trial.epochs) == self.sweep.epochs]

    def finish(self, seconds: float = 1800.0) -> list[Trained]:
        """Waits for the command's end; raises RuntimeError where it or a trial fails."""
        status, trials = self.process.wait(seconds), self.trials()
        if status or len(trials) != len(self.sweep.points()):
            said = (self.folder / "said").read_text("utf-8", errors="replace")
            raise RuntimeError(f"{self.way.name}: status {status}, {len(trials)} trials: {said[-5000:]}")
        return trials


def run(way: Way, folder: Path, sweep: Sweep) -> tuple[float, list[Trained]]:
    """The seconds of the whole command, and its trials."""
    began = time.time()
    with way.running(folder, sweep) as study:
        trials = study.finish()
    return time.time() - began, trials


# --- what each way is given ---------------------------------------------------------------------------------------


def our_spec(name: str, *options: str) -> Callable[[Path, Sweep, bool], list[str]]:
    """A spec of `tests.bench.peers`; noted: with the model that notes its steps."""

    def settings(folder: Path, sweep: Sweep, noted: bool) -> list[str]:
        spec = yaml.safe_load((PROGRAMS / name).read_text("utf-8"))
        spec["sweep"], spec["train"]["epochs"] = sweep.lists(), sweep.epochs
        if noted:
            spec["workload"]["model"] = NOTED_MODEL
        spec["tracking"] = {"uri": f"sqlite:///{folder}/mlflow.db"}
        (folder / "study.yaml").write_text(yaml.safe_dump(spec), encoding="utf-8")
        return command("run", "study.yaml", "--address", "local", "--out", "study", *options)

    return settings


def _program(name: str, *options: str) -> Callable[[Path, Sweep, bool], list[str]]:
    """A program of `tests.bench.peers`; what notes steps is set by its environment."""

    def settings(folder: Path, sweep: Sweep, noted: bool) -> list[str]:
        grid = {"epochs": sweep.epochs, "sweep": sweep.lists()}
        (folder / "grid.yaml").write_text(yaml.safe_dump(grid, sort_keys=False), encoding="utf-8")
        return [sys.executable, "-m", f"tests.bench.peers.{name}", "grid.yaml", *options]

    return settings


# --- what each way leaves -----------------------------------------------------------------------------------------


def our_records(folder: Path) -> list[Trained]:
    file = folder / "study" / "trials.jsonl"
    trials = [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []
    return [
        Trained(trial["params"], [{**epoch, "at": _seconds_of(epoch["at"])} for epoch in trial["epochs"]])
        for trial in trials
        if trial["status"] == "finished"
    ]


def _seconds_of(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _torchrun_records(folder: Path) -> list[Trained]:
    found = []
    for file in folder.glob("trials/*/epochs.json"):
        record = json.loads(file.read_text("utf-8"))
        found.append(Trained(record["config"], record["epochs"]))
    return found


def _tune_records(folder: Path) -> list[Trained]:
    found = []
    for file in folder.glob("study/*/result.json"):
        results = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
        epochs = {result["epoch"]: result for result in reversed(results)}  # the first record of an epoch counts
        if results:
            found.append(Trained(results[0]["config"], [epochs[key] for key in sorted(epochs)]))
    return found


SCALESTUDY = Way("scalestudy", ("study.yaml",), our_spec("study.yaml"), our_records)
_TORCHRUN = ("grid.yaml", "plain_loop.py", "torchrun_train.py", "torchrun_launch.py")
_RAY = ("grid.yaml", "plain_loop.py", "ray_training.py")
TORCHRUN = Way("torchrun loop", (*_TORCHRUN, "torchrun_loop.py"), _program("torchrun_loop"), _torchrun_records)
OPTUNA = Way("Optuna + subprocesses", (*_TORCHRUN, "optuna_study.py"), _program("optuna_study"), _torchrun_records)
RAY_AS_SHIPPED = Way("Ray as shipped", (*_RAY, "ray_as_shipped.py"), _program("ray_as_shipped"), _tune_records)
RAY_TUNED = Way("Ray tuned", (*_RAY, "ray_tuned.py"), _program("ray_tuned"), _tune_records)
WAYS = (SCALESTUDY, RAY_AS_SHIPPED, RAY_TUNED, TORCHRUN, OPTUNA)

_LOOP = ("loop.yaml", "plain_loop.py", "ray_training.py")
PACKED = ("--set", "resources.exclusive=false")
LOOP = Way("a loop of Ray Train's", _LOOP, our_spec("loop.yaml"), our_records)
LOOP_PACKED = Way("a loop, packed", _LOOP, our_spec("loop.yaml", *PACKED), our_records)
RAY_PACKED = Way("Ray tuned, packed", RAY_TUNED.files, _program("ray_tuned", str(os.cpu_count())), _tune_records)
LOOPS = {"one trial at a time": (LOOP, RAY_TUNED), "packed": (LOOP_PACKED, RAY_PACKED)}
"""The same loop by scalestudy and by the tuned program."""
