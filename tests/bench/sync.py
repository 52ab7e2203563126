"""`make bench BENCH=strategies`: milliseconds, speed-up, exposed synchronisation and bytes of every gradient strategy.

Every worker is a process with one thread on this machine; the global batch is the same at every world size. The
strategies of a model and world size run one after another, again and again, so that a disturbance meets all of them;
the table has medians.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scalestudy.training.config import TrainConfig
from scalestudy.training.distributed import Worker
from scalestudy.training.registry import GRADIENT_SYNCS
from tests.bench.tables import Part, Rows
from tests.support.gloo import GlooPool, gloo_pool

HEADER = ["model", "workers", "strategy", "ms a step", "speed-up", "exposed sync, ms a step", "MB sent a step"]
WORLD_SIZES = (2, 4)
ALONE = "–"  # one worker: nothing to synchronise
LOCAL_STEPS = 8


@dataclass(frozen=True)
class Load:
    """What is trained: two epochs, of which the second counts."""

    model: str
    batch: int  # global
    steps: int  # an epoch; a multiple of LOCAL_STEPS
    repeats: int


LOADS = (Load("lenet", batch=256, steps=16, repeats=3), Load("resnet18", batch=8, steps=8, repeats=2))


@dataclass(frozen=True)
class Cost:
    """Of one step."""

    seconds: float
    exposed_seconds: float
    bytes_sent: float  # by the rank that sends most

    def cells(self, alone: float) -> list[str]:
        """Of a row. alone: seconds of one worker."""
        times = [f"{1000 * self.seconds:.1f}", f"{alone / self.seconds:.2f}", f"{1000 * self.exposed_seconds:.1f}"]
        return [*times, f"{self.bytes_sent / 1e6:.3f}"]


def strategies(folder: Path, *, small: bool = False) -> Rows:
    """For each model a row for one worker, then one for every strategy at every world size."""
    rows: Rows = []
    with gloo_pool(max(WORLD_SIZES)) as pool:
        for load in [replace(LOADS[0], repeats=1)] if small else LOADS:
            costs = {size: measured(pool, load, size) for size in (1, *WORLD_SIZES)}
            alone = costs[1][ALONE].seconds
            for size, found in costs.items():
                rows += [[load.model, str(size), strategy, *cost.cells(alone)] for strategy, cost in found.items()]
    return rows


def measured(pool: GlooPool, load: Load, world_size: int) -> dict[str, Cost]:
    """The medians of every strategy, the strategies taking turns."""
    found: dict[str, list[Cost]] = defaultdict(list)
    for _ in range(load.repeats):
        for strategy in GRADIENT_SYNCS if world_size > 1 else [ALONE]:
            config = _config(load, "ddp" if strategy == ALONE else strategy)
            found[strategy].append(pool.run(world_size, train_and_measure, config)[0])
    return {
        strategy: Cost(
            statistics.median(cost.seconds for cost in costs),
            statistics.median(cost.exposed_seconds for cost in costs),
            costs[0].bytes_sent,
        )
        for strategy, costs in found.items()
    }


def train_and_measure(worker: Worker, config: TrainConfig) -> Cost:
    """The cost of a step in the last epoch, by the epoch's record, with the phases of every step timed."""
    from scalestudy.training.loop import measures
    from scalestudy.training.loop.train import train

    measures.SAMPLING_INTERVAL = 1  # a sample of 16 steps could miss both of local SGD's averages
    record = train(config, worker).records[-1]
    exposed = record.phases["gradient_sync"]
    return Cost(record.train_seconds / record.steps, exposed / record.steps, record.sync_bytes / record.steps)


def _config(load: Load, strategy: str) -> TrainConfig:
    only: dict[str, Any] = {"local_sgd": {"local_steps": LOCAL_STEPS}, "powersgd": {"powersgd_rank": 2}}
    return TrainConfig(
        model=load.model,
        data="synthetic",
        data_args={"train_samples": load.batch * load.steps, "test_samples": 8},
        batch_size=load.batch,
        learning_rate=0.01,
        epochs=2,
        gradient_sync=strategy,
        **only.get(strategy, {}),
    )


PARTS = {"strategies": Part("Gradient strategies", HEADER, strategies)}
