"""Two figures over batch sizes: the best learning rate of each, and the steps to the target."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from scalestudy.experiments.analysis.measures.cells import combination_of
from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.analysis.measures.parts import (
    Missing,
    Row,
    Summary,
    estimate_text,
    identified,
    interval_of,
    number_of,
    part_of,
    present,
    why_of,
)
from scalestudy.experiments.analysis.measures.units import metric_of, three_digits
from scalestudy.experiments.report.drawing import (
    INK,
    LINES,
    MUTED,
    PALETTE,
    PAPER,
    Drawn,
    canvas,
    export,
    legend_below,
    line_handle,
    log_sizes_axis,
    not_drawn,
    plain_log_axes,
    sentences,
)
from scalestudy.experiments.report.maps import MOST_COLUMNS, MOST_ROWS, Bins, Square, draw_map, height_of, shades
from scalestudy.experiments.report.speedup_figures import ENOUGH_SIZES

Place = tuple[int, int]
"""Column and row of a square."""
Point = Mapping[str, Any]
LOG_FROM = 30.0
"""From this ratio of the greatest to the least value on, an error's colours follow its logarithm."""
MOST_NAMED = 6
ENDED = ("diverged", "out_of_memory", "failed", "skipped")
REGIMES = {"perfect scaling": "o", "diminishing returns": "s", "flat": "^", None: "D"}
NEAR = 4.0
"""The axis has room for a batch beyond the measured ones by less than this factor."""


def rate_map_figure(summary: Summary) -> Drawn:
    """The metric after the last epoch over learning rate and batch size, with the best rate of each batch marked.

    It is drawn for the swept keys of the recommended cell, else of the first. A square shows the median over num_gpus,
    or the best value if it stands for a range.
    """
    name, metric = "learning_rate", metric_of(summary["study"])
    title = f"{metric.title.capitalize()} by learning rate and batch"
    choice = summary["recommendation"]["choice"]
    params = choice["params"] if present(choice) else (summary["cells"][0]["params"] if summary["cells"] else {})
    combination = combination_of(params)
    rows = [row for row in summary["cells"] if combination_of(row["params"]) == combination]
    if not any(present(row[metric.key]) for row in rows):
        return not_drawn(name, title, f"no trial has a {metric.title}")
    columns = Bins.of((row["params"]["learning_rate"] for row in rows), MOST_COLUMNS)
    lines = Bins.of((row["params"]["batch_size"] for row in rows), MOST_ROWS)
    if len(columns.names) < 2:
        return not_drawn(name, title, f"the study has one learning rate only ({columns.names[0]})")

    members: dict[Place, list[Row]] = {}
    for row in rows:
        place = columns.place(row["params"]["learning_rate"]), lines.place(row["params"]["batch_size"])
        members.setdefault(place, []).append(row)
    known: dict[Place, float] = {}
    best: dict[int, int] = {}  # the best column of each row
    whole = not any(row["trials"]["at_target"] for row in rows)
    for place, inside in members.items():
        values = [row[metric.key]["value"] for row in inside if present(row[metric.key])]
        value = metric.best(values) if columns.ranges or lines.ranges else statistics.median(values) if values else None
        if value is not None:
            known[place] = value
            column, line = place
            if whole and (line not in best or metric.better(value, known[best[line], line])):
                best[line] = column

    with canvas(height=height_of(len(lines.names), 1)) as (figure, axes):
        draw_map(axes, _squares(members, known, best, metric), columns.names, lines.names)
        axes.set(xlabel=columns.axis("learning rate"), ylabel=lines.axis("batch size (all workers)"))
        said = [
            f"{columns.said(column)} at batch {lines.names[line]} ({metric.text(known[column, line])})"
            for line, column in sorted(best.items())
        ]
        more = f" and {len(said) - MOST_NAMED} more" if len(said) > MOST_NAMED else ""
        of = f"With {combination}: the" if combination else "The"
        words = f"{of} best rate of each batch (outlined) is {', '.join(said[:MOST_NAMED])}{more}."
        if not whole:
            words = "Trainings stopped at the target, so their last evaluation does not show which rate is best."
        last = len(columns.names) - 1
        edges = [lines.names[line] for line, column in sorted(best.items()) if column in (0, last)]
        bound = f"At batch {', '.join(edges[:MOST_NAMED])} that is the edge of the grid: a better rate may lie beyond."
        ranges = "Where a column or row is a range, the best of it is shown." if columns.ranges or lines.ranges else ""
        caption = sentences(words, bound if edges and not columns.ranges else "", ranges, _rule_words(summary))
        return export(figure, name, title, caption)


def _squares(
    members: Mapping[Place, Sequence[Row]], known: Mapping[Place, float], best: Mapping[int, int], metric: StudyMetric
) -> list[Square]:
    """Squares whose colour is stronger for better values. One without a value says how most of its trials ended."""
    values = list(known.values())
    logarithmic = not metric.share and min(values) > 0 and max(values) / min(values) >= LOG_FROM
    graded = [-metric.order(math.log(value) if logarithmic else value) for value in values]
    strength = dict(zip(known, shades(graded), strict=True))
    squares = []
    for place, rows in members.items():
        text = metric.text(known[place]) if place in known else "not run"
        if place not in known:
            counts = {status: sum(row["trials"][status] for row in rows) for status in ENDED}
            most = max(counts, key=lambda status: counts[status])
            text = most.replace("_", " ") if counts[most] else text
        chosen = best.get(place[1]) == place[0]
        squares.append(Square(column=place[0], row=place[1], lines=[text], shade=strength.get(place), chosen=chosen))
    return squares


def _rule_words(summary: Summary) -> str:
    rule = part_of(summary, "lr_rule")
    if not present(rule):
        return f"No rule for the rate: {why_of(rule)}."
    exponent = estimate_text(rule["exponent"], "{:.2f}".format)
    if isinstance(exponent, Missing):
        return f"By which power of the batch the best rate grows is {exponent}."
    nearest = f", nearest the {rule['nearest']} rule" if rule.get("nearest") else ""
    by = f" ({rule['target_or_metric']})" if rule.get("target_or_metric") else ""
    return f"The best rate{by} grows with the batch to the power of {exponent}{nearest}."


def steps_figure(summary: Summary) -> Drawn:
    """Steps to the target over the examples of a step, each batch at its best rate, with S(B) = S_min(1 + B_crit/B)."""
    name, title = "steps_to_target", "Steps to the target by batch size"
    part = part_of(summary, "statistical_efficiency")
    points: list[Point] = []
    if present(part) and part["target"] is not None:
        points = sorted((point for point in part["points"] if point["steps"] is not None), key=examples_of)
    if len(points) < 2:
        why = "one batch size alone reached a target" if points else "no batch size reached a target"
        return not_drawn(name, title, why_of(part) if not present(part) or part.get("why") else why)
    title = f"Steps to {part['target']:g} by batch size"
    x_label = "examples a step (all workers; the last step of an epoch has fewer)"
    if all(examples_of(point) == point["batch_size"] for point in points):
        x_label = "batch size (examples, all workers)"
    with canvas(height=3.2) as (figure, axes):
        handles = [*_draw_points(axes, points), *_draw_law(axes, part, points), *_draw_batches(axes, part, points)]
        axes.margins(y=0.15)
        plain_log_axes(axes, "y")
        log_sizes_axis(axes, [round(examples_of(point)) for point in points])
        axes.set(xlabel=x_label, ylabel=f"optimizer steps to {part['target']:g}")
        legend_below(figure, handles)
        return export(figure, name, title, _steps_caption(part, points))


def examples_of(point: Point) -> float:
    """Examples of a step, over which the law is fitted. It is below the batch size if epochs end in a smaller batch."""
    return float(point.get("examples_per_step") or point["batch_size"])


def _draw_points(axes: Any, points: Sequence[Point]) -> list[Any]:
    """The measured points with their ranges, and the ideal: half the steps at twice the batch.

    Each regime has its marker. It is hollow if the best rate is at the grid's edge.
    """
    for point in points:
        batch, steps = examples_of(point), point["steps"]
        if point["low"] is not None and point["high"] is not None:
            axes.plot([batch, batch], [point["low"], point["high"]], color=PALETTE[0], linewidth=1.2, zorder=3)
        face = PAPER if point["edge"] else PALETTE[0]
        axes.plot(
            batch,
            steps,
            linestyle="none",
            marker=REGIMES.get(point["regime"], "D"),
            markersize=7,
            color=PALETTE[0],
            markerfacecolor=face,
            zorder=4,
        )
    first, ends = points[0], [examples_of(point) for point in (points[0], points[-1])]
    ideal = [first["steps"], first["steps"] * ends[0] / ends[1]]
    axes.plot(ends, ideal, color=MUTED, linewidth=1.0, linestyle=(0, (2, 2)), zorder=1)
    looks = {"linestyle": "none", "color": PALETTE[0], "markersize": 6}
    regimes = dict.fromkeys(point["regime"] for point in points)
    handles = [line_handle(marker=REGIMES.get(regime, "D"), label=regime or "measured", **looks) for regime in regimes]
    if any(point["edge"] for point in points):
        handles.append(line_handle(marker="o", markerfacecolor=PAPER, label="rate at grid's edge", **looks))
    dots = (0, (2, 2))
    return [*handles, line_handle(color=MUTED, linewidth=1, linestyle=dots, label="ideal")]


def law_curve(part: Mapping[str, Any], points: Sequence[Point]) -> tuple[list[float], list[float]]:
    """S(B) between the measured batches as (examples of a step, steps). Empty if the data do not identify it."""
    s_min, b_crit = number_of(part["s_min"]), number_of(part["b_crit"])
    sizes = {examples_of(point) for point in points}
    if s_min is None or b_crit is None or len(sizes) < ENOUGH_SIZES:
        return [], []
    low, high = min(sizes), max(sizes)
    batches = [low * (high / low) ** (step / 60) for step in range(61)]
    return batches, [s_min * (1 + b_crit / batch) for batch in batches]


def _draw_law(axes: Any, part: Mapping[str, Any], points: Sequence[Point]) -> list[Any]:
    """S(B), with a band from the ends of S_min and E_min."""
    batches, curve = law_curve(part, points)
    if not batches:
        return []
    axes.plot(batches, curve, color=INK, linewidth=1.2, zorder=2)
    steps, examples = interval_of(part["s_min"]), interval_of(part["e_min"])
    if steps and examples:
        ends = [[steps[end] + examples[end] / batch for batch in batches] for end in (0, 1)]
        axes.fill_between(batches, *ends, color=MUTED, alpha=0.2, linewidth=0, zorder=1)
    return [line_handle(color=INK, linewidth=1.2, label="S_min (1 + B_crit / B)")]


def _draw_batches(axes: Any, part: Mapping[str, Any], points: Sequence[Point]) -> list[Any]:
    """The critical batch and the noise scale as upright lines with their intervals, if the axis has room."""
    handles = []
    for place, (name, estimate) in enumerate((("B_crit", part["b_crit"]), ("noise scale", part["noise_scale"]))):
        value = number_of(estimate)
        near = examples_of(points[0]) / NEAR, examples_of(points[-1]) * NEAR
        if value is None or not near[0] <= value <= near[1]:
            continue
        colour, line = PALETTE[1 + place], LINES[1 + place]
        axes.axvline(value, color=colour, linewidth=1.5, linestyle=line, zorder=2)
        label = f"{name} {_count(value)}"
        if interval := interval_of(estimate):
            axes.axvspan(max(interval[0], near[0]), min(interval[1], near[1]), color=colour, alpha=0.10, linewidth=0)
            label += f" ({_count(interval[0])} to {_count(interval[1])}, shaded)"
        handles.append(line_handle(color=colour, linewidth=1.5, linestyle=line, label=label))
    return handles


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else three_digits(value)


def _steps_caption(part: Mapping[str, Any], points: Sequence[Point]) -> str:
    first, last = points[0], points[-1]
    words = f"At batch {first['batch_size']:g} it takes {_count(first['steps'])} steps to {part['target']:g}"
    words += f", at {last['batch_size']:g} {_count(last['steps'])}."
    names = {"s_min": "S_min", "b_crit": "B_crit"}
    law = "; ".join(f"{names[key]} {estimate_text(part[key], _count)}" for key in names)
    if identified(part["s_min"]) and identified(part["b_crit"]):
        law = f"The law: {law}"
    elif not identified(part["s_min"]) and why_of(part["s_min"]) == why_of(part["b_crit"]):
        law = f"No law is drawn: {why_of(part['s_min'])}"
    else:
        law = f"No law is drawn: {law}"
    noise = part["noise_scale"]
    scale = f"The noise scale is not known: {why_of(noise)}."
    if identified(noise):
        optimizer = f" with {noise['optimizer']}" if noise.get("optimizer") else ""
        scale = f"The gradient's noise scale{optimizer}, a proxy for B_crit, is {estimate_text(noise, _count)}."
    return sentences(words, f"{law}.", scale, f"Of {part['of']}." if part.get("of") else "")
