"""Stage 8, analysis: what to choose – fastest, cheapest, the knee between them (METHODS §6)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from experiments.analysis.cells import Cell, cell_row, gather
from experiments.analysis.metric import ACCURACY, StudyMetric
from experiments.analysis.parts import Part, missing, present
from experiments.analysis.targets import ENOUGH_SEEDS, target_row
from experiments.analysis.trial_measures import Trial
from experiments.plan import Plan

Option = Mapping[str, Any]
"""A row of `targets.target_row` whose seconds are known."""


NO_KNEE = "a knee needs three cells on the Pareto front, one of them below the line from fastest to cheapest"


def pareto(options: Sequence[Option]) -> list[Option]:
    """Options that no other beats in both seconds and GPU-seconds, fastest first.

    Of equals in both the first stays.
    """
    front: list[Option] = []
    for option in sorted(options, key=lambda option: (option["seconds"], option["gpu_seconds"])):
        if not front or option["gpu_seconds"] < front[-1]["gpu_seconds"]:
            front.append(option)
    return front


def knee(front: Sequence[Option]) -> Option | None:
    """The Pareto point farthest below the line from fastest to cheapest, on log axes; None where none lies below.

    front: as from `pareto`, fastest first, so that seconds rise and GPU-seconds fall.
    """
    if len(front) < 3:
        return None
    points = [(math.log(option["seconds"]), math.log(option["gpu_seconds"])) for option in front]
    (left, top), (right, bottom) = points[0], points[-1]
    below = [top + (bottom - top) * (x - left) / (right - left) - y for x, y in points]
    deepest = max(range(len(front)), key=lambda index: below[index])
    return front[deepest] if below[deepest] > 1e-12 else None


def recommend(
    plan: Plan,
    trials: Sequence[Trial],
    *,
    metric: StudyMetric = ACCURACY,
    targets: Sequence[float] = (),
    accuracy: float | None = None,
    max_gpus: int | None = None,
    price: float | None = None,
    by: Literal["time", "cost"] = "time",
) -> Part:
    """What to choose, from a study's trials.

    metric: what the study compares by. targets: the spec's; the hardest that some cell reaches is used, unless
    `accuracy` names one, of whatever metric. max_gpus: leave out cells with more workers. price: per GPU-hour. by:
    whether `choice` is the fastest or the cheapest.

    The result has metric, target, choice, fastest, cheapest, knee, best_accuracy (each `{label, params, num_gpus,
    batch_size, learning_rate, seconds, gpu_seconds, cost, interval, n_seeds, test_accuracy, flags, …}`, or null with a
    why), pareto (labels) and provisional. For another metric than accuracy its name stands in best_accuracy and
    test_accuracy.
    """
    cells = [cell for cell in gather(plan, trials, metric) if max_gpus is None or cell.num_gpus <= max_gpus]
    wanted = (accuracy,) if accuracy is not None else tuple(targets)
    rows = {target: [target_row(cell, target, price) for cell in cells] for target in wanted}
    return choose(cells, [cell_row(cell) for cell in cells], rows, metric, by=by)


def choose(
    cells: Sequence[Cell],
    cell_rows: Sequence[Mapping[str, Any]],
    rows: Mapping[float, Sequence[Option]],
    metric: StudyMetric,
    *,
    by: Literal["time", "cost"] = "time",
) -> Part:
    """`recommend` on figures that are there already. rows: target to its `target_row`s, in the cells' order."""
    by_label = {row["label"]: row for row in cell_rows}
    reached = {target: [row for row in options if row["seconds"] is not None] for target, options in rows.items()}
    hardest_first = metric.hardest_first(rows)
    target = next((target for target in hardest_first if reached[target]), None)
    front = pareto(reached[target]) if target is not None else []
    none = _why_none(cells, hardest_first, metric)
    fastest = _choice(front[0], by_label, metric) if front else missing(none)
    cheapest = _choice(front[-1], by_label, metric) if front else missing(none)
    bend = knee(front)
    best = _best_cell(cell_rows, metric)
    used = [part for part in (fastest, cheapest, best) if present(part)]
    return {
        "metric": metric.to_dict(),
        "target": target,
        "missed_targets": [missed for missed in hardest_first[::-1] if target is None or metric.better(missed, target)],
        "choice": (fastest if by == "time" else cheapest) if front else best,
        "fastest": fastest,
        "cheapest": cheapest,
        "knee": _choice(bend, by_label, metric) if bend else missing(NO_KNEE if front else none),
        metric.choice_key: best,
        "pareto": [option["label"] for option in front],
        "provisional": any(part["n_seeds"] < ENOUGH_SEEDS for part in used) or not used,
    }


def _why_none(cells: Sequence[Cell], hardest_first: Sequence[float], metric: StudyMetric) -> str:
    if not any(cell.counted for cell in cells):
        return "no trial ended in a way that can be compared"
    if not hardest_first:
        return f"the spec names no target {metric.name} (targets.accuracy)"
    return f"no cell reached a {metric.title} of {hardest_first[-1]:g}"


def _choice(option: Option, by_label: Mapping[str, Mapping[str, Any]], metric: StudyMetric) -> Part:
    row = by_label[option["label"]]
    return {
        "label": option["label"],
        "params": option["params"],
        **{key: option["params"][key] for key in ("num_gpus", "batch_size", "learning_rate")},
        **{key: option.get(key) for key in ("seconds", "gpu_seconds", "cost", "interval", "n_seeds", "reached")},
        metric.key: row[metric.key],
        "device": row["device"],
        "flags": row["flags"],
    }


def _best_cell(cell_rows: Sequence[Mapping[str, Any]], metric: StudyMetric) -> Part:
    """The cell of the best median after the last epoch; of equals the one with fewer GPU-seconds an epoch."""
    ranked = [row for row in cell_rows if present(row[metric.key])]
    if not ranked:
        return missing("no trial finished")

    def order(row: Mapping[str, Any]) -> tuple[float, float]:
        seconds = row["epoch_seconds"]["value"] or math.inf
        return metric.order(row[metric.key]["value"]), seconds * row["params"]["num_gpus"]

    best = min(ranked, key=order)
    return _choice({**best, "n_seeds": best[metric.key]["n"]}, {best["label"]: best}, metric)
