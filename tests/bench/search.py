"""`make bench`: ASHA against the full grid on the digits: does it find the same best cell, and for how much less work?

`python -m tests.bench.search [--small]` runs this part alone.
"""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.bench.engine import local_ray, study, trials_of
from tests.support.tables import Part, Rows, print_parts

EPOCHS = 9
RATES = [0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8]
BATCHES = [32, 128]
HEADER = ["way", "trials", "stopped early", "epochs", "worker-seconds", "of the grid's", "best cell", "its accuracy"]


def asha(folder: Path, *, small: bool = False) -> Rows:
    """A row for the full grid, one for ASHA over it. The order of the trials, and so the rungs, is that of the plan."""
    sweep = {
        "num_gpus": [2] if small else [1, 2],
        "batch_size": BATCHES[:1] if small else BATCHES,
        "learning_rate": RATES[::4] if small else RATES,
        "seed": [0] if small else [0, 1],
    }
    searches = {"full grid": {}, "ASHA": {"scheduler": "asha", "grace_epochs": 1, "reduction": 3}}
    with local_ray(4):
        found = {
            name: trials_of(study(folder, name.split()[0], train={"epochs": EPOCHS}, sweep=sweep, search=search))
            for name, search in searches.items()
        }
    whole = work(found["full grid"])
    return [[name, *_row(trials, whole)] for name, trials in found.items()]


def work(trials: list[dict[str, Any]]) -> float:
    """Worker-seconds of training."""
    return sum(trial["train_seconds"] * trial["params"]["num_gpus"] for trial in trials)


def _row(trials: list[dict[str, Any]], whole: float) -> list[str]:
    cell, accuracy = best_cell(trials)
    stopped = sum(trial["status"] == "stopped" for trial in trials)
    epochs = sum(len(trial["epochs"]) for trial in trials)
    spent = work(trials)
    numbers = [str(len(trials)), str(stopped), str(epochs), f"{spent:.0f}", f"{spent / whole:.2f}"]
    return [*numbers, cell, f"{accuracy:.4f}"]


def best_cell(trials: list[dict[str, Any]]) -> tuple[str, float]:
    """The cell with the best median over its seeds, of those that trained to the end."""
    found = defaultdict(list)
    for trial in trials:
        if trial["status"] == "finished":
            params = trial["params"]
            cell = f"workers={params['num_gpus']} batch={params['batch_size']} lr={params['learning_rate']:g}"
            found[cell].append(trial["epochs"][-1]["test_accuracy"])
    medians = {cell: statistics.median(values) for cell, values in found.items()}
    cell = max(medians, key=lambda name: medians[name])
    return cell, medians[cell]


PARTS = {"asha": Part("ASHA against the full grid, the digits", HEADER, asha)}

if __name__ == "__main__":
    print_parts(PARTS, sys.argv[1:])
