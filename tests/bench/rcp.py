"""`make bench BENCH=rcp`: the law of steps on convergence points that others published.

MLPerf's reference convergence points (Apache-2.0, in the package `mlperf-logging`) are epochs or examples to a target,
from 6 to 197 seeds at each of at least four batch sizes. A set is a benchmark in the round that has most sizes of it;
two that repeat another are left out. One inner size is held out at a time, and its mean is told from the others: the
interval of a new cell, with the held-out mean's own error. A second table holds out the one or two largest sizes.
Sets whose names come first in the alphabet are those that the form of the law was chosen on.

`make bench BENCH=rcp-judge`: the same points as runs that others made, a table a held-out size, through `judge`.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd

from scalestudy import judge
from scalestudy.experiments.analysis.laws import shrinkage
from scalestudy.experiments.analysis.laws.steps_to_target import steps_to_target
from scalestudy.experiments.report.analysed import AnalysedStudy
from scalestudy.experiments.study.folder import StudyFolder
from tests.bench.tables import Part, Rows
from tests.support.arrivals import arrived

Sizes = Mapping[int, Sequence[float]]
"""Epochs or examples to the target of each seed, by batch size."""
REPEATED = ("rgat", "ssd")
LEAST_SIZES, CHOSEN_ON = 4, 10
WIDEST, FURTHEST = 2.0, 4
EPOCH = 10**9  # examples, as a study counts the longest run of a table: a run has whole steps then
TAKEN = ("epochs to converge", "samples to converge")
HEADER = ["scatter beforehand", "sets", "held out", "in the 90 % interval", "mean over sets", "log width", "error"]


def convergence_points() -> dict[str, Sizes]:
    """The sets by name, in the alphabet's order."""
    found: dict[str, Sizes] = {}
    root = Path(str(files("mlperf_logging"))) / "rcp_checker"
    rounds = sorted(root.glob("training_*"), key=lambda folder: tuple(map(int, folder.name.split("_")[1].split("."))))
    for path in (path for folder in rounds for path in sorted(folder.glob("*.json"))):
        sets: dict[str, dict[int, Sequence[float]]] = {}
        for entry in json.loads(path.read_text("utf-8")).values():
            sets.setdefault(entry["Benchmark"], {})[entry["BS"]] = _taken(entry)
        for name, sizes in sets.items():
            if len(sizes) >= max(LEAST_SIZES, len(found.get(name, ()))):
                found[name] = sizes
    return {name: sizes for name, sizes in sorted(found.items()) if name not in REPEATED}


def _taken(entry: Mapping[str, Any]) -> Sequence[float]:
    return next([float(each) for each in value] for key, value in entry.items() if key.lower() in TAKEN)


def draws_of(sizes: Sizes, held_out: Sequence[int]) -> Mapping[int, np.ndarray]:
    """Draws of log steps at each held-out size, from the others."""
    batches = sorted(sizes)
    known = [size for size in batches if size not in held_out]
    places = np.repeat([batches.index(size) for size in known], [len(sizes[size]) for size in known])
    values = np.concatenate([np.log(np.array(sizes[size]) / size) for size in known])
    trained = np.array([(size, 1.0, 1.0) for size in batches])
    found = steps_to_target(trained, arrived(values, places), np.random.default_rng(0))
    return {size: found.draws[:, batches.index(size)] for size in held_out}


def told(sizes: Sizes, size: int, draws: np.ndarray) -> tuple[bool, float, float]:
    """Whether the interval holds the mean of a size, its log width, and the error of its middle."""
    logs = np.log(np.array(sizes[size]) / size)
    own = float(logs.std(ddof=1)) / math.sqrt(len(logs))
    wider = draws + own * np.random.default_rng(1).standard_normal(len(draws))
    low, high = np.quantile(wider, [0.05, 0.95])
    truth, ends = float(logs.mean()), np.quantile(draws, [0.05, 0.95])
    return bool(low <= truth <= high), float(ends[1] - ends[0]), abs(math.expm1(float(np.median(draws)) - truth))


def inner(sets: Mapping[str, Sizes]) -> list[list[tuple[bool, float, float]]]:
    """By set, each inner size held out alone."""
    return [
        [told(sizes, size, draws_of(sizes, [size])[size]) for size in sorted(sizes)[1:-1]] for sizes in sets.values()
    ]


def _row(name: str, group: str, found: list[list[tuple[bool, float, float]]]) -> list[str]:
    every = [each for part in found for each in part]
    return [
        name,
        group,
        str(len(every)),
        str(sum(held for held, _, _ in every)),
        f"{statistics.fmean(statistics.fmean(held for held, _, _ in part) for part in found):.0%}",
        f"{statistics.median(width for _, width, _ in every):.2f}",
        f"{statistics.median(error for _, _, error in every):.1%}",
    ]


def rows(folder: Path, *, small: bool = False) -> Rows:
    """A row for the sets that the form was chosen on, the others and all, for three scatters beforehand."""
    sets = convergence_points()
    names = list(sets)[:: 4 if small else 1]
    found: Rows = []
    for name, factor in (("as it is", 1.0), ("half", 0.5), ("double", 2.0)):
        with patch.object(shrinkage, "LIKELY_DEVIATION", factor * shrinkage.LIKELY_DEVIATION):
            parts = inner({each: sets[each] for each in names})
        first = sum(each in list(sets)[:CHOSEN_ON] for each in names)
        groups = {"chosen on": parts[:first], "others": parts[first:], "all": parts}
        found += [_row(name, group, part) for group, part in groups.items() if part]
    return found


def beyond(folder: Path, *, small: bool = False) -> Rows:
    """A row for one, and for two of the largest sizes held out."""
    sets = convergence_points()
    names = list(sets)[:: 4 if small else 1]
    return [[str(count), *_answered([_largest(sets[name], count) for name in names])] for count in (1, 2)]


def _largest(sizes: Sizes, count: int) -> tuple[bool, float, float] | None:
    """What is told of the largest size without the largest ones; None where it is refused."""
    batches = sorted(sizes)
    largest, known = batches[-1], batches[:-count]
    if largest > FURTHEST * known[-1]:
        return None
    draws = draws_of(sizes, batches[-count:])[largest]
    found = told(sizes, largest, draws)
    return found if found[1] <= math.log(WIDEST) else None


def judged(folder: Path, *, small: bool = False) -> Rows:
    """A row for all sets: each with an inner size held out is a table of runs, and its study tells that size."""
    sets = convergence_points()
    chosen = {name: sets[name] for name in list(sets)[:: 4 if small else 1]}
    parts = [
        [_judged(sizes, size, folder / f"{place}-{size}") for size in sorted(sizes)[1:-1]]
        for place, sizes in enumerate(chosen.values())
    ]
    return [_row("as it is", "all", parts)[2:]]


def _judged(sizes: Sizes, size: int, folder: Path) -> tuple[bool, float, float]:
    """What the study of all other sizes tells of a size, from a CSV with a row a run: its batch size and epochs."""
    most = max(max(taken) for taken in sizes.values())
    runs = pd.DataFrame(
        {"batch_size": batch, "seed": seed, "epochs": epochs / most, "quality": 1.0}
        for batch, taken in sizes.items()
        if batch != size
        for seed, epochs in enumerate(taken)
    )
    given = {"num_gpus": 1, "learning_rate": 1, "step_seconds": 1, "train_samples": EPOCH, "stop": "target"}
    columns = {"epoch": "epochs", "batch_size": "batch_size"}
    table = folder.with_suffix(".csv")
    runs.to_csv(table, index=False)
    study = judge(table, "quality=1", mode="max", columns=columns, given=given, out=folder)
    analysis = AnalysedStudy.of(StudyFolder(study.folder)).analysis
    [of] = analysis.posterior.combinations
    learnt = analysis.posterior.learnt(of, 1.0)
    assert learnt is not None
    steps = learnt.law(1).untried(size) - math.log(EPOCH / most)
    return told(sizes, size, steps)


def _answered(told_of: Sequence[tuple[bool, float, float] | None]) -> Iterator[str]:
    answered = [each for each in told_of if each is not None]
    yield f"{len(answered)} of {len(told_of)}"
    yield str(sum(held for held, _, _ in answered))
    yield f"{statistics.median(error for _, _, error in answered):.1%}"


PARTS = {
    "rcp": Part("Steps at a batch size that was held out, of MLPerf's convergence points", HEADER, rows),
    "rcp-beyond": Part(
        "Steps at the largest batch size, of MLPerf's convergence points",
        ["largest sizes held out", "answered", "in the 90 % interval", "error"],
        beyond,
    ),
    "rcp-judge": Part("The same, from a table of runs that `judge` read", HEADER[2:], judged),
}
