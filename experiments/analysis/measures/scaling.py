"""Speed-up and efficiency against one GPU: strong scaling, weak scaling, or neither (docs/formulas.md §5)."""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalestudy.experiments.analysis.laws.estimate import LEVEL
from scalestudy.experiments.analysis.measures.cells import (
    Cell,
    epoch_seconds,
    examples_of,
    key_of,
    step_seconds,
    worker_device,
)
from scalestudy.experiments.analysis.measures.intervals import Scatter, scatter
from scalestudy.experiments.analysis.measures.parts import Figure, Row, median, missing, present, spread
from scalestudy.experiments.analysis.measures.trial import Trial
from scalestudy.experiments.analysis.measures.usable import (
    undisturbed_phase_seconds,
    undisturbed_step_seconds,
)
from scalestudy.experiments.plan.plan import label

STRONG, WEAK, NEITHER, BASE = "strong", "weak", "neither", "base"

WORK_KEPT = ("num_gpus", "batch_size", "learning_rate")
"""Parameters that may differ between two rows that are compared. The others change the work itself."""
NO_SPEEDUP = dict.fromkeys(("speedup", "efficiency", "retrograde"))


def speedup(seconds: float, base_seconds: float) -> float:
    """Return S = X(N)/X(1), the ratio of throughputs: over the same examples the inverse ratio of seconds."""
    return base_seconds / seconds


def efficiency(speed_up: float, num_gpus: int) -> float:
    """Return S/N: the share of N workers' time that brings speed."""
    return speed_up / num_gpus


def scaling_kind(params: Mapping[str, Any], base: Mapping[str, Any]) -> str:
    """Return strong if only num_gpus differs, weak if the batch a worker stays the same, else neither."""
    changed = {key for key in params if params[key] != base.get(key)} - {"num_gpus"}
    if not changed:
        return STRONG
    same_share = params["batch_size"] * base["num_gpus"] == base["batch_size"] * params["num_gpus"]
    return WEAK if changed == {"batch_size"} and same_share else NEITHER


class Bases:
    """The 1-GPU rows of a study, found by what they share with another row. Of equal rows the first counts."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._alike: dict[str, Row] = {}
        self._by_batch: dict[str, dict[int, Row]] = {}
        for row in rows:
            if row["params"]["num_gpus"] == 1:
                self._alike.setdefault(key_of(row["params"], ("num_gpus",)), row)
                batches = self._by_batch.setdefault(key_of(row["params"], WORK_KEPT), {})
                batches.setdefault(row["params"]["batch_size"], row)
        self._sizes = {key: sorted(batches) for key, batches in self._by_batch.items()}

    def find(self, row: Row) -> Row | None:
        """Find the row to compare another with, as `find_base` does."""
        params = row["params"]
        share, odd = divmod(params["batch_size"], params["num_gpus"])
        weak = [{**params, "batch_size": share}] if not odd else []
        for wanted in (params, *weak):
            if (base := self._alike.get(key_of(wanted, ("num_gpus",)))) is not None:
                return base
        # else the nearest batch size of the same work, of two the smaller
        alike = key_of(params, WORK_KEPT)
        sizes = self._sizes.get(alike, [])
        place = bisect_left(sizes, params["batch_size"])
        near = sizes[max(0, place - 1) : place + 1]
        return self._by_batch[alike][min(near, key=lambda size: abs(size - params["batch_size"]))] if near else None


def find_base(row: Row, rows: Bases | Sequence[Row]) -> Row | None:
    """Find the 1-GPU row that another is compared with: strong if there is one, else weak, else the nearest.

    Parameters other than num_gpus, batch_size and learning_rate must be equal, since they change the work itself.
    """
    return (rows if isinstance(rows, Bases) else Bases(rows)).find(row)


def scaling_part(row: Row, rows: Bases | Sequence[Row]) -> dict[str, Any]:
    """Return speedup, efficiency, retrograde, scaling (base, strong, weak, neither) and base of a row.

    They are null with a why if they can't be had. retrograde: whether the workers are slower than one.
    """
    if row["params"]["num_gpus"] == 1:
        nothing = None if present(row["epoch_seconds"]) else row["epoch_seconds"]["why"]
        value = None if nothing else 1.0
        return {
            **NO_SPEEDUP,
            "scaling": BASE,
            "base": row["label"],
            "speedup": value,
            "efficiency": value,
            "why": nothing,
        }
    base = find_base(row, rows)
    if base is None:
        return {
            **NO_SPEEDUP,
            "scaling": None,
            "base": None,
            "why": "no cell of one worker with the same other parameters",
        }
    kind = scaling_kind(row["params"], base["params"])
    part = {**NO_SPEEDUP, "scaling": kind, "base": base["label"], "why": None}
    for side in (row, base):
        if not present(side["epoch_seconds"]):
            return {**part, "why": f"{side['label']}: {side['epoch_seconds']['why']}"}
    gain = speedup(row["epoch_seconds"]["value"], base["epoch_seconds"]["value"])
    if row.get("examples") and base.get("examples"):  # of periods that are counted in steps a larger batch has more
        gain *= row["examples"] / base["examples"]
    return {**part, "speedup": gain, "efficiency": efficiency(gain, row["params"]["num_gpus"]), "retrograde": gain < 1}


class SpeedupIntervals:
    """Intervals of the speed-ups of timing rows, from the scatter of runs over all places."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._pooled = Scatter.pooled(row["scatter"]["seconds"] for row in rows)
        self._runs = {row["label"]: row["scatter"]["seconds"]["n"] for row in rows}

    def of(self, row: Row, level: float = LEVEL) -> tuple[float, float] | None:
        """Return the ends of a row's speed-up. None if no place was timed twice, or this row or its base in no run."""
        runs = self._runs[row["label"]], self._runs[row["base"]]
        if self._pooled is None or not all(runs):
            return None
        half = self._pooled.half(*runs, level=level)
        return row["speedup"] * math.exp(-half), row["speedup"] * math.exp(half)


def timing_rows(cells: Sequence[Cell], epoch_seconds_by_label: Mapping[str, Figure]) -> list[dict[str, Any]]:
    """Pool cells over the learning rate, which does not change the time of a step; of these keep those on fewest nodes.

    A row for each (num_gpus, batch_size) and other swept key has seconds an epoch, seconds a step by phase, speed-up
    and efficiency, steps and examples an epoch, whether its workers were on several nodes, and the `scatter` of its
    runs (`run_scatter`).
    """
    pools: dict[str, list[Cell]] = {}
    for cell in cells:
        pools.setdefault(key_of(cell.params, ("learning_rate",)), []).append(cell)
    rows = [_pooled(pool, epoch_seconds_by_label) for pool in pools.values()]
    bases = Bases(rows)
    return [{**row, **scaling_part(row, bases)} for row in rows]


def _pooled(pool: Sequence[Cell], epoch_seconds_by_label: Mapping[str, Figure]) -> dict[str, Any]:
    params = {key: value for key, value in pool[0].params.items() if key != "learning_rate"}
    nodes = min((cell.nodes for cell in pool if present(epoch_seconds_by_label[cell.label])), default=1)
    used = [cell for cell in pool if cell.nodes == nodes] or pool
    figures = [epoch_seconds_by_label[cell.label] for cell in used]
    trials = [trial for cell in used if not cell.lent for trial in cell.timed]
    timings = next((cell.timings for cell in used if cell.timings and cell.timed), ())
    phases = undisturbed_phase_seconds(timings) if timings else step_seconds(trials)
    return {
        "label": label(params),
        "params": params,
        "cells": [cell.label for cell in pool],
        "epoch_seconds": spread((figure["value"] for figure in figures), "no trial of this size finished"),
        "step_seconds": phases,
        "timed_apart": bool(timings),
        "per_worker_batch": params["batch_size"] / params["num_gpus"],
        "seconds_per_example": seconds_per_example(phases, params),
        "steps": steps_an_epoch(trials),
        "examples": examples_of(pool),
        "across_nodes": nodes > 1,
        "straggler_ratio": straggler_ratio(timings or trials),
        "scatter": run_scatter(timings or trials),
        "flags": sorted({flag for cell in pool for flag in cell.flags}),
        **worker_device(trials or timings),
    }


def seconds_per_example(phases: Figure, params: Mapping[str, Any]) -> Figure:
    """Return the forward and backward seconds a step over the examples of one worker, m = B/K."""
    if not present(phases):
        return missing(phases["why"])
    return {"value": phases["forward_backward"] * params["num_gpus"] / params["batch_size"]}


def steps_an_epoch(trials: Sequence[Trial]) -> int | None:
    """Return the steps of a whole epoch, or None if none was recorded."""
    return max((int(epoch.steps) for trial in trials for epoch in trial.timed if epoch.steps), default=None)


def straggler_ratio(trials: Sequence[Trial]) -> float | None:
    """Return the slowest worker's compute over the median one's, the epochs' median; None if not recorded."""
    return median(
        [epoch.straggler_ratio for trial in trials for epoch in trial.timed if epoch.straggler_ratio is not None]
    )


def run_scatter(runs: Sequence[Trial]) -> dict[str, Figure]:
    """Return how far the runs of a place scatter (`intervals.scatter`).

    In seconds (a step), forward_backward (its seconds), data and gradient_sync (shares of a step) and straggler_ratio.
    """
    measured = [undisturbed_phase_seconds([run]) if run.is_timing else step_seconds([run]) for run in runs]
    phases = [each for each in measured if present(each)]
    shares = {
        name: scatter(each[name] / sum(each.values()) for each in phases if any(each.values()))
        for name in ("data", "gradient_sync")
    }
    timed = [run for run in runs if run.is_timing]
    return {
        "seconds": scatter(undisturbed_step_seconds(timed) if timed else map(epoch_seconds, runs)),
        "forward_backward": scatter(each["forward_backward"] for each in phases),
        **shares,
        "straggler_ratio": scatter(straggler_ratio([run]) for run in runs),
    }


@dataclass(frozen=True, kw_only=True)
class ScalingAnswer:
    """Whether more workers were faster than one at the same batch. It reads `topic: text`."""

    num_gpus: int
    best: Row  # the fastest timing row of the smallest num_gpus above 1
    worst: Row  # the slowest one
    most: Row | None  # the row of the largest speed-up, if it has more workers than these
    topic: str
    text: str

    @property
    def rows(self) -> list[Row]:
        """The timing rows that the answer names."""
        return [self.best, self.worst, *([self.most] if self.most is not None else [])]

    def to_dict(self) -> dict[str, Any]:
        """Return the `scaling` of `summary.json`."""
        figures = ("label", "speedup", "efficiency")
        return {
            "num_gpus": self.num_gpus,
            "best": {key: self.best[key] for key in figures},
            "worst": {key: self.worst[key] for key in figures},
            "words": f"{self.topic}: {self.text}",
        }


def scaling_answer(rows: Sequence[Row]) -> ScalingAnswer | None:
    """Say whether more workers were faster than one at the same batch. None if the study has no such pair.

    rows: timing rows. Faster and slower are said only where the interval of the ratio (90 %, over all batch sizes at
    once, from the scatter of runs over all places) excludes 1.
    """
    strong = [row for row in rows if row["scaling"] == STRONG and row["speedup"] is not None]
    if not strong:
        return None
    workers = min(row["params"]["num_gpus"] for row in strong)
    pairs = sorted((row for row in strong if row["params"]["num_gpus"] == workers), key=lambda row: row["speedup"])
    worst, best = pairs[0], pairs[-1]
    intervals, level = SpeedupIntervals(rows), 1 - (1 - LEVEL) / len(pairs)
    known = [ends for row in pairs if (ends := intervals.of(row, level)) is not None]
    faster, slower = sum(low > 1 for low, _ in known), sum(high < 1 for _, high in known)
    if faster and slower:
        verdict = "not always faster than one at the same batch"
    elif faster or slower:
        verdict = f"{'faster' if faster else 'slower'} than one at the same batch"
        verdict += ", but within noise at some batch sizes" if faster + slower < len(pairs) else ""
    else:
        verdict = "about as fast as one at the same batch, within noise"
    by_batch = best["params"]["batch_size"] != worst["params"]["batch_size"] or len(pairs) == 1

    def gain(row: Row) -> str:
        place = f"batch {row['params']['batch_size']}" if by_batch else row["label"]
        ends = intervals.of(row, level)
        between = f" ({ends[0]:.2f} to {ends[1]:.2f})" if ends is not None else ""
        return f"{row['speedup']:.2f}×{between} at {place}"

    text = f"{gain(best)}, efficiency {best['efficiency']:.2f}"
    text += f"; {gain(worst)}." if len(pairs) > 1 else "."
    text += " Each was timed once: a second run would tell more." if not known else ""
    most = max(strong, key=lambda row: float(row["speedup"]))
    further = most["params"]["num_gpus"] > workers
    if further:
        text += f" The most was {most['speedup']:.2f}× with {most['params']['num_gpus']} ({most['label']})."
    count = {2: "Two", 3: "Three", 4: "Four", 8: "Eight"}.get(workers, str(workers))
    return ScalingAnswer(
        num_gpus=workers,
        best=best,
        worst=worst,
        most=most if further else None,
        topic=f"{count} workers were {verdict}",
        text=text,
    )
