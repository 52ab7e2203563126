"""What the page's script explores: every cell's figures and curves, and the recommendation at several targets.

All of it is plain data, columns over the cells in the study's order. A figure that is missing is null. The answers at
each target come from `Analysis.recommend`, so that the page never decides anything itself.
"""

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scalestudy.experiments.analysis.answers.analysis import Analysis
from scalestudy.experiments.analysis.answers.recommendation import ROLES
from scalestudy.experiments.analysis.measures.cells import Cell
from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.analysis.measures.parts import NO_INTERVAL, Figure, Summary, finite, present
from scalestudy.experiments.analysis.measures.units import metric_of, other_parameters, period_of, rates_of
from scalestudy.experiments.analysis.measures.usable import COUNTED, test_values
from scalestudy.experiments.analysis.text.answer import chosen_lines
from scalestudy.experiments.analysis.text.sentences import best_rows
from scalestudy.experiments.plan.plan import short_name, value_text
from scalestudy.experiments.report.charts import COLOURS, SHAPES
from scalestudy.experiments.report.curves import curves_of
from scalestudy.experiments.report.maps import MOST_COLUMNS, MOST_ROWS, map_axis
from scalestudy.experiments.study.mlflow_filters import cell_filter

MOST_TARGETS = 7
"""Each is a posterior of its own, so that the page and `recommend --accuracy` say the same."""
MOST_CURVES = 400
MOST_CURVE_PERIODS = 20_000
LOG_FROM = 30.0
"""From this ratio of two targets on, those between them are equal in ratio."""
SIZE_KEYS = ("num_gpus", "batch_size", "learning_rate")
MAP_AXES = (
    ("num_gpus", "workers", MOST_COLUMNS),
    ("batch_size", "batch size, all workers", MOST_ROWS),
    ("learning_rate", "learning rate", MOST_COLUMNS),
)
HEADINGS = {"num_gpus": "workers", "batch_size": "batch", "learning_rate": "rate"}


def slider_targets(metric: StudyMetric, targets: Sequence[float], cells: Sequence[Cell]) -> list[float]:
    """Return the targets that a reader may ask for, easiest first: the study's, and values up to the hardest of them.

    Half of the cells meet the easiest at their first evaluation: below it no cell is known to be sooner.
    """
    own = list(dict.fromkeys(targets))
    most = MOST_TARGETS - len(own)
    firsts = [values[0] for cell in cells for trial in cell.own if (values := test_values(trial, metric))]
    if not own or most < 1 or not firsts:
        return metric.easiest_first(own)
    low, high = statistics.median(firsts), metric.hardest_first(own)[0]
    if not metric.better(high, low):
        return metric.easiest_first(own)
    steps = [(number + 1) / (most + 1) for number in range(most)]
    geometric = min(low, high) > 0 and max(low, high) / min(low, high) >= LOG_FROM
    between = [low * (high / low) ** step if geometric else low + (high - low) * step for step in steps]
    digits = 2 - math.floor(math.log10(abs(high - low)))
    return metric.easiest_first(
        {*own, *(value for each in between if _within(value := round(each, digits), low, high))}
    )


def _within(value: float, low: float, high: float) -> bool:
    return min(low, high) < value < max(low, high)


def explorer_data(
    analysis: Analysis,
    summary: Summary,
    *,
    more_targets: bool = True,
    runs_page: str | None = None,
) -> dict[str, Any]:
    """Return the page's data: of the study, its cells, and the answer at each target.

    summary: of the analysis. more_targets: with targets between the spec's (`slider_targets`).
    runs_page: of the study's experiment in MLflow.

    period: as words name it. evaluation_timed: of runs that others made and of a Ray Train loop, whose times include
    it. keys: what differs between cells. cells: see `_cell_columns`. sizes: how cells of so many workers look. axes: of
    maps, see `map_axis`. targets: see `_answer`. answered: the place of the summary's. runs: that page of MLflow, and a
    filter for each cell; null without a page.
    """
    spec, metric, cells = analysis.spec, analysis.metric, analysis.cells
    targets = metric.easiest_first(dict.fromkeys(spec.targets.accuracy))
    if more_targets:
        targets = slider_targets(metric, spec.targets.accuracy, cells)
    place = {row["label"]: number for number, row in enumerate(summary["cells"])}
    answers = [_answer(analysis, target, place) for target in targets]
    study_id = summary["study"]["study_id"]
    answered = summary["recommendation"]["target"]
    axes = {
        key: map_axis(label, {row["params"][key] for row in summary["cells"]}, most) for key, label, most in MAP_AXES
    }
    filters = [None if cell.lent else cell_filter(cell.params, study_id) for cell in cells]
    return {
        "study_id": study_id,
        "metric": metric.to_dict(),
        "period": period_of(summary),
        **({"evaluation_timed": True} if spec.judged or spec.workload.loop else {}),
        "price": spec.targets.price_per_gpu_hour,
        "keys": [
            {"key": key, "name": HEADINGS.get(key, short_name(key))} for key in (*SIZE_KEYS, *other_parameters(summary))
        ],
        "cells": _cell_columns(cells, summary),
        "sizes": [
            {"workers": workers, "colour": COLOURS[number % len(COLOURS)], "shape": SHAPES[number % len(SHAPES)]}
            for number, workers in enumerate(axes["num_gpus"]["values"])
        ],
        "curves": _curves(cells, best_rows(summary, MOST_CURVES)),
        "axes": axes,
        "targets": answers,
        "runs": runs_page and {"page": runs_page, "filters": filters},
        "answered": targets.index(answered) if answered in targets else None,
    }


def _cell_columns(cells: Sequence[Cell], summary: Summary) -> dict[str, list[Any]]:
    """Return label, params (in the order of `keys`), seeds, metric, epoch_seconds, memory, flags, one entry a cell.

    seeds: (ended, planned). metric: (median, low, high) after the last epoch. epoch_seconds, samples_per_second, and
    tokens_per_second where the task counts tokens: medians. memory: bytes, the largest peak of a worker. lent:
    whether the cell was not trained itself.
    """
    metric, rows = metric_of(summary["study"]), summary["cells"]
    keys = [*SIZE_KEYS, *other_parameters(summary)]
    return {
        "label": [row["label"] for row in rows],
        "params": [[_setting(row["params"].get(key)) for key in keys] for row in rows],
        "seeds": [[len(cell.with_status(COUNTED)) if not cell.lent else 0, cell.planned] for cell in cells],
        "metric": [_ranged(row[metric.key]) for row in rows],
        "epoch_seconds": [brief(row["epoch_seconds"]["value"]) for row in rows],
        **{key: [brief(row[key]["value"]) if key in row else None for row in rows] for key in rates_of(summary)},
        "speedup": [brief(row["speedup"]) for row in rows],
        "memory": [peak_memory_bytes(cell) for cell in cells],
        "flags": [row["flags"] for row in rows],
        "lent": [cell.lent for cell in cells],
    }


def _setting(value: Any) -> Any:
    """Return a swept value as the page shows it: a mapping, such as a whole schedule, as its text in run names."""
    return value_text(value) if isinstance(value, Mapping) else value


def peak_memory_bytes(cell: Cell) -> float | None:
    """Return the largest peak of a worker's memory in the cell's trainings. None if none was measured."""
    epochs = [epoch for trial in cell.own for epoch in trial.epochs]
    return max((epoch.peak_memory_bytes for epoch in epochs if epoch.peak_memory_bytes), default=None)


def _ranged(part: Figure) -> list[float | None] | None:
    return [brief(part[key]) for key in ("value", "low", "high")] if present(part) else None


def _curves(cells: Sequence[Cell], places: Iterable[int]) -> list[dict[str, Any]]:
    """Return the columns of some cells (`curves_of`), each with its cell's place."""
    left, found = MOST_CURVE_PERIODS, []
    for place in places:
        columns = curves_of(cells[place])
        left -= len(columns["epochs"])
        if left < 0:
            break
        if columns["epochs"]:
            found.append({"cell": place, **{key: list(map(brief, column)) for key, column in columns.items()}})
    return found


def _answer(analysis: Analysis, target: float, place: Mapping[str, int]) -> dict[str, Any]:
    """Return the choice at one target.

    seconds, low, high, reached, met_last, seeds: one entry a cell, of its time to the target. roles: place of the
    recommended, fastest and cheapest cell. front: places of the Pareto front. words: the answer's lines.
    """
    times, found = analysis.times(target), {**analysis.recommendation, "missed_targets": []}
    if found["target"] != target:
        found = analysis.recommend(accuracy=target)
    intervals = [row["interval"] or NO_INTERVAL for row in times.rows]
    return {
        "target": target,
        "seconds": [brief(row["seconds"]) for row in times.rows],
        "low": [brief(interval["low"]) for interval in intervals],
        "high": [brief(interval["high"]) for interval in intervals],
        "reached": [row["reached"] for row in times.rows],
        "met_last": [row["met_last"] for row in times.rows],
        "seeds": [row["n_seeds"] for row in times.rows],
        "roles": {role: place[found[role]["label"]] for role in ROLES if present(found[role])},
        "front": [place[label] for label in found["pareto"]],
        "words": [{"topic": line.topic, "text": line.text} for line in chosen_lines(found)],
    }


def brief(value: Any) -> float | None:
    """Return a number with five significant digits, whole where it is whole; None if it is none or not finite."""
    number = finite(value)
    if number is None:
        return None
    rounded = float(f"{number:.5g}")
    return int(rounded) if rounded == int(rounded) else rounded


def embedded(data: Mapping[str, Any]) -> str:
    """Return JSON that may stand in a page's script element, whatever its texts are.

    Raises ValueError for NaN or infinity.
    """
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
