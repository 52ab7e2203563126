"""Speed-up and efficiency over num_gpus, as measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from scalestudy.experiments.analysis.measures.parts import Row, Summary, present, why_of
from scalestudy.experiments.analysis.measures.scaling import BASE, STRONG, SpeedupIntervals
from scalestudy.experiments.analysis.measures.units import three_digits
from scalestudy.experiments.plan.plan import label
from scalestudy.experiments.report.charts import (
    COLOURS,
    SHAPES,
    Axis,
    Chart,
    Drawing,
    Point,
    Series,
    between,
    not_drawn,
    places_of,
    sentences,
)
from scalestudy.experiments.report.flags import flag_mark, flag_words

MOST_LINES = len(COLOURS)
"""Lines with a colour; those of the other batches are grey."""
LOG_FROM_WORKERS = 16
"""From so many workers on the axis is logarithmic: sizes double, and a linear axis would press small ones together."""
SHORT_IDEAL = 1.25
"""Workers up to which the ideal speed-up is drawn in any case."""
Measure = Literal["speedup", "efficiency"]
TITLES: Mapping[Measure, str] = {"speedup": "Speed-up", "efficiency": "Efficiency"}
LABELS: Mapping[Measure, str] = {
    "speedup": "speed-up over one worker",
    "efficiency": "efficiency (speed-up ÷ workers)",
}


@dataclass(frozen=True)
class Line:
    """Timings that differ only in num_gpus, fewest workers first."""

    name: str
    rows: Sequence[Row]

    @property
    def sizes(self) -> list[int]:
        """Numbers of workers."""
        return [row["params"]["num_gpus"] for row in self.rows]


def scaling_figure(summary: Summary, measure: Measure) -> Drawing:
    """Return the measured speed-up over one worker at the same batch, or that divided by num_gpus; beside the ideal."""
    title = f"{TITLES[measure]} at the same batch"
    scaling, lines = summary["scaling"], lines_of_batches(summary)
    if not lines:
        one = "one number of workers alone was timed at the same batch"
        return not_drawn(measure, title, one if present(scaling) else why_of(scaling))
    words = "A line for each batch." if measure == "speedup" else ""
    if measure == "efficiency" and present(scaling):
        best = scaling["best"]
        words = (
            f"At best ({best['label']}) each of {scaling['num_gpus']} workers does {best['efficiency']:.0%} of what "
            "one alone would do in the same time."
        )
    caption = sentences(words, _noise(summary, lines))
    return Drawing(name=measure, title=title, caption=caption, numbers=_chart(summary, lines, measure))


def _noise(summary: Summary, lines: Sequence[Line]) -> str:
    """Return what the bars are, and why timings are marked."""
    rows, intervals = [row for line in lines for row in line.rows], SpeedupIntervals(summary["timings"])
    bars = any(intervals.of(row) is not None for row in rows if row["scaling"] == STRONG)
    noise = "Bars are 90% intervals." if bars else "Each size was timed once, so there are no intervals."
    return sentences(noise, flag_words(rows))


def _chart(summary: Summary, lines: Sequence[Line], measure: Measure) -> Chart:
    """Return a series for each line, the fastest in colour, and the ideal."""
    intervals, places = SpeedupIntervals(summary["timings"]), places_of(summary)
    series = []
    for number, line in enumerate(lines):
        points = []
        for row in line.rows:
            workers = row["params"]["num_gpus"]
            of = workers if measure == "efficiency" else 1
            ends = intervals.of(row) if row["scaling"] == STRONG else None
            low, high = (None, None) if ends is None else (ends[0] / of, ends[1] / of)
            interval = between(low, high, three_digits)
            value = f"{TITLES[measure].lower()} {three_digits(row[measure])}{flag_mark([row])}{interval}"
            points.append(
                Point(
                    x=workers,
                    y=row[measure],
                    low=low,
                    high=high,
                    cells=[places[each] for each in row["cells"]],
                    words=[row["label"], value],
                    note=f"{row[measure]:.2f}" if row is line.rows[-1] and number < MOST_LINES else "",
                )
            )
        coloured = number < MOST_LINES
        name = f"{line.name}{flag_mark(line.rows)}" if coloured else "other batches" if number == MOST_LINES else ""
        colour, shape = COLOURS[number] if coloured else "soft", SHAPES[number % len(SHAPES)]
        series.append(Series(words=name, points=points, colour=colour, line="solid", shape=shape))
    workers = sorted(set(chain.from_iterable(line.sizes for line in lines)))
    most = max(point.high or point.y for each in series for point in each.points)
    # beyond it the ideal would press the speed-ups together; where nothing is faster than one worker, a short line
    end = min(workers[-1], max(most, SHORT_IDEAL))
    ideal = [(1, 1.0), (workers[-1], 1.0) if measure == "efficiency" else (end, end)]
    series.append(
        Series(words="ideal", points=[Point(x=x, y=y) for x, y in ideal], colour="soft", line="dashed"),
    )
    log = workers[-1] >= LOG_FROM_WORKERS
    both = log and measure == "speedup"
    return Chart(
        x=Axis(label="workers", log=log, ticks=workers),
        y=Axis(label=LABELS[measure], log=both, start=None if both else 0.0),
        series=series,
    )


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
