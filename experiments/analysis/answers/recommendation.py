"""What to choose: the fastest cell, the cheapest and the knee between them, with caveats."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from scalestudy.experiments.analysis.measures.cells import Cell, cell_row, gather, key_of
from scalestudy.experiments.analysis.measures.intervals import (
    ENOUGH_SEEDS,
    SHOWN_TIES,
    Contender,
    indistinguishable,
    over_seeds,
    scaled,
    tie_sentence,
)
from scalestudy.experiments.analysis.measures.metric import ACCURACY, StudyMetric
from scalestudy.experiments.analysis.measures.parts import Figure, missing, present
from scalestudy.experiments.analysis.measures.records import Trial, final_value
from scalestudy.experiments.analysis.measures.scaling import STRONG, timing_rows
from scalestudy.experiments.analysis.measures.targets import target_row
from scalestudy.experiments.analysis.measures.trainings import TUNED
from scalestudy.experiments.analysis.measures.units import plural
from scalestudy.experiments.plan.plan import Plan, cell_of
from scalestudy.experiments.plan.plan import label as label_of

Edge = Literal["lowest", "highest", "only"]
Option = Mapping[str, Any]
"""A row of `targets.target_row` whose seconds are known."""
NO_KNEE = "a knee needs three cells on the Pareto front, one of them below the line from fastest to cheapest"


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
) -> Figure:
    """What to choose, from a study's trials.

    Args:
        metric: what the study compares by.
        targets: the spec's. The hardest that some cell reaches is used, unless `accuracy` names one.
        accuracy: a target, of whatever metric.
        max_gpus: cells with more workers are left out.
        price: of a GPU-hour.
        by: whether `choice` is the fastest or the cheapest.

    Returns:
        metric, target, choice, fastest, cheapest, knee, best_accuracy, pareto (labels) and provisional. A choice is
        `{label, params, num_gpus, batch_size, learning_rate, seconds, gpu_seconds, cost, interval, n_seeds,
        test_accuracy, flags, evidence, ties, caveats, strong_speedup, …}`, or null with a why. Another metric's name
        replaces accuracy in best_accuracy and test_accuracy. evidence: `{cells (labels), seeds, kind}`. ties: labels of
        the cells that it can't be told apart from, `tie_count` in all. caveats: sentences. strong_speedup: of its
        workers over one at the same batch; null if that was not timed.
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
) -> Figure:
    """`recommend` for figures that were made before. rows: target to its `target_row`s, in the cells' order."""
    reached = {target: [row for row in options if row["seconds"] is not None] for target, options in rows.items()}
    hardest_first = metric.hardest_first(rows)
    target = next((target for target in hardest_first if reached[target]), None)
    options = reached[target] if target is not None else []
    front = pareto(options)
    none = "no trial ended in a way that can be compared"
    if any(cell.counted for cell in cells):
        none = f"the spec names no target {metric.name} (targets.accuracy)"
        if hardest_first:
            none = f"no cell reached a {metric.title} of {hardest_first[-1]:g}"
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


class _Choosing:
    """Turns options into rows of the recommendation, with their evidence, ties and caveats."""

    def __init__(self, cells: Sequence[Cell], cell_rows: Sequence[Mapping[str, Any]], metric: StudyMetric) -> None:
        self._cells = {cell.label: cell for cell in cells}
        self._rows = {row["label"]: row for row in cell_rows}
        self._metric = metric
        self._rate_edges, self._batch_edges = rate_edges(cells), batch_edges(cells)
        timings = timing_rows(cells, {row["label"]: row["epoch_seconds"] for row in cell_rows})
        self._timings = {label: row for row in timings for label in row["cells"]}

    def choice(self, option: Option, options: Sequence[Option], figures: Sequence[str]) -> Figure:
        """One of the options, chosen by these figures (seconds, gpu_seconds)."""
        contenders = {}
        for each in options:
            factors = {"seconds": 1.0, "gpu_seconds": float(each["params"]["num_gpus"])}
            contenders[each["label"]] = Contender(
                label=each["label"],
                figures=tuple(each[figure] for figure in figures),
                intervals=tuple(scaled(each["interval"], factors[figure]) for figure in figures),
                n_seeds=each["n_seeds"],
            )
        return self._row(option, indistinguishable(contenders[option["label"]], list(contenders.values())))

    def best(self) -> Figure:
        """The cell of the best median after the last epoch. Of equal ones it takes fewest GPU-seconds an epoch."""
        ranked = [row for row in self._rows.values() if present(row[self._metric.key])]
        if not ranked:
            return missing("no trial finished")

        def order(row: Mapping[str, Any]) -> tuple[float, float]:
            seconds = row["epoch_seconds"]["value"] or math.inf
            return self._metric.order(row[self._metric.key]["value"]), seconds * row["params"]["num_gpus"]

        best = min(ranked, key=order)
        ties = indistinguishable(self._by_metric(best), [self._by_metric(row) for row in ranked])
        return self._row({**best, "n_seeds": best[self._metric.key]["n"]}, ties)

    def _by_metric(self, row: Mapping[str, Any]) -> Contender:
        values = [final_value(trial, self._metric) for trial in self._cells[row["label"]].timed]
        known = [value for value in values if value is not None]
        figure = self._metric.order(row[self._metric.key]["value"])
        interval = over_seeds(known, logarithms=False)
        return Contender(label=row["label"], figures=(figure,), intervals=(interval,), n_seeds=len(known))

    def _row(self, option: Option, ties: Sequence[str]) -> Figure:
        label, row, params = option["label"], self._rows[option["label"]], option["params"]
        known = ("seconds", "gpu_seconds", "cost", "interval", "n_seeds", "reached", "stopped", "upper_bound")
        cell, timing = self._cells[label], self._timings[label]
        trained = {"cells": [label], "kind": "measured"}
        if cell.inferred:
            names = dict.fromkeys(label_of(cell_of(trial["params"])) for trial in cell.trials)
            trained = {"cells": list(names), "kind": "factorised"}
        choice = {
            "label": label,
            "params": params,
            **{key: params[key] for key in ("num_gpus", "batch_size", "learning_rate")},
            **{key: option.get(key) for key in known},
            self._metric.key: row[self._metric.key],
            "device": row["device"],
            "flags": row["flags"],
            "stopped_after": row["stopped_after"],
            "evidence": {**trained, "seeds": option["n_seeds"]},
            "ties": list(ties[:SHOWN_TIES]),
            "tie_count": len(ties),
            "strong_speedup": timing["speedup"] if timing["scaling"] == STRONG else None,
        }
        caveats = caveats_of(choice, self._rate_edges.get(label), ties, self._batch_edges.get(label))
        return {**choice, "caveats": caveats}


def pareto(options: Sequence[Option]) -> list[Option]:
    """Options that no other beats in both seconds and GPU-seconds, fastest first. Of equal options the first stays."""
    front: list[Option] = []
    for option in sorted(options, key=lambda option: (option["seconds"], option["gpu_seconds"])):
        if not front or option["gpu_seconds"] < front[-1]["gpu_seconds"]:
            front.append(option)
    return front


def knee(front: Sequence[Option]) -> Option | None:
    """The Pareto point farthest below the line from fastest to cheapest, on log axes. None if no point lies below.

    front: from `pareto`, fastest first, so that seconds rise and GPU-seconds fall.
    """
    if len(front) < 3:
        return None
    points = [(math.log(option["seconds"]), math.log(option["gpu_seconds"])) for option in front]
    (left, top), (right, bottom) = points[0], points[-1]
    below = [top + (bottom - top) * (x - left) / (right - left) - y for x, y in points]
    deepest = max(range(len(front)), key=lambda index: below[index])
    return front[deepest] if below[deepest] > 1e-12 else None


def caveats_of(
    choice: Mapping[str, Any], edge: Edge | None, ties: Sequence[str], batch_edge: Edge | None = None
) -> list[str]:
    """The caveats of one row of the recommendation, the weightiest first.

    edge: of its learning rate. ties: labels of what it can't be told apart from. batch_edge: of its batch size, if the
    study asks for that; a single batch size is no choice.
    """
    caveats: list[str | None] = [_seed_caveat(choice["n_seeds"]), tie_sentence(ties)]
    gain, batch_size, flags = choice.get("strong_speedup"), choice["batch_size"], choice["flags"]
    if choice.get("seconds") is not None and gain is not None and gain < 1:
        caveats.append(
            f"At batch {batch_size} its {choice['num_gpus']} workers made steps at {gain:.2f}× the speed of one: "
            "what learns alike is sooner with one, and that it was not so here may be chance."
        )
    if choice["evidence"]["kind"] != "measured":
        trained = ", ".join(choice["evidence"]["cells"])
        caveats.append(
            f"Inferred: the epochs are those of {trained}, the seconds an epoch those of a timing run of its own."
        )
    reached, seeds = choice["reached"], choice["n_seeds"]
    if reached is not None and reached < seeds:
        caveats.append(f"{seeds - reached} of {seeds} seeds did not reach the target.")
    caveats.append(_stopped_caveat(choice))
    if edge is not None:
        beyond = {"lowest": "a lower one", "highest": "a higher one", "only": "another one"}[edge]
        rate = f"{choice['learning_rate']:g}"
        caveats.append(f"{rate} is the {edge} learning rate tried at batch {batch_size}: {beyond} may do better.")
    if batch_edge is not None and batch_edge != "only":
        which, beyond = {"lowest": ("smallest", "a smaller one"), "highest": ("largest", "a larger one")}[batch_edge]
        caveats.append(f"{batch_size} is the {which} batch size tried: {beyond} may do better.")
    if choice["upper_bound"]:
        caveats.append(
            "A seed met the target within its first epoch, whose end is counted: the time is an upper bound."
        )
    if flags:
        caveats.append(f"Its timings are marked {', '.join(flags)}.")
    return [caveat for caveat in caveats if caveat]


def _seed_caveat(seeds: int) -> str | None:
    if seeds >= ENOUGH_SEEDS:
        return None
    if seeds == 1:
        return "Provisional: with one seed it is not known how far its figures scatter, nor whether other cells differ."
    return f"Provisional: of {seeds} seeds the range is shown; no difference from other cells is established."


def _stopped_caveat(choice: Mapping[str, Any]) -> str | None:
    """For a time to a target: seeds that are left out. For a final metric: seeds that have not trained to the end."""
    left_out = choice.get("stopped")
    if left_out:
        were = "1 more seed was" if left_out == 1 else f"{left_out} more seeds were"
        return f"{were} stopped before the target and left out: those that were let go on may be the lucky ones."
    count = len(choice.get("stopped_after") or ()) if left_out is None else 0
    if not count:
        return None
    were = f"{plural(count, 'seed')} {'was' if count == 1 else 'were'}"
    return f"{were} stopped early, so that the last epoch is not that of a whole training."


def rate_edges(cells: Sequence[Cell]) -> dict[str, Edge]:
    """By label, the cells whose rate is the lowest, the highest or the only one tried, all but num_gpus being equal.

    A rate counts as tried if a training with it ended in a way that says something about it. Diverged ones do.
    """
    return _edges(cells, "learning_rate", "num_gpus")


def batch_edges(cells: Sequence[Cell]) -> dict[str, Edge]:
    """The same for batch sizes, each at rates of its own."""
    return _edges(cells, "batch_size", "learning_rate", "num_gpus")


def _edges(cells: Sequence[Cell], key: str, *besides: str) -> dict[str, Edge]:
    tried: dict[str, set[float]] = {}
    places = {cell.label: (key_of(cell.params, without=(key, *besides)), float(cell.params[key])) for cell in cells}
    for cell in cells:
        if cell.with_status(TUNED):
            place, value = places[cell.label]
            tried.setdefault(place, set()).add(value)
    edges: dict[str, Edge] = {}
    for label, (place, value) in places.items():
        others = tried.get(place, set())
        if others <= {value}:
            edges[label] = "only"
        elif value <= min(others):
            edges[label] = "lowest"
        elif value >= max(others):
            edges[label] = "highest"
    return edges
