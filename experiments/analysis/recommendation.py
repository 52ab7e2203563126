"""Stage 8, analysis: what to choose – fastest, cheapest, the knee between them (docs/formulas.md §6)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from experiments.analysis.cells import Cell, cell_row, gather
from experiments.analysis.choice_caveats import batch_edges, caveats_of, rate_edges
from experiments.analysis.intervals import over_seeds, scaled
from experiments.analysis.metric import ACCURACY, StudyMetric
from experiments.analysis.parts import Part, missing, present
from experiments.analysis.scaling import STRONG, timing_rows
from experiments.analysis.targets import ENOUGH_SEEDS, target_row
from experiments.analysis.ties import SHOWN_TIES, Contender, tied
from experiments.analysis.trial_measures import Trial, final_value
from experiments.plan import Plan, cell_of
from experiments.plan import label as label_of

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
    batch_size, learning_rate, seconds, gpu_seconds, cost, interval, n_seeds, test_accuracy, flags, evidence, ties,
    caveats, strong_speedup, …}`, or null with a why), pareto (labels) and provisional. For another metric than accuracy
    its name stands in best_accuracy and test_accuracy. evidence: `{cells (labels), seeds, kind}`. ties: labels of the
    cells that it can't be told apart from, `tie_count` in all. caveats: sentences. strong_speedup: of its workers over
    one at the same batch; null where that was not timed.
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
    reached = {target: [row for row in options if row["seconds"] is not None] for target, options in rows.items()}
    hardest_first = metric.hardest_first(rows)
    target = next((target for target in hardest_first if reached[target]), None)
    options = reached[target] if target is not None else []
    front = pareto(options)
    none = _why_none(cells, hardest_first, metric)
    choosing = _Choosing(cells, cell_rows, metric)
    fastest = choosing.choice(front[0], options, ("seconds",)) if front else missing(none)
    cheapest = choosing.choice(front[-1], options, ("gpu_seconds",)) if front else missing(none)
    bend = knee(front)
    middle = choosing.choice(bend, options, ("seconds", "gpu_seconds")) if bend else None
    best = choosing.best()
    used = [part for part in (fastest, cheapest, best) if present(part)]
    return {
        "metric": metric.to_dict(),
        "target": target,
        "missed_targets": [missed for missed in hardest_first[::-1] if target is None or metric.better(missed, target)],
        "choice": (fastest if by == "time" else cheapest) if front else best,
        "fastest": fastest,
        "cheapest": cheapest,
        "knee": middle or missing(NO_KNEE if front else none),
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


class _Choosing:
    """Turns options into rows of the recommendation, with their evidence, ties and caveats."""

    def __init__(self, cells: Sequence[Cell], cell_rows: Sequence[Mapping[str, Any]], metric: StudyMetric) -> None:
        self._cells = {cell.label: cell for cell in cells}
        self._rows = {row["label"]: row for row in cell_rows}
        self._metric = metric
        self._rate_edges, self._batch_edges = rate_edges(cells), batch_edges(cells)
        timings = timing_rows(cells, {row["label"]: row["epoch_seconds"] for row in cell_rows})
        self._timings = {label: row for row in timings for label in row["cells"]}

    def choice(self, option: Option, options: Sequence[Option], figures: Sequence[str]) -> Part:
        """One of the options, chosen for its figures of these names (seconds, gpu_seconds)."""
        contenders = {each["label"]: _contender(each, figures) for each in options}
        return self._row(option, tied(contenders[option["label"]], list(contenders.values())))

    def best(self) -> Part:
        """The cell of the best median after the last epoch; of equals the one with fewer GPU-seconds an epoch."""
        ranked = [row for row in self._rows.values() if present(row[self._metric.key])]
        if not ranked:
            return missing("no trial finished")

        def order(row: Mapping[str, Any]) -> tuple[float, float]:
            seconds = row["epoch_seconds"]["value"] or math.inf
            return self._metric.order(row[self._metric.key]["value"]), seconds * row["params"]["num_gpus"]

        best = min(ranked, key=order)
        ties = tied(self._by_metric(best), [self._by_metric(row) for row in ranked])
        return self._row({**best, "n_seeds": best[self._metric.key]["n"]}, ties)

    def _by_metric(self, row: Mapping[str, Any]) -> Contender:
        values = [final_value(trial, self._metric) for trial in self._cells[row["label"]].timed]
        known = [value for value in values if value is not None]
        figure = self._metric.order(row[self._metric.key]["value"])
        interval = over_seeds(known, logarithms=False)
        return Contender(label=row["label"], figures=(figure,), intervals=(interval,), n_seeds=len(known))

    def _trained(self, label: str) -> dict[str, Any]:
        """Whose trainings a cell's figures are from: its own, or those of the cells that it was inferred from."""
        cell = self._cells[label]
        if not cell.inferred:
            return {"cells": [label], "kind": "measured"}
        names = dict.fromkeys(label_of(cell_of(trial["params"])) for trial in cell.trials)
        return {"cells": list(names), "kind": "factorised"}

    def _strong_speedup(self, label: str) -> float | None:
        """Of several workers over one at the same batch, whatever the rate; None where that was not timed."""
        timing = self._timings[label]
        return timing["speedup"] if timing["scaling"] == STRONG else None

    def _row(self, option: Option, ties: Sequence[str]) -> Part:
        label, row, params = option["label"], self._rows[option["label"]], option["params"]
        known = ("seconds", "gpu_seconds", "cost", "interval", "n_seeds", "reached", "stopped", "upper_bound")
        choice = {
            "label": label,
            "params": params,
            **{key: params[key] for key in ("num_gpus", "batch_size", "learning_rate")},
            **{key: option.get(key) for key in known},
            self._metric.key: row[self._metric.key],
            "device": row["device"],
            "flags": row["flags"],
            "stopped_after": row["stopped_after"],
            "evidence": {**self._trained(label), "seeds": option["n_seeds"]},
            "ties": list(ties[:SHOWN_TIES]),
            "tie_count": len(ties),
            "strong_speedup": self._strong_speedup(label),
        }
        caveats = caveats_of(choice, self._rate_edges.get(label), ties, self._batch_edges.get(label))
        return {**choice, "caveats": caveats}


def _contender(option: Option, figures: Sequence[str]) -> Contender:
    of_figure = {"seconds": 1.0, "gpu_seconds": float(option["params"]["num_gpus"])}
    return Contender(
        label=option["label"],
        figures=tuple(option[figure] for figure in figures),
        intervals=tuple(scaled(option["interval"], of_figure[figure]) for figure in figures),
        n_seeds=option["n_seeds"],
    )
