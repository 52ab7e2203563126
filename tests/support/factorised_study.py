"""A small factorised study: two trainings with one worker, a held-out cell, timing runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any

from scalestudy.experiments.study.folder import StudyFolder

SWEEP: dict[str, Any] = {"num_gpus": [1, 2], "batch_size": [32], "learning_rate": [0.1, 0.2], "seed": [0]}
STUDY: dict[str, Any] = {
    "train": {"epochs": 3},
    "sweep": SWEEP,
    "search": {"method": "factorised", "held_out": 1},
    "targets": {"accuracy": [0.4]},
}


def run_in(folder: Path, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Calls a function in a folder, where MLflow's store and the studies go."""
    with chdir(folder):
        return function(*arguments, **keywords)


def parts_of(folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """Lines of trials.jsonl: trainings, held-out trials, timing runs."""
    trials = StudyFolder(folder).read_trials()
    trainings = [trial for trial in trials if trial["kind"] == "training"]
    held_out = [trial for trial in trainings if trial["params"]["num_gpus"] == 2]
    timings = [trial for trial in trials if trial["kind"] == "timing"]
    return [trial for trial in trainings if trial not in held_out], held_out, timings
