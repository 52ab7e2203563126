"""Efficiency over num_gpus, as measured. The speed-up itself is drawn by the page's script."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scalestudy.experiments.analysis.measures.parts import Row, Summary, present, why_of
from scalestudy.experiments.analysis.measures.scaling import BASE, STRONG, SpeedupIntervals
from scalestudy.experiments.plan.plan import label
from scalestudy.experiments.report.drawing import (
    LINES,
    MARKERS,
    MUTED,
    PALETTE,
    Drawn,
    canvas,
    export,
    legend_below,
    log_sizes_axis,
    not_drawn,
    sentences,
)
from scalestudy.experiments.report.flags import flag_mark, flag_words

MOST_LINES = len(PALETTE)
LOG_FROM_WORKERS = 16
"""From so many workers on the axis is logarithmic: sizes double, and a linear axis would press small ones together."""


@dataclass(frozen=True)
class Line:
    """Timings that differ only in num_gpus, fewest workers first."""

    name: str
    rows: Sequence[Row]

    @property
    def sizes(self) -> list[int]:
        """Numbers of workers."""
        return [row["params"]["num_gpus"] for row in self.rows]


def efficiency_figure(summary: Summary) -> Drawn:
    """Draw the measured speed-up over one worker, divided by num_gpus, at the same batch, beside the ideal."""
    name, title, every = "efficiency", "Efficiency at the same batch", lines_of_batches(summary)
    if not every:
        return not_drawn(name, title, why_of(summary["scaling"]))
    lines, intervals = every[:MOST_LINES], SpeedupIntervals(summary["timings"])
    workers = sorted({size for line in lines for size in line.sizes})
    with canvas() as (figure, axes):
        axes.plot([1, workers[-1]], [1.0, 1.0], color=MUTED, linewidth=1.0, linestyle=(0, (2, 2)), label="ideal")
        tops = [1.0]
        for place, line in enumerate(lines):
            tops.append(_draw_line(axes, line, intervals, place))
        _label_ends(axes, [(line.sizes[-1], line.rows[-1]["efficiency"]) for line in lines])
        axes.margins(x=0.12)
        if workers[-1] >= LOG_FROM_WORKERS:
            log_sizes_axis(axes, workers)
            axes.set_xlim(0.85, workers[-1] * 1.35)
        else:
            axes.set_xticks(workers)
        axes.set_ylim(0, 1.12 * max(tops))
        axes.set(xlabel="workers", ylabel="efficiency (speed-up ÷ workers)")
        legend_below(figure, axes.get_legend_handles_labels()[0])
        return export(figure, name, title, _caption(summary, every, intervals))


def _draw_line(axes: Any, line: Line, intervals: SpeedupIntervals, place: int) -> float:
    """Draw the points with a bar for each interval. Return the highest efficiency drawn."""
    colour, measured = PALETTE[place], [row["efficiency"] for row in line.rows]
    name = f"{line.name}{flag_mark(line.rows)}"
    axes.plot(line.sizes, measured, label=name, color=colour, marker=MARKERS[place], linestyle=LINES[1], linewidth=1.1)
    for row in line.rows:
        if row["scaling"] == STRONG and (ends := intervals.of(row)) is not None:
            workers, value = row["params"]["num_gpus"], row["efficiency"]
            low, high = (end / workers for end in ends)
            bar = [[value - low], [high - value]]
            axes.errorbar([workers], [value], yerr=bar, fmt="none", ecolor=colour, elinewidth=1.1, capsize=3)
            measured.append(high)
    return float(max(measured))


def _caption(summary: Summary, lines: Sequence[Line], intervals: SpeedupIntervals) -> str:
    scaling, drawn = summary["scaling"], lines[:MOST_LINES]
    words = ""
    if present(scaling):
        best = scaling["best"]
        words = (
            f"At best ({best['label']}) each of {scaling['num_gpus']} workers does {best['efficiency']:.0%} of what "
            "one alone would do in the same time."
        )
    some = f"The {MOST_LINES} best of {len(lines)} lines are shown." if len(lines) > MOST_LINES else ""
    rows = [row for line in drawn for row in line.rows]
    bars = any(intervals.of(row) is not None for row in rows if row["scaling"] == STRONG)
    noise = "Bars are 90% intervals." if bars else "Each size was timed once, so there are no intervals."
    return sentences(words, some, noise, flag_words(rows))


def lines_of_batches(summary: Summary) -> list[Line]:
    """Return timings of strong scaling, a line for all that differ only in num_gpus. The fastest stands first.

    Lines of one point are left out.
    """
    groups: dict[str, list[Row]] = {}
    for row in summary["timings"]:
        if row["scaling"] in (BASE, STRONG) and row["speedup"] is not None:
            rest = {key: value for key, value in row["params"].items() if key != "num_gpus"}
            groups.setdefault(label(rest), []).append(row)
    lines = [
        Line(name, sorted(rows, key=lambda row: int(row["params"]["num_gpus"])))
        for name, rows in groups.items()
        if any(row["scaling"] == STRONG for row in rows)
    ]
    return sorted(lines, key=lambda line: -max(row["speedup"] for row in line.rows))


def _label_ends(axes: Any, ends: Sequence[tuple[float, float]]) -> None:
    """Write the value at each line's end, unless it would overlap the one above."""
    room = 0.06 * max(y for _, y in ends)
    above: tuple[float, float] | None = None
    for x, y in sorted(ends, reverse=True):
        if above is None or x != above[0] or above[1] - y >= room:
            axes.annotate(f"{y:.2f}", (x, y), xytext=(7, 3), textcoords="offset points", va="center", fontsize=8.5)
            above = (x, y)
