"""`make bench BENCH=decision`: is what an adaptive study recommends as good as the best cell of a brute-force grid?

A perceptron of one hidden layer on 20,000 images of Fashion-MNIST, with one worker and with two:

1. The grid: every cell with three seeds, each training stopped at the target. Its best cell has the least median time.
2. Three adaptive studies of the same space, with seeds of their own and a tenth of the grid's worker-seconds as their
   budget. Each of the four recommends a cell.
3. These cells once more, on 15 seeds that no study had. Each seed is a study of its own, in which the cells take
   turns in workers that were started anew: whatever the machine does meanwhile meets all of them.

Goals: a recommended cell takes at most 1.10 times as long as the grid's best; and its time on the fresh seeds is in the
interval that was told. The budget covers an adaptive study's timings, confirmation and failures too; the question is
how good its choice is then. In all studies a training has the machine to itself: two at a time would take fewer
minutes, and more worker-seconds.

On two cores it takes some 65 minutes (SCALESTUDY_DATA names the folder with Fashion-MNIST). Whatever ends it, the same
command goes on where it was. The studies stay in `runs/decision`, or in the folder `decision` of the one that
SCALESTUDY_BENCH names, and `scalestudy status` shows how far they are; remove the folder to measure anew.
`--small` takes the digits and few cells, and removes its studies at the end: it proves that the parts work, no more.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from scalestudy import resume_study, run_study
from scalestudy.experiments.analysis.measures.intervals import order_rank, t_interval
from scalestudy.experiments.analysis.measures.parts import present
from scalestudy.experiments.plan.plan import cell_of
from scalestudy.experiments.plan.plan import label as label_of
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.orchestration.study.folders import read_spec, spec_of
from scalestudy.orchestration.tracking.entries import StudyJournal
from scalestudy.orchestration.tracking.recorder import History
from tests.bench.engine import local_ray
from tests.bench.tables import Part, Rows

FOLDER = "SCALESTUDY_BENCH"
"""The variable of the environment that names the folder for the studies, in place of `runs`."""
SPACE: dict[str, Any] = {
    "description": "One worker or two, which batch size and rate",
    "workload": {
        "model": "mlp",
        "data": "fashion_mnist",
        "data_args": {"train_samples": 20_000, "test_samples": 5_000},
        "model_args": {"hidden": [256], "init": "xavier"},
    },
    "train": {"epochs": 16},
    "sweep": {
        "num_gpus": [1, 2],
        "batch_size": [16, 32, 64, 128],
        "learning_rate": [0.025, 0.05, 0.1, 0.2],
        "seed": [0, 1, 2],
    },
    "resources": {"exclusive": True},
    "targets": {"accuracy": [0.855], "stop": True},
}
SMALL: dict[str, Any] = {
    **SPACE,
    "workload": {"model": "lenet", "data": "digits", "model_args": {"init": "xavier"}},
    "train": {"epochs": 6},
    "sweep": {"num_gpus": [1, 2], "batch_size": [32, 64], "learning_rate": [0.2, 0.1], "seed": [0]},
    "targets": {"accuracy": [0.8], "stop": True},
}
ADAPTIVE = {"adaptive-1": 200, "adaptive-2": 210, "adaptive-3": 220}
"""By name, the first seed of an adaptive study: the three share no training, and none with the grid."""
SHARE, LARGE_SHARE = 0.1, 3.0
"""The budget of an adaptive study, over what the grid's trainings took; of the small one it has to be larger."""
FRESH, FEW_FRESH = range(100, 115), range(100, 102)
HEADER = [
    "study",
    "recommended",
    "told, s (90 %)",
    "again, s (90 %)",
    "missed the target",
    "÷ the grid's best (90 %)",
    "evaluations before",
    "trainings",
    "worker-seconds",
    "of the grid's",
    "minutes",
]


def decision(_folder: Path, *, small: bool = False) -> Rows:
    """A row a way to study, one for the grid's best cell, and one for running the cells again."""
    root = Path(os.environ.get(FOLDER) or "runs").absolute() / ("decision-small" if small else "decision")
    space, seeds = (SMALL, FEW_FRESH) if small else (SPACE, FRESH)
    with local_ray(os.cpu_count() or 1):
        grid = kept(root, "grid", space)
        studies = {"grid": grid}
        hours = round((LARGE_SHARE if small else SHARE) * grid.worker_seconds / 3600, 6)
        for name, first in ADAPTIVE.items():
            sections = {
                "sweep": {**space["sweep"], "seed": [first]},
                "search": {"method": "adaptive"},
                "budget": {"worker_hours": hours},
            }
            studies[name] = kept(root, name, {**space, **sections})
        cells = {**{name: study.recommended for name, study in studies.items()}, "the grid's best": grid.best}
        again = [kept(root, f"again-{seed}", once_more(space, [*cells.values()], seed)) for seed in seeds]
    times = {name: [study.seconds(cell["label"]) for study in again] for name, cell in cells.items()}
    rows = [
        [
            name,
            cell["label"],
            told(cell),
            *compared(times[name], times["the grid's best"]),
            f"{statistics.median(study.evaluations_before(cell['label']) for study in again):g}",
            *(studies[name].costs(grid) if name in studies else ["–"] * 4),
        ]
        for name, cell in cells.items()
    ]
    if small:
        shutil.rmtree(root)
    minutes = math.fsum(study.minutes for study in again)
    return [*rows, ["run again", f"{len(again)} seeds", *["–"] * 8, f"{minutes:.1f}"]]


@dataclass(frozen=True)
class Kept:
    """A study that has been run to its end."""

    folder: StudyFolder

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Its figures."""
        found: dict[str, Any] = json.loads(self.folder.summary_file.read_text("utf-8"))
        return found

    @property
    def worker_seconds(self) -> float:
        """Of all that it ran."""
        return math.fsum(trial["train_seconds"] * trial["params"]["num_gpus"] for trial in self.folder.read_trials())

    @property
    def minutes(self) -> float:
        """Of all of its runs."""
        return float(self.summary["cost"]["wall_seconds"]) / 60

    @property
    def best(self) -> dict[str, Any]:
        """label, params and seconds of the cell of the least measured median. It has one if most seeds arrived."""
        rows = [row for row in self.summary["time_to_target"] if row["measured_seconds"] is not None]
        if not rows:
            raise RuntimeError(f"{self.folder.path}: no cell reached the target")
        best = min(rows, key=lambda row: row["measured_seconds"])
        return {**best, "seconds": best["measured_seconds"]}

    @property
    def recommended(self) -> dict[str, Any]:
        """label, params, seconds and interval of the cell that it recommends."""
        choice: dict[str, Any] = self.summary["recommendation"]["recommended"]
        if not present(choice):
            raise RuntimeError(f"{self.folder.path}: nothing is recommended: {choice['why']}")
        return choice

    def costs(self, grid: Kept) -> list[str]:
        """Its trainings, worker-seconds, their share of the grid's, and minutes."""
        share = self.worker_seconds / grid.worker_seconds
        trainings = sum(trial.get("kind") != "timing" for trial in self.folder.read_trials())
        return [str(trainings), f"{self.worker_seconds:.0f}", f"{share:.2f}", f"{self.minutes:.1f}"]

    def seconds(self, label: str) -> float:
        """What a cell of one seed took to the target; infinity if it missed."""
        [row] = [row for row in self.summary["time_to_target"] if row["label"] == label]
        return math.inf if row["measured_seconds"] is None else float(row["measured_seconds"])

    def evaluations_before(self, label: str) -> int:
        """Evaluations of a cell of one seed before the one that reached the target; all if it missed."""
        [trial] = [each for each in self.folder.read_trials() if label_of(cell_of(each["params"])) == label]
        return len(trial["epochs"]) - (2 if trial["status"] == "at_target" else 0)  # it stops at the one after that


def kept(root: Path, name: str, sections: Mapping[str, Any]) -> Kept:
    """Runs a study in a folder of its own, or goes on with it. Raises RuntimeError if it does not come to its end."""
    root.mkdir(parents=True, exist_ok=True)
    folder = StudyFolder(root / name)
    spec, store = root / f"{name}.yaml", {"uri": f"sqlite:///{root / name}.db"}
    spec.write_text(yaml.safe_dump({"name": f"decision-{name}", "tracking": store, **sections}), encoding="utf-8")
    if not folder.spec_file.exists():  # the last of the files that a study begins with
        shutil.rmtree(folder.path, ignore_errors=True)
        run_study(spec, out=folder.path)
    elif spec_of(folder) != read_spec(spec):
        raise RuntimeError(f"{folder.path}: holds a study of another spec; remove {root} to measure anew")
    elif not _finished(folder):
        resume_study(folder.path)
    if not _finished(folder):
        raise RuntimeError(f"{folder.path}: was cut off; the same command goes on with it")
    return Kept(folder)


def _finished(folder: StudyFolder) -> bool:
    return History.of(StudyJournal(folder).entries()).state == "finished"


def once_more(space: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], seed: int) -> dict[str, Any]:
    """The sections of a study of the rows' cells with one seed. Cells of one num_gpus change places with each seed."""
    cells = list({row["label"]: row["params"] for row in rows}.values())
    return {**space, "sweep": {"points": cells[:: -1 if seed % 2 else 1], "seed": [seed]}}


def told(cell: Mapping[str, Any]) -> str:
    """The time that a study tells for a cell, with its interval; the best cell of a grid was measured, and has none."""
    interval = cell.get("interval")
    text = f" ({interval_text(interval['low'], interval['high'])})" if interval else ""
    return f"{cell['seconds']:.2f}{text}"


def compared(times: Sequence[float], base: Sequence[float]) -> list[str]:
    """The median time with the interval of its order statistics, how many seeds missed, the ratio with its interval."""
    ordered, rank = sorted(times), order_rank(len(times))
    missed = sum(math.isinf(time) for time in times)
    value, low, high = ratio(times, base)
    return [
        f"{statistics.median(times):.2f} ({interval_text(ordered[rank - 1], ordered[-rank])})",
        f"{missed} of {len(times)}",
        f"{value:.2f} ({interval_text(low, high)})",
    ]


def interval_text(low: float, high: float) -> str:
    """Both ends, to two decimals."""
    return f"{low:.2f} to {high:.2f}"


def ratio(times: Sequence[float], base: Sequence[float]) -> tuple[float, float, float]:
    """times ÷ base and the ends of its 90 % interval, paired by seed.

    The geometric mean and the t interval of the logarithms; where one of a pair missed the target, the median and its
    order statistics, with the ratio infinite or 0. A pair in which both missed says nothing.
    """
    pairs = [pair for pair in zip(times, base, strict=True) if not all(map(math.isinf, pair))]
    ratios = sorted(time / other for time, other in pairs)
    if not ratios:
        return math.nan, math.nan, math.nan
    if all(0 < each < math.inf for each in ratios) and len(ratios) > 1:
        logarithms = np.log(ratios)
        low, high = t_interval(logarithms)
        return math.exp(logarithms.mean()), math.exp(low), math.exp(high)
    rank = order_rank(len(ratios))
    return statistics.median(ratios), ratios[rank - 1], ratios[-rank]


PARTS = {"decision": Part("What adaptive studies recommend, against the best cell of the grid", HEADER, decision)}
