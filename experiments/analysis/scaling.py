"""Stage 8, analysis: speed-up and efficiency against one GPU – strong, weak, or neither (METHODS §5)."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.analysis.cells import Cell, key_of, step_seconds, worker_device
from experiments.analysis.parts import Part, missing, present, spread
from experiments.plan import label

STRONG, WEAK, NEITHER, BASE = "strong", "weak", "neither", "base"

Row = Mapping[str, Any]


def speedup(seconds: float, base_seconds: float) -> float:
    """S = X(N)/X(1), the ratio of throughputs; one data set, so the inverse ratio of seconds an epoch."""
    return base_seconds / seconds


def efficiency(speed_up: float, num_gpus: int) -> float:
    """S/N: the share of N workers' time that brings speed."""
    return speed_up / num_gpus


def scaling_kind(params: Mapping[str, Any], base: Mapping[str, Any]) -> str:
    """strong: all but num_gpus the same; weak: the batch a worker too; anything else is neither."""
    changed = {key for key in params if params[key] != base.get(key)} - {"num_gpus"}
    if not changed:
        return STRONG
    same_share = params["batch_size"] * base["num_gpus"] == base["batch_size"] * params["num_gpus"]
    return WEAK if changed == {"batch_size"} and same_share else NEITHER


def find_base(row: Row, rows: Sequence[Row]) -> Row | None:
    """The 1-GPU row that another is compared with: strong where there is one, else weak, else the nearest.

    Parameters other than num_gpus, batch_size and learning_rate must be the same: they change the work itself.
    """
    alike = key_of(row["params"], ("num_gpus", "batch_size", "learning_rate"))
    singles = [
        other
        for other in rows
        if other["params"]["num_gpus"] == 1
        and key_of(other["params"], ("num_gpus", "batch_size", "learning_rate")) == alike
    ]
    rank = {STRONG: 0, WEAK: 1, NEITHER: 2}
    distance = [
        (
            rank[scaling_kind(row["params"], other["params"])],
            abs(row["params"]["batch_size"] - other["params"]["batch_size"]),
        )
        for other in singles
    ]
    return singles[distance.index(min(distance))] if singles else None


def scaling_part(row: Row, rows: Sequence[Row]) -> dict[str, Any]:
    """speedup, efficiency, scaling (base, strong, weak, neither), base and changed of a row; null with a why."""
    if row["params"]["num_gpus"] == 1:
        nothing = None if present(row["epoch_seconds"]) else row["epoch_seconds"]["why"]
        value = None if nothing else 1.0
        return {"scaling": BASE, "base": row["label"], "speedup": value, "efficiency": value, "why": nothing}
    base = find_base(row, rows)
    if base is None:
        why = "no 1-GPU cell with the same other parameters"
        return {"scaling": None, "base": None, "speedup": None, "efficiency": None, "why": why}
    kind = scaling_kind(row["params"], base["params"])
    part = {"scaling": kind, "base": base["label"], "speedup": None, "efficiency": None, "why": None}
    for side in (row, base):
        if not present(side["epoch_seconds"]):
            return {**part, "why": f"{side['label']}: {side['epoch_seconds']['why']}"}
    gain = speedup(row["epoch_seconds"]["value"], base["epoch_seconds"]["value"])
    return {**part, "speedup": gain, "efficiency": efficiency(gain, row["params"]["num_gpus"])}


def timing_rows(cells: Sequence[Cell], epoch_seconds_by_label: Mapping[str, Part]) -> list[dict[str, Any]]:
    """Cells pooled over the learning rate, which does not change the time of a step: one row a (num_gpus, batch_size)
    and other swept key, with seconds an epoch, seconds a step by phase, speed-up and efficiency.
    """
    pools: dict[str, list[Cell]] = {}
    for cell in cells:
        pools.setdefault(key_of(cell.params, ("learning_rate",)), []).append(cell)
    rows = [_pooled(pool, epoch_seconds_by_label) for pool in pools.values()]
    return [{**row, **scaling_part(row, rows)} for row in rows]


def _pooled(pool: Sequence[Cell], epoch_seconds_by_label: Mapping[str, Part]) -> dict[str, Any]:
    params = {key: value for key, value in pool[0].params.items() if key != "learning_rate"}
    parts = [epoch_seconds_by_label[cell.label] for cell in pool]
    trials = [trial for cell in pool for trial in cell.timed]
    phases = step_seconds(trials)
    return {
        "label": label(params),
        "params": params,
        "cells": [cell.label for cell in pool],
        "epoch_seconds": spread((part["value"] for part in parts), "no trial of this size finished"),
        "step_seconds": phases,
        "per_worker_batch": params["batch_size"] / params["num_gpus"],
        "seconds_per_example": seconds_per_example(phases, params),
        "flags": sorted({flag for cell in pool for flag in cell.flags}),
        **worker_device(trials),
    }


def seconds_per_example(phases: Part, params: Mapping[str, Any]) -> Part:
    """Forward and backward seconds a step over the examples of one worker, m = B/K."""
    if not present(phases):
        return missing(phases["why"])
    return {"value": phases["forward_backward"] * params["num_gpus"] / params["batch_size"]}
