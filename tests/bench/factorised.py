"""A factorised study against its full grid, LeNet on a part of Fashion-MNIST, without and with ASHA.

`python -m tests.bench.factorised [--small]`; SCALESTUDY_DATA names a folder with Fashion-MNIST. On two cores some 35
minutes. `--small` takes the digits and few cells: it proves that the parts work, and no more. Goals: with two sizes
factorising and ASHA together cost at most 0.35 of the grid's worker-seconds, held-out cells included (with three sizes
0.25), and what they recommend is at most 1.05 times as slow as the grid's best, both as measured in the grid.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from scalestudy import run_study
from scalestudy.experiments.analysis import recommend
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.orchestration.study.folders import spec_of
from scalestudy.orchestration.study.study import StudyResult
from tests.bench.engine import complete, local_ray, trials_of
from tests.support.tables import Part, Rows, print_parts

WAYS = {
    "full grid": ("fashion-grid", []),
    "factorised": ("fashion-factorised", ["targets.stop=false"]),
    "factorised, ASHA": ("fashion-factorised", ["targets.stop=false", "search.scheduler=asha"]),
}
"""All train to the last epoch, as grids do: what stopping at the target saves is no part of the comparison."""
SMALL = [
    "workload.data=digits",
    "workload.data_args={}",
    "train.epochs=4",
    "sweep.batch_size=[32, 64]",
    "sweep.learning_rate=[0.2, 0.1]",
    "sweep.seed=[0]",
    "targets.accuracy=[0.3, 0.5]",
]
HEADER = [
    "way",
    "trials",
    "stopped early",
    "worker-seconds",
    "of them held out",
    "and timing",
    "of the grid's",
    "saved by factorising",
    "by ASHA",
    "held-out error",
    "fastest to the target",
    "its time in the grid",
    "of the grid's best",
    "minutes",
]


def factorised(folder: Path, *, small: bool = False) -> Rows:
    """A row a way. The target is the hardest that all three reach."""
    with local_ray(os.cpu_count() or 1):
        studies = {way: _run(folder, way, *how, small=small) for way, how in WAYS.items()}
    grid, target = studies["full grid"], _common_target([*studies.values()])
    return [[way, *_row(done, grid, target)] for way, done in studies.items()]


def _run(folder: Path, way: str, name: str, overrides: list[str], *, small: bool) -> StudyResult:
    place = folder / way.replace(", ", "-").replace(" ", "-")
    store = f"tracking.uri=sqlite:///{place}.db"
    done = run_study(name, [*overrides, *(SMALL if small else []), store], out=place)
    if not complete(done):
        raise RuntimeError(f"{way}: {done.broken or done.summary}")
    return done


def _common_target(studies: list[StudyResult]) -> float | None:
    """The hardest target that each of the studies has a time for."""
    reached = [{row["target"] for row in _summary(done)["time_to_target"] if row["seconds"]} for done in studies]
    return max(set.intersection(*reached), default=None)


def _summary(done: StudyResult) -> dict[str, Any]:
    assert done.summary is not None  # `complete` says so
    return done.summary


def _row(done: StudyResult, grid: StudyResult, target: float | None) -> list[str]:
    trials, summary = trials_of(done), _summary(done)
    part = summary["factorised"] or {}
    train_on = StudyFolder(done.folder).read_plan().factorised
    trainings = [trial for trial in trials if trial["kind"] == "training"]
    held_out = [trial for trial in trainings if train_on and trial["params"]["num_gpus"] != train_on.train_on]
    timings = [trial for trial in trials if trial["kind"] == "timing"]
    spent = work(trials)
    return [
        str(len(trainings)),
        str(sum(trial["status"] == "stopped" for trial in trainings)),
        f"{spent:.0f}",
        f"{work(held_out):.0f}",
        f"{work(timings):.0f}",
        f"{spent / work(trials_of(grid)):.2f}",
        *(_share(part.get(key)) for key in ("saved_by_factorising", "saved_by_asha", "median_error")),
        *_choice(done, grid, target),
        f"{summary['cost']['wall_seconds'] / 60:.1f}",
    ]


def work(trials: list[dict[str, Any]]) -> float:
    """worker-seconds of training."""
    return sum(trial["train_seconds"] * trial["params"]["num_gpus"] for trial in trials)


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _choice(done: StudyResult, grid: StudyResult, target: float | None) -> list[str]:
    """The fastest cell by a study, the time that the grid has measured there, and that over the grid's best."""
    if target is None:
        return ["no target that all reach", "–", "–"]
    folder = StudyFolder(done.folder)
    fastest = recommend(spec_of(folder), folder.read_plan(), trials_of(done), accuracy=target)["fastest"]
    measured = {
        row["label"]: row["measured_seconds"] for row in _summary(grid)["time_to_target"] if row["target"] == target
    }
    best, seconds = min(each for each in measured.values() if each), measured.get(fastest["label"])
    name = f"{fastest['label']} ({target:g})"
    return [name, *((f"{seconds:.2f} s", f"{seconds / best:.2f}") if seconds else ("not reached", "–"))]


PARTS = {"factorised": Part("A factorised study against its full grid", HEADER, factorised)}

if __name__ == "__main__":
    print_parts(PARTS, sys.argv[1:])
