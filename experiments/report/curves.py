"""Stage 9, report: the study's metric over epochs and over seconds."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.analysis.cells import Cell, key_of
from experiments.analysis.metric import StudyMetric
from experiments.analysis.parts import present
from experiments.analysis.trial_measures import COUNTED, curve, epochs_of, test_values
from experiments.analysis.words import metric_of, seconds_text
from experiments.plan import label
from experiments.report.drawing import (
    INK,
    LINES,
    MARKERS,
    MUTED,
    PALETTE,
    Drawn,
    canvas,
    export,
    legend_below,
    plain_log_axes,
)

Summary = Mapping[str, Any]


@dataclass(frozen=True)
class Styles:
    """Colour by everything but num_gpus, line and marker by num_gpus; beyond the palette grey, the best first."""

    colours: Mapping[str, str]
    labels: Mapping[str, str]
    workers: Sequence[int]

    @classmethod
    def of(cls, summary: Summary) -> "Styles":
        """One colour a group for the groups that matter most: recommended ones, then by the metric."""
        rank = [*_recommended(summary), *_by_metric(summary)]
        groups = dict.fromkeys(_group(params) for params in rank)
        chosen = list(groups)[: len(PALETTE)]
        labels = {_group(params): label(_without_workers(params)) for params in rank}
        workers = sorted({row["params"]["num_gpus"] for row in summary["cells"]})
        return cls(dict(zip(chosen, PALETTE, strict=False)), labels, workers)

    def colour(self, params: Mapping[str, Any]) -> str:
        """The colour of a cell."""
        return self.colours.get(_group(params), MUTED)

    def line(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Matplotlib's keywords for a cell's line."""
        place = self.workers.index(params["num_gpus"])
        coloured = _group(params) in self.colours
        return {
            "color": self.colour(params),
            "linestyle": LINES[place % len(LINES)],
            "marker": MARKERS[place % len(MARKERS)] if coloured else None,
            "linewidth": 1.7 if coloured else 0.7,
            "zorder": 3 if coloured else 2,
        }

    def handles(self, grey: bool) -> list[Any]:
        """Legend entries: one a colour, one a num_gpus, and one for the grey cells."""
        from matplotlib.lines import Line2D

        colours = [Line2D([], [], color=colour, label=self.labels[group]) for group, colour in self.colours.items()]
        rest = [Line2D([], [], color=MUTED, linewidth=0.7, label="other cells")] if grey else []
        return [*colours, *rest, *self.worker_handles()]

    def worker_handles(self) -> list[Any]:
        """Legend entries of num_gpus alone."""
        from matplotlib.lines import Line2D

        return [
            Line2D([], [], color=INK, linestyle=LINES[place % 4], marker=MARKERS[place % 6], label=f"num_gpus={number}")
            for place, number in enumerate(self.workers)
        ]

    def any_grey(self, cells: Sequence[Cell]) -> bool:
        """Whether some cell has no colour of its own."""
        return any(_group(cell.params) not in self.colours for cell in cells)


def _group(params: Mapping[str, Any]) -> str:
    return key_of(params, ("num_gpus",))


def _without_workers(params: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in params.items() if key != "num_gpus"}


def _recommended(summary: Summary) -> list[Mapping[str, Any]]:
    best = metric_of(summary["study"]).choice_key
    parts = [summary["recommendation"][key] for key in ("fastest", "cheapest", "knee", best)]
    return [part["params"] for part in parts if present(part)]


def _by_metric(summary: Summary) -> list[Mapping[str, Any]]:
    """The cells' parameters, the best first, those without a value last."""
    metric = metric_of(summary["study"])
    known = [row for row in summary["cells"] if present(row[metric.key])]
    rows = sorted(known, key=lambda row: metric.order(row[metric.key]["value"]))
    return [row["params"] for row in [*rows, *(row for row in summary["cells"] if not present(row[metric.key]))]]


def _by_epoch(cell: Cell) -> tuple[list[int], list[float]]:
    """Median of the metric over the seeds that have this epoch."""
    values: dict[int, list[float]] = {}
    for trial in cell.with_status(COUNTED):
        for epoch in epochs_of(trial):
            for value in test_values({"epochs": [epoch]}, cell.metric):
                values.setdefault(int(epoch["epoch"]), []).append(value)
    epochs = sorted(values)
    return epochs, [statistics.median(values[epoch]) for epoch in epochs]


def _by_seconds(cell: Cell) -> tuple[list[float], list[float]]:
    """Median seconds and median metric over seeds after each epoch; from (0, –) on as measured."""
    curves = [points for trial in cell.with_status(COUNTED) if (points := curve(trial, cell.metric))]
    longest = max((len(points) for points in curves), default=0)
    columns = [[points[index] for points in curves if index < len(points)] for index in range(longest)]
    return (
        [statistics.median(point[0] for point in column) for column in columns],
        [statistics.median(point[1] for point in column) for column in columns],
    )


def metric_over_epochs(cells: Sequence[Cell], summary: Summary) -> Drawn:
    """The metric after each epoch, a line a cell, median over seeds."""
    lines = [(cell, *_by_epoch(cell)) for cell in cells]
    return _curves("epochs", "epochs", "epoch", lines, summary, _epochs_caption(summary))


def metric_over_seconds(cells: Sequence[Cell], summary: Summary) -> Drawn:
    """The same values over the training seconds that they took."""
    lines = [(cell, *_by_seconds(cell)) for cell in cells]
    x_label = "training time (seconds, evaluation left out)"
    return _curves("seconds", "training time", x_label, lines, summary, _seconds_caption(summary))


def _curves(name: str, over: str, x_label: str, lines: Sequence[Any], summary: Summary, caption: str) -> Drawn:
    metric = metric_of(summary["study"])
    name, title = f"{metric.name}_{name}", f"Test {metric.name} over {over}"
    lines = [line for line in lines if line[1]]
    if not lines:
        return Drawn(name=name, title=title, caption=f"Not drawn: no trial has a {metric.title}.")
    styles = Styles.of(summary)
    with canvas(height=3.2) as (figure, axes):
        for cell, x, y in lines:
            axes.plot(x, y, **styles.line(cell.params))
        for target in summary["study"]["targets"]:
            axes.axhline(target, color=MUTED, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
            axes.annotate(
                f"target {target:g}", (0, target), xycoords=("axes fraction", "data"), fontsize=8, color=MUTED,
                ha="left", va="bottom", xytext=(3, 1), textcoords="offset points",
            )  # fmt: skip
        axes.set(xlabel=x_label, xlim=(0, None))
        _value_axis(axes, metric, [value for line in lines for value in line[2]] + summary["study"]["targets"])
        legend_below(figure, styles.handles(styles.any_grey([line[0] for line in lines])))
        return export(figure, name, title, caption)


LOG_FROM = 30.0
"""From this ratio of the largest to the smallest value on, a metric's axis is logarithmic."""


def _value_axis(axes: Any, metric: StudyMetric, values: Sequence[float]) -> None:
    """From 0 to 1 for a share; for another metric what values and targets need, logarithmic where that is much."""
    axes.set_ylabel(f"{metric.title} (0 to 1)" if metric.share else metric.title)
    if metric.share:
        axes.set_ylim(0, 1)
    elif min(values) > 0 and max(values) / min(values) >= LOG_FROM:
        plain_log_axes(axes, "y")


def _epochs_caption(summary: Summary) -> str:
    metric = metric_of(summary["study"])
    rows = [row for row in summary["cells"] if present(row[metric.key])]
    if not rows:
        return "No trial finished; the lines show how far each came."
    best = min(rows, key=lambda row: metric.order(row[metric.key]["value"]))
    last = max(rows, key=lambda row: metric.order(row[metric.key]["value"]))
    at_best, at_last = (metric.text(row[metric.key]["value"]) for row in (best, last))
    if len(rows) == 1:
        return f"{best['label']} ends at {at_best}."
    return f"After the last epoch {best['label']} is ahead with {at_best}; {last['label']} is last with {at_last}."


def _seconds_caption(summary: Summary) -> str:
    fastest = summary["recommendation"]["fastest"]
    if not present(fastest):
        return f"No time to a target: {fastest['why']}."
    target = metric_of(summary["study"]).named(f"{summary['recommendation']['target']:g}")
    return f"{fastest['label']} is the first to reach {target}, after {seconds_text(fastest['seconds'])} of training."
