"""Stage 9, report: the metric over learning rate and batch size, and the rule by which the best rate grows."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.analysis.metric import StudyMetric
from experiments.analysis.parts import present
from experiments.analysis.reading import estimate_text, part_of, why_of
from experiments.analysis.words import metric_of
from experiments.report.bins import Bins
from experiments.report.drawing import Drawn, canvas, export, not_drawn, sentences
from experiments.report.heat_map import MOST_COLUMNS, MOST_ROWS, Square, draw_map, height_of, shades
from experiments.report.law_curves import combination_of

Summary = Mapping[str, Any]
Row = Mapping[str, Any]
Place = tuple[int, int]
LOG_FROM = 30.0
"""From this ratio of the greatest to the least value on, an error's colours follow its logarithm."""
MOST_NAMED = 6
ENDED = ("diverged", "out_of_memory", "failed", "skipped")


def rate_map_figure(summary: Summary) -> Drawn:
    """The metric after the last epoch over learning rate and batch size; medians over num_gpus, best a batch marked."""
    name, metric = "learning_rate", metric_of(summary["study"])
    title = f"{metric.title.capitalize()} by learning rate and batch"
    combination = _combination(summary)
    rows = [row for row in summary["cells"] if combination_of(row["params"]) == combination]
    if not any(present(row[metric.key]) for row in rows):
        return not_drawn(name, title, f"no trial has a {metric.title}")
    columns = Bins.of((row["params"]["learning_rate"] for row in rows), MOST_COLUMNS)
    lines = Bins.of((row["params"]["batch_size"] for row in rows), MOST_ROWS)
    if len(columns.names) < 2:
        return not_drawn(name, title, f"the study has one learning rate only ({columns.names[0]})")
    members = _members(rows, columns, lines)
    values = {place: _value(inside, metric, columns.ranges or lines.ranges) for place, inside in members.items()}
    known = {place: value for place, value in values.items() if value is not None}
    best = _best_columns(known, metric)
    with canvas(height=height_of(len(lines.names), 1)) as (figure, axes):
        draw_map(axes, _squares(members, known, best, metric), columns.names, lines.names)
        axes.set(xlabel=columns.axis("learning rate"), ylabel=lines.axis("batch size (all workers)"))
        caption = _caption(summary, known, best, columns, lines, combination)
        return export(figure, name, title, caption)


def _combination(summary: Summary) -> str:
    """The other swept keys of the recommended cell, else of the first."""
    choice = summary["recommendation"]["choice"]
    params = choice["params"] if present(choice) else (summary["cells"][0]["params"] if summary["cells"] else {})
    return combination_of(params)


def _members(rows: Sequence[Row], columns: Bins, lines: Bins) -> dict[Place, list[Row]]:
    members: dict[Place, list[Row]] = {}
    for row in rows:
        place = columns.place(row["params"]["learning_rate"]), lines.place(row["params"]["batch_size"])
        members.setdefault(place, []).append(row)
    return members


def _value(rows: Sequence[Row], metric: StudyMetric, ranges: bool) -> float | None:
    """One value for a square: the median over num_gpus, of a range of rates the best."""
    values = [row[metric.key]["value"] for row in rows if present(row[metric.key])]
    if not values:
        return None
    return metric.best(values) if ranges else statistics.median(values)


def _best_columns(known: Mapping[Place, float], metric: StudyMetric) -> dict[int, int]:
    """The best column of each row."""
    return {
        line: min((place for place in known if place[1] == line), key=lambda place: metric.order(known[place]))[0]
        for line in {place[1] for place in known}
    }


def _squares(
    members: Mapping[Place, Sequence[Row]], known: Mapping[Place, float], best: Mapping[int, int], metric: StudyMetric
) -> list[Square]:
    strength = dict(zip(known, shades(_graded(list(known.values()), metric)), strict=True))
    return [
        Square(
            column=place[0],
            row=place[1],
            lines=[metric.text(known[place]) if place in known else _ending(rows)],
            shade=strength.get(place),
            chosen=best.get(place[1]) == place[0],
        )
        for place, rows in members.items()
    ]


def _graded(values: Sequence[float], metric: StudyMetric) -> list[float]:
    """Values the greater the better; of an error that spans decades the logarithm."""
    logarithmic = not metric.share and min(values) > 0 and max(values) / min(values) >= LOG_FROM
    return [-metric.order(math.log(value) if logarithmic else value) for value in values]


def _ending(rows: Sequence[Row]) -> str:
    """How the trials of a square without a value ended, in most cases."""
    counts = {status: sum(row["trials"][status] for row in rows) for status in ENDED}
    most = max(counts, key=lambda status: counts[status])
    return most.replace("_", " ") if counts[most] else "not run"


def _caption(
    summary: Summary,
    known: Mapping[Place, float],
    best: Mapping[int, int],
    columns: Bins,
    lines: Bins,
    combination: str,
) -> str:
    metric = metric_of(summary["study"])
    said = [
        f"{columns.said(column)} at batch {lines.names[line]} ({metric.text(known[column, line])})"
        for line, column in sorted(best.items())
    ]
    more = f" and {len(said) - MOST_NAMED} more" if len(said) > MOST_NAMED else ""
    of = f"With {combination}: the" if combination else "The"
    ranges = "Where a column or row is a range, the best of it is shown." if columns.ranges or lines.ranges else ""
    words = f"{of} best rate of each batch (outlined) is {', '.join(said[:MOST_NAMED])}{more}."
    return sentences(words, _edge_words(best, columns, lines), ranges, _rule_words(summary))


def _edge_words(best: Mapping[int, int], columns: Bins, lines: Bins) -> str:
    last = len(columns.names) - 1
    edges = [lines.names[line] for line, column in sorted(best.items()) if column in (0, last)]
    if not edges or columns.ranges:
        return ""
    return f"At batch {', '.join(edges[:MOST_NAMED])} that is the edge of the grid, hence a bound and not the best."


def _rule_words(summary: Summary) -> str:
    rule = part_of(summary, "lr_rule")
    if not present(rule):
        return f"No rule for the rate: {why_of(rule)}."
    exponent = estimate_text(rule["exponent"], "{:.2f}".format)
    if exponent.startswith("not "):
        return f"By which power of the batch the best rate grows is {exponent.rstrip('. ')}."
    nearest = f", nearest the {rule['nearest']} rule" if rule.get("nearest") else ""
    by = f" ({rule['target_or_metric']})" if rule.get("target_or_metric") else ""
    return f"The best rate{by} grows with the batch to the power of {exponent}{nearest}."
