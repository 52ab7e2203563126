"""`make bench`: how much slower, or dearer, than the true best the cell is that the recommendation names.

`python -m tests.bench.choice [--small]`. Each draw is a study of 48 cells with five seeds, drawn from a known law of
steps and a known law of a step's time with 5 % noise, whose recommendation is judged by the truth.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

from scalestudy.experiments.analysis import recommend
from tests.support.batch_studies import BatchTruth
from tests.support.batch_summaries import study as batch_study
from tests.support.tables import Part, Rows, print_parts
from tests.support.trials import Law

DRAWS, FEW_DRAWS = 100, 2
TARGET = 0.8
POWERS = {"fastest": 0, "cheapest": 1}
"""Of num_gpus in what a choice is to have least of."""
HEADER = ["choice", "draws", "median over the best", "9 in 10 within", "worst"]


def regrets(draws: int) -> dict[str, list[float]]:
    """Over draws: the true time, or cost, of the cell that is chosen over that of the best of all cells, less 1."""
    law, truth = Law(samples=20_480, noise=0.05), BatchTruth()

    def cost(params: dict[str, Any], power: int) -> float:
        step = sum(law.phases(params["num_gpus"], params["batch_size"]).values())
        return float(truth.steps(params["batch_size"], params["learning_rate"]) * step * params["num_gpus"] ** power)

    found: dict[str, list[float]] = {choice: [] for choice in POWERS}
    for draw in range(draws):
        _, plan, trials = batch_study(
            truth,
            draw=draw,
            law=law,
            workers="[1, 2, 4]",
            seeds="[0, 1, 2, 3, 4]",
            batches="[64, 128, 256, 512]",
            epochs=20,
            rates="[0.1, 0.2, 0.4, 0.8]",
        )
        chosen = recommend(plan, trials, targets=(TARGET,))
        for choice, power in POWERS.items():
            best = min(cost(trial.cell, power) for trial in plan.trials)
            found[choice].append(cost(chosen[choice]["params"], power) / best - 1)
    return found


def choice(folder: Path, *, small: bool = False) -> Rows:
    """A row a choice."""
    draws = FEW_DRAWS if small else DRAWS
    return [
        [name, str(draws), *(f"{value:.1%}" for value in (statistics.median(all_), _ninth(all_), max(all_)))]
        for name, all_ in regrets(draws).items()
    ]


def _ninth(values: list[float]) -> float:
    return statistics.quantiles(values, n=10)[-1]


PARTS = {"choice": Part("The recommendation against the true best", HEADER, choice)}

if __name__ == "__main__":
    print_parts(PARTS, sys.argv[1:])
