"""`make bench`: what the engine costs, beside stock Ray Train, in one run. Prints Markdown tables of medians.

1. A group's cold start: from `fit()` to the train function on every rank.
2. A trial in a warm group: seconds beyond its training and evaluation, through Tune, MLflow and all.
3. The training loop (`tests.bench_training`): against loops written by hand, and what measuring costs.
4. Every gradient strategy (`tests.bench_sync`).
"""

from __future__ import annotations

import itertools
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import ray

from experiments.study_folder import StudyFolder
from orchestration import run_study
from orchestration.cluster import Cluster, connect
from orchestration.environment import prepare_environment
from tests import bench_sync
from tests.bench_training import tables
from tests.support.groups import worker_groups
from tests.support.studies import write_spec

REPEATS = 3
SIZES = (1, 2)


def stock_cold_start(num_workers: int, folder: Path) -> float:
    """Seconds until the train function of a stock `TorchTrainer` runs on the last rank."""
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    marks = folder / f"marks-{time.time_ns()}"
    marks.mkdir()

    def train_function() -> None:
        rank = ray.train.get_context().get_world_rank()
        (marks / str(rank)).touch()

    trainer = TorchTrainer(
        train_function,
        scaling_config=ScalingConfig(num_workers=num_workers),
        run_config=RunConfig(name=marks.name, storage_path=str(folder)),
    )
    started = time.time()
    trainer.fit()
    return max(mark.stat().st_mtime for mark in marks.iterdir()) - started


def our_cold_start(num_workers: int, folder: Path) -> float:
    """The same for one of our groups, from its order to all of its ranks being ready for a trial."""
    with worker_groups(folder) as groups:
        groups.train(num_workers, epochs=1)
        return max(groups.host.cold_starts.values())


def cold_starts(folder: Path) -> list[list[str]]:
    """A row a world size: ours, stock, ratio."""
    rows = []
    for size in SIZES:
        ours, stock = [], []
        for _ in range(REPEATS):
            stock.append(stock_cold_start(size, folder))
            ours.append(our_cold_start(size, folder))
        mine, theirs = statistics.median(ours), statistics.median(stock)
        rows.append([str(size), f"{mine:.1f}", f"{theirs:.1f}", f"{theirs / mine:.2f}"])
    return rows


def warm_trials(folder: Path) -> list[list[str]]:
    """A row a world size: trials, training seconds, seconds beyond training and evaluation, wall between ends."""
    rows = []
    for size in SIZES:
        rates = [round(0.05 + 0.005 * index, 3) for index in range(20)]
        spec = write_spec(
            folder,
            f"warm-{size}.yaml",
            sweep={"num_gpus": [size], "batch_size": [64], "learning_rate": rates},
            tracking={"uri": f"sqlite:///{folder}/mlflow.db"},
        )
        done = run_study(spec, out=folder / f"warm-{size}")
        rows.append([str(size), *_trial_costs(StudyFolder(done.folder).read_trials()[2:])])
    return rows


def _trial_costs(trials: list[dict[str, Any]]) -> list[str]:
    evaluated = [sum(epoch["eval_seconds"] for epoch in trial["epochs"]) for trial in trials]
    beyond = [t["wall_seconds"] - t["train_seconds"] - seconds for t, seconds in zip(trials, evaluated, strict=True)]
    trained = statistics.median(trial["train_seconds"] for trial in trials)
    ends = [_seconds(trial["ended_at"]) for trial in trials]
    between = statistics.median(later - earlier for earlier, later in itertools.pairwise(ends))
    return [str(len(trials)), f"{trained:.3f}", f"{statistics.median(beyond):.3f}", f"{between - trained:.3f}"]


def _seconds(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    """Runs every measurement on a Ray of its own."""
    prepare_environment()
    cluster: Cluster = connect("local", num_cpus=4)
    with tempfile.TemporaryDirectory() as name:
        cold = cold_starts(Path(name))
        warm = warm_trials(Path(name))
    cluster.disconnect()
    print(f"\n{platform.processor() or platform.machine()}, {cluster.nodes[0].cpus:g} logical CPUs\n")
    print(table(["workers", "our cold start, s", "stock TorchTrainer, s", "ratio"], cold), end="\n\n")
    beyond = "beyond training and evaluation, s"
    print(table(["workers", "trials", "training, s", beyond, "end to end beyond training, s"], warm), end="\n\n")
    for title, header, rows in tables():
        print(f"### {title}\n\n{table(header, rows)}\n", flush=True)
    print(f"### Gradient strategies\n\n{table(bench_sync.HEADER, bench_sync.strategy_rows())}")


if __name__ == "__main__":
    main()
