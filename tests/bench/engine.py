"""`make bench BENCH="cold warm nothing packing"`: what the engine costs.

cold: a group's cold start, against stock. warm: a trial in a warm group, beyond its training. nothing: trials that do
nothing, through everything, and through Tune alone. packing: trials of several sizes on one machine.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import ray

from scalestudy import run_study
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.orchestration.base.environment import prepare_environment
from scalestudy.orchestration.cluster.connection import connect
from scalestudy.orchestration.cluster.nodes import Node
from scalestudy.orchestration.study.concurrency import Room
from scalestudy.orchestration.study.study import StudyResult
from scalestudy.orchestration.sweep.sweep import HEAD_SHARE
from tests.bench.bench_models import NOTHING
from tests.bench.schedules import Costs, Work, lower_bound, simulate
from tests.bench.tables import Part, Rows
from tests.support.groups import group_pool
from tests.support.studies import write_spec

SIZES = (1, 2)
MODELS = "tests.bench.bench_models"


@contextmanager
def local_ray(num_cpus: int) -> Iterator[None]:
    """A Ray of this part's own; workers find the tests' models wherever they run."""
    prepare_environment()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))  # noqa: PTH109
    cluster = connect("local", num_cpus=num_cpus)
    try:
        yield
    finally:
        cluster.disconnect()


def study(folder: Path, name: str, **sections: Any) -> StudyResult:
    """Runs a small study on the Ray that runs, with some sections replaced."""
    tracking = {"uri": f"sqlite:///{folder}/{name}.db"}
    spec = write_spec(folder, f"{name}.yaml", **{"tracking": tracking, "targets": {}, **sections})
    done = run_study(spec, out=folder / name, rehearsal=False)  # the engine alone is timed
    if not complete(done):
        raise RuntimeError(f"{name}: {done.broken or done.summary}")
    return done


def complete(done: StudyResult) -> bool:
    """Whether every trial was run to its end or its target, or was stopped by a scheduler."""
    counts = done.summary["trials"] if done.summary else {"planned": -1}
    ended = sum(counts.get(status, 0) for status in ("finished", "at_target", "stopped"))
    return not done.broken and ended == counts["planned"]


def trials_of(done: StudyResult) -> list[dict[str, Any]]:
    """The records of a study."""
    return StudyFolder(done.folder).read_trials()


def seconds_of(text: str) -> float:
    """A record's time stamp as seconds."""
    return datetime.fromisoformat(text).timestamp()


# --- starts -------------------------------------------------------------------------------------------------------


def cold_starts(folder: Path, *, small: bool = False) -> Rows:
    """A row a world size: ours, stock, ratio."""
    rows = []
    with local_ray(4):
        for size in SIZES:
            ours, stock = [], []
            for _ in range(1 if small else 3):
                stock.append(stock_cold_start(size, folder))
                ours.append(our_cold_start(size, folder))
            mine, theirs = statistics.median(ours), statistics.median(stock)
            rows.append([str(size), f"{mine:.1f}", f"{theirs:.1f}", f"{theirs / mine:.2f}"])
    return rows


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
    with group_pool(folder) as pool:
        pool.train(num_workers, epochs=1)
        return max(pool.host.cold_starts.values())


# --- trials in warm groups ----------------------------------------------------------------------------------------


def warm_trials(folder: Path, *, small: bool = False) -> Rows:
    """A row a world size: trials, training seconds, seconds beyond training and evaluation, wall between ends."""
    rows = []
    with local_ray(4):
        for size in SIZES:
            rates = [round(0.05 + 0.005 * index, 3) for index in range(4 if small else 20)]
            done = study(folder, f"warm-{size}", sweep={"num_gpus": [size], "batch_size": [64], "learning_rate": rates})
            rows.append([str(size), *_trial_costs(trials_of(done)[2:])])
    return rows


def _trial_costs(trials: list[dict[str, Any]]) -> list[str]:
    evaluated = [sum(epoch["eval_seconds"] for epoch in trial["epochs"]) for trial in trials]
    beyond = [t["wall_seconds"] - t["train_seconds"] - seconds for t, seconds in zip(trials, evaluated, strict=True)]
    trained = statistics.median(trial["train_seconds"] for trial in trials)
    return [str(len(trials)), f"{trained:.3f}", f"{statistics.median(beyond):.3f}", f"{_gap(trials) - trained:.3f}"]


def _gap(trials: list[dict[str, Any]]) -> float:
    """Median seconds from the end of a trial to the end of the next."""
    ends = sorted(seconds_of(trial["ended_at"]) for trial in trials)
    return statistics.median(later - earlier for earlier, later in itertools.pairwise(ends))


def nothing(folder: Path, *, small: bool = False) -> Rows:
    """A row a way and a concurrency: trials that do nothing, milliseconds each."""
    one_by_one, packed = (30, 16) if small else (1_000, 300)
    with local_ray(8):
        return [
            _do_nothing(folder, 1, one_by_one, 2),
            _tune_alone(folder, 1, one_by_one),
            _do_nothing(folder, 8, packed, 1),
            _tune_alone(folder, 8, packed),
        ]


def _do_nothing(folder: Path, concurrency: int, count: int, num_workers: int) -> list[str]:
    """Through everything: Tune, group, journal, records and MLflow."""
    began, used = time.perf_counter(), time.process_time()
    done = study(
        folder,
        f"nothing-{concurrency}",
        workload={"model": f"{MODELS}:one_number", "data": "synthetic", "data_args": NOTHING},
        train={"epochs": 1, "checkpoint_every": 0},
        sweep={"num_gpus": [num_workers], "batch_size": [2], "learning_rate": _rates(count), "seed": [0]},
        resources={"exclusive": concurrency == 1},
        limits={"trials_per_group": 2 * count},
    )
    wall, used = time.perf_counter() - began, time.process_time() - used
    trials = trials_of(done)
    trained = statistics.median(trial["train_seconds"] for trial in trials)
    ends = sorted(seconds_of(trial["ended_at"]) for trial in trials)
    cells = [(ends[-1] - ends[0]) / (count - 1), trained, used / count, wall / count]
    return [f"scalestudy, {num_workers} worker(s) a trial", str(concurrency), str(count), *map(_milliseconds, cells)]


def _rates(count: int) -> list[float]:
    return [round(0.0001 * (index + 1), 4) for index in range(count)]


def _tune_alone(folder: Path, concurrency: int, count: int) -> list[str]:
    """A Tune function that reports once and returns."""
    from ray import tune

    def trial(config: dict[str, Any]) -> None:
        tune.report({"ended": time.time()})

    began, used = time.perf_counter(), time.process_time()
    found = tune.Tuner(
        tune.with_resources(trial, HEAD_SHARE),
        param_space={"number": tune.grid_search(list(range(count)))},
        tune_config=tune.TuneConfig(max_concurrent_trials=concurrency, reuse_actors=True),
        run_config=tune.RunConfig(name=f"alone-{concurrency}", storage_path=str(folder), verbose=0),
    ).fit()
    wall, used = time.perf_counter() - began, time.process_time() - used
    ends = sorted(result.metrics["ended"] for result in found)
    cells = [_milliseconds((ends[-1] - ends[0]) / (count - 1)), "0", *map(_milliseconds, (used / count, wall / count))]
    return ["Tune alone, reuse_actors", str(concurrency), str(count), *cells]


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f}" if seconds < 0.01 else f"{1000 * seconds:.0f}"


# --- packing ------------------------------------------------------------------------------------------------------

PACKED = [(size, number) for size in (1, 2, 4) for number in range(4)]
STEPS = 20


def packing(folder: Path, *, small: bool = False) -> Rows:
    """One row: twelve sleeping trials on four logical CPUs."""
    seconds = 4.0 if small else 20.0
    with local_ray(4):
        done = study(
            folder,
            "packing",
            workload={
                "model": f"{MODELS}:Sleeps",
                "model_args": {"seconds": seconds / STEPS},
                "data": "synthetic",
                "data_args": {"train_samples": 8 * STEPS, "test_samples": 8, "image_size": 1},
            },
            train={"epochs": 1},
            sweep={"num_gpus": [1, 2, 4], "batch_size": [8], "learning_rate": [0.1, 0.2, 0.3, 0.4], "seed": [0]},
            resources={"exclusive": False},
        )
    return [_packing_row(trials_of(done), len(done.cold_starts), seconds)]


def _packing_row(trials: list[dict[str, Any]], groups: int, seconds: float) -> list[str]:
    works = [Work(trial_id=f"{size}-{number}", num_workers=size, duration=seconds) for size, number in PACKED]
    room = Room(nodes=(Node(node_id="here", slots=4),), exclusive=False)
    bound, simulated = lower_bound(works, room), simulate(works, room, Costs())
    begun = min(seconds_of(trial["started_at"]) for trial in trials)
    makespan = max(seconds_of(trial["ended_at"]) for trial in trials) - begun
    first = first_starts(trials)
    evictions = groups - 1  # the last size takes all of the room, so every other group had to go
    return [
        f"{makespan:.0f}",
        f"{first:.0f}",
        f"{bound:.0f}",
        f"{(makespan - first) / bound:.2f}",
        f"{simulated.makespan:.0f}",
        str(groups),
        str(evictions),
    ]


def first_starts(trials: list[dict[str, Any]]) -> float:
    """Seconds in which the first group of a size was being started and no trial trained."""
    trained = [
        (seconds_of(t["ended_at"]) - t["wall_seconds"] + t["startup_seconds"], seconds_of(t["ended_at"]))
        for t in trials
    ]
    first: dict[int, tuple[float, float]] = {}
    for trial in sorted(trials, key=lambda trial: seconds_of(trial["started_at"])):
        begun = seconds_of(trial["started_at"])
        first.setdefault(trial["params"]["num_gpus"], (begun, begun + trial["startup_seconds"]))
    return sum(uncovered(span, trained) for span in first.values())


def uncovered(span: tuple[float, float], others: list[tuple[float, float]]) -> float:
    """How much of a span no other one covers."""
    left, reached = 0.0, span[0]
    for begun, ended in sorted(others):
        left += max(0.0, min(begun, span[1]) - reached)
        reached = max(reached, ended)
    return left + max(0.0, span[1] - reached)


HEADERS = {
    "cold": ["workers", "our cold start, s", "stock TorchTrainer, s", "ratio"],
    "warm": ["workers", "trials", "training, s", "beyond training and evaluation, s", "end to end beyond training, s"],
    "nothing": ["way", "at a time", "trials", "ms a trial", "of it training", "driver's CPU ms", "ms, all in"],
    "packing": ["makespan, s", "first starts, s", "bound, s", "ratio without", "simulated, s", "groups", "evictions"],
}
PARTS = {
    "cold": Part("A group's cold start", HEADERS["cold"], cold_starts),
    "warm": Part("A trial in a warm group", HEADERS["warm"], warm_trials),
    "nothing": Part("Trials that do nothing", HEADERS["nothing"], nothing),
    "packing": Part("Packing: 12 sleeping trials on 4 logical CPUs", HEADERS["packing"], packing),
}
