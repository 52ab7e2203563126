"""The metric over epochs and over seconds, and the phases of a step."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scalestudy.experiments.analysis.answers.verdicts import phase_share
from scalestudy.experiments.analysis.measures.cells import Cell
from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.analysis.measures.parts import Row, Summary, present
from scalestudy.experiments.analysis.measures.records import COUNTED, PHASES, epochs_of, test_values
from scalestudy.experiments.analysis.measures.units import marked_seconds, metric_of, period_of
from scalestudy.experiments.report.drawing import (
    HATCHES,
    INK,
    MUTED,
    PALETTE,
    Drawn,
    canvas,
    export,
    legend_below,
    not_drawn,
    plain_log_axes,
    sentences,
)
from scalestudy.experiments.report.styles import MOST_CELLS, Styles, flag_mark, flag_words

Points = tuple[Sequence[float], Sequence[float]]
PHASE_NAMES = {
    "data": "data",
    "forward_backward": "forward + backward",
    "gradient_sync": "gradient sync (exposed)",
    "optimizer": "optimizer",
}
LOG_FROM = 30.0
"""From this ratio of the largest to the smallest value on, a metric's axis is logarithmic."""
LABEL_GAP = 0.06
"""Least distance of two targets' labels, as a share of the axis."""
MOST_BARS = 16
AT_TARGET = "Trainings stopped at the target: a line ends where fewer than half of its seeds went on."


def metric_over_epochs(cells: Sequence[Cell], summary: Summary, styles: Styles) -> Drawn:
    """The metric after each epoch, a line a cell, median over seeds."""
    metric, period = metric_of(summary["study"]), period_of(summary)
    rows = [row for row in summary["cells"] if present(row[metric.key])]
    caption = "No trial finished; the lines show how far each came."
    if rows:
        best = min(rows, key=lambda row: metric.order(row[metric.key]["value"]))
        last = max(rows, key=lambda row: metric.order(row[metric.key]["value"]))
        at_best, at_last = (metric.text(row[metric.key]["value"]) for row in (best, last))
        caption = f"{best['label']} ends at {at_best}."
        if any(row["trials"]["at_target"] for row in rows):
            caption = AT_TARGET
        elif len(rows) > 1:
            caption = f"{best['label']} ends ahead of all with {at_best}; {last['label']} is last with {at_last}."
    return _curves("epochs", f"{period}s", period, points_by_epoch, cells, summary, styles, caption)


def points_by_epoch(cell: Cell) -> Points:
    """Epochs, and the median of the metric over the seeds that have each epoch."""
    curves = [
        {
            int(epoch["epoch"]): (int(epoch["epoch"]), value)
            for epoch in epochs_of(trial)
            for value in test_values({"epochs": [epoch]}, cell.metric)
        }
        for trial in cell.with_status(COUNTED)
    ]
    return _medians(cell, curves)


def _medians(cell: Cell, curves: Sequence[Mapping[int, tuple[float, float]]]) -> Points:
    """The line of a cell: medians over its seeds. curves: of each seed, (place on the axis, value) by number.

    Where trainings stop at the target, the fast seeds end first, and a median over the slow ones would fall: one that
    has ended keeps its last value, and the line ends where fewer than half go on.
    """
    curves = [points for points in curves if points]
    stops = bool(cell.with_status(("at_target",)))
    places, values = [], []
    for number in sorted({number for points in curves for number in points}):
        left = [points[number] for points in curves if number in points]
        if stops and 2 * len(left) < len(curves):
            break
        ended = [points[max(points)] for points in curves if max(points) < number] if stops else []
        places.append(statistics.median(place for place, _ in left))
        values.append(statistics.median(value for _, value in [*left, *ended]))
    return places, values


def metric_over_seconds(cells: Sequence[Cell], summary: Summary, styles: Styles) -> Drawn:
    """The same values over the training seconds that they took."""
    x_label = "training time (seconds, evaluation left out)"
    fastest = summary["recommendation"]["fastest"]
    words = f"No time to a target: {fastest.get('why')}."
    if present(fastest):
        target = metric_of(summary["study"]).named(f"{summary['recommendation']['target']:g}")
        words = f"{fastest['label']} is the first to reach {target}, after {marked_seconds(fastest)} of training."
    stopped = AT_TARGET if any(row["trials"]["at_target"] for row in summary["cells"]) else ""
    caption = sentences(words, stopped, flag_words(summary["cells"]))
    return _curves("seconds", "training time", x_label, points_by_seconds, cells, summary, styles, caption)


def points_by_seconds(cell: Cell) -> Points:
    """Median seconds and median metric over seeds, after each epoch."""
    return _medians(cell, [dict(enumerate(cell.curve(trial))) for trial in cell.with_status(COUNTED)])


def _curves(
    name: str,
    over: str,
    x_label: str,
    points_of: Callable[[Cell], Points],
    cells: Sequence[Cell],
    summary: Summary,
    styles: Styles,
    caption: str,
) -> Drawn:
    metric = metric_of(summary["study"])
    key, title = f"{metric.name}_{name}", f"Test {metric.name} over {over}"
    drawn = styles.most_important(cells)
    lines = [(cell, *points) for cell in drawn if (points := points_of(cell))[0]]
    if not lines:
        return not_drawn(key, title, f"no trial has a {metric.title}")
    if len(drawn) < len(cells):
        caption = f"{caption} Of {len(cells):,} cells the {MOST_CELLS} that rank highest are drawn."
    with canvas(height=3.2) as (figure, axes):
        for cell, x, y in lines:
            axes.plot(x, y, **styles.line(cell.params))
        axes.set(xlabel=x_label, xlim=(0, None))
        targets = summary["study"]["targets"]
        _value_axis(axes, metric, [value for line in lines for value in line[2]] + targets)
        _draw_targets(axes, targets)
        legend_below(figure, styles.line_handles([line[0].params for line in lines], timed=name == "seconds"))
        return export(figure, key, title, caption)


def _value_axis(axes: Any, metric: StudyMetric, values: Sequence[float]) -> None:
    """A share's axis has `share_limits`. Another metric's fits values and targets, in logarithms if they span much."""
    axes.set_ylabel(metric.title)
    if metric.share:
        low, high = share_limits(values)
        axes.set_ylim(low, high)
        axes.set_ylabel(f"{metric.title} ({low:g} to {high:g})")
    elif min(values) > 0 and max(values) / min(values) >= LOG_FROM:
        axes.set_ylim(min(values) / 1.2, max(values) * 1.2)  # of the targets too, which are drawn later
        plain_log_axes(axes, "y")


def share_limits(values: Sequence[float]) -> tuple[float, float]:
    """The ends of a share's axis: 0 and 1, or the tenths around the values if all are in the upper half."""
    if min(values) < 0.5:
        return 0.0, 1.0
    low = min(math.floor(min(values) * 10) / 10, 0.9)
    return low, max(math.ceil(max(values) * 10) / 10, low + 0.1)


def _draw_targets(axes: Any, targets: Sequence[float]) -> None:
    """A line for each target, named beside the axis. Names of close targets keep apart."""
    rising = sorted(targets)
    for target in rising:
        axes.axhline(target, color=MUTED, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
    axes.set_ylim(*axes.get_ylim())  # the lines may have widened the axis; what follows asks where they are on it
    to_axes = axes.transData + axes.transAxes.inverted()
    places = [to_axes.transform((0, target))[1] for target in rising]
    for target, place in zip(rising, apart(places, LABEL_GAP), strict=True):
        axes.annotate(
            f"target {target:g}",
            (1, place),
            xycoords="axes fraction",
            fontsize=8,
            color=INK,
            ha="left",
            va="center",
            xytext=(3, 0),
            textcoords="offset points",
        )


def apart(places: Sequence[float], gap: float) -> list[float]:
    """Rising places, each moved up as far as it takes to be `gap` above the one before."""
    moved: list[float] = []
    for place in places:
        moved.append(max(place, moved[-1] + gap) if moved else place)
    return moved


def phases_figure(summary: Summary) -> Drawn:
    """Milliseconds a step by phase, with a stacked bar for each (num_gpus, batch_size)."""
    name, title = "phases", "Where a step's time goes"
    measured = [row for row in summary["timings"] if present(row["step_seconds"])]
    if not measured:
        return not_drawn(name, title, "no trial measured the phases of its steps")
    rows = measured
    if len(measured) > MOST_BARS:  # evenly from the whole range, the first and the last among them
        rows = [measured[round(number * (len(measured) - 1) / (MOST_BARS - 1))] for number in range(MOST_BARS)]
    with canvas(height=0.9 + 0.42 * len(rows)) as (figure, axes):
        left = [0.0 for _ in rows]
        for place, phase in enumerate(PHASES):
            widths = [row["step_seconds"][phase] * 1000 for row in rows]
            axes.barh(
                range(len(rows)),
                widths,
                left=left,
                height=0.44,
                color=PALETTE[place],
                hatch=HATCHES[place],
                edgecolor="white",
                linewidth=0.6,
                label=PHASE_NAMES[phase],
            )
            left = [start + width for start, width in zip(left, widths, strict=True)]
        for place, total in enumerate(left):
            axes.annotate(
                f"{total:.3g}", (total, place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8
            )
            name_of_bar = f"{rows[place]['label']}{flag_mark([rows[place]])}"
            axes.annotate(name_of_bar, (0, place - 0.27), xytext=(1, 1), textcoords="offset points", fontsize=8)
        axes.set_yticks([])
        axes.set_ylim(len(rows) - 0.6, -0.75)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("milliseconds a step (median)")
        axes.margins(x=0.12)
        legend_below(figure, axes.get_legend_handles_labels()[0])
        return export(figure, name, title, _phases_caption(rows, len(measured)))


def _phases_caption(rows: Sequence[Row], of_all: int) -> str:
    cut = f"Of {of_all} sizes {len(rows)} from the whole range are shown." if of_all > len(rows) else ""
    several = [row for row in rows if row["params"]["num_gpus"] > 1] or list(rows)
    phase = "gradient_sync" if several[0]["params"]["num_gpus"] > 1 else "forward_backward"
    shares = {row["label"]: phase_share(row, phase) or 0.0 for row in several}
    top = max(shares, key=lambda name: shares[name])
    low = min(shares, key=lambda name: shares[name])
    between = "" if len(shares) == 1 else f" and {shares[low]:.0%} of one at {low}"
    words = {"gradient_sync": "Summing gradients", "forward_backward": "Forward and backward"}[phase]
    return sentences(f"{words} takes {shares[top]:.0%} of a step at {top}{between}.", cut, flag_words(rows))
