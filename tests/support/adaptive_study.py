"""A small adaptive study: four places, one batch size."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any

STUDY: dict[str, Any] = {
    "workload": {"model": "mlp", "data": "digits"},
    "train": {"epochs": 12},
    "sweep": {"num_gpus": [1, 2], "batch_size": [64], "learning_rate": [0.05, 0.1], "seed": [0]},
    "search": {"method": "adaptive"},
    "budget": {"trials": 4},
    "targets": {"accuracy": [0.85]},
}


def run_in(folder: Path, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Calls a function in a folder, where MLflow's store and the studies go."""
    with chdir(folder):
        return function(*arguments, **keywords)
