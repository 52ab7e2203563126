"""What the figures of speed-up and efficiency draw; test_page.py has their words."""

import pytest

from scalestudy.experiments.analysis.measures.scaling import SpeedupIntervals
from scalestudy.experiments.report import speedup_figures
from scalestudy.experiments.report.charts import COLOURS, Point
from scalestudy.experiments.report.speedup_figures import lines_of_batches, scaling_figure
from tests.support.rich_study import rich_summary


@pytest.mark.parametrize("measure", ["speedup", "efficiency"])
def test_bars_are_the_intervals_of_the_measured_speed_ups(measure):
    summary = rich_summary()
    fastest, intervals = lines_of_batches(summary)[0], SpeedupIntervals(summary["timings"])
    assert fastest.sizes == [1, 2, 4, 8]
    first, *points = scaling_figure(summary, measure).numbers.series[0].points
    assert (first.x, first.y, first.low, first.high) == (1, 1.0, None, None)  # one worker has no bar
    for row, point in zip(fastest.rows[1:], points, strict=True):
        of = row["params"]["num_gpus"] if measure == "efficiency" else 1
        assert (point.x, point.y) == (row["params"]["num_gpus"], row[measure])
        assert (point.low, point.high) == tuple(end / of for end in intervals.of(row))
        assert point.low < point.y < point.high


def test_what_was_timed_once_has_no_bars():
    summary = rich_summary()
    for row in summary["timings"]:
        row["scatter"]["seconds"] = {"value": None, "why": "fewer than two runs measured it", "n": 1}
    figure = scaling_figure(summary, "efficiency")
    assert {point.low for series in figure.numbers.series for point in series.points} == {None}
    assert "Bars" not in figure.caption


def test_a_point_belongs_to_every_cell_of_its_timing_and_tells_what_was_measured():
    summary = rich_summary()
    labels = [row["label"] for row in summary["cells"]]
    last = scaling_figure(summary, "speedup").numbers.series[-2].points[-1]
    assert [labels[place] for place in last.cells] == [
        f"workers=8 batch=128 lr={rate:g}" for rate in (0.05, 0.1, 0.2, 0.4)
    ]
    assert last.words == ["workers=8 batch=128", "speed-up 1.21 † (1.20 to 1.21)"]
    assert last.note == "1.21"


def test_the_ideal_is_a_worker_each_and_no_higher_than_what_was_measured():
    summary = rich_summary()
    most = max(row["speedup"] for row in summary["timings"])
    assert scaling_figure(summary, "efficiency").numbers.series[-1].points == [Point(x=1, y=1.0), Point(x=8, y=1.0)]
    one, end = scaling_figure(summary, "speedup").numbers.series[-1].points
    assert (one.x, one.y, end.x) == (1, 1.0, end.y)
    assert most <= end.x < 1.05 * most
    for row in summary["timings"]:
        row["speedup"] = row["speedup"] and 1 / row["params"]["num_gpus"]
        row["scatter"]["seconds"] = {"value": None, "why": "fewer than two runs measured it", "n": 1}
    *_, slower = scaling_figure(summary, "speedup").numbers.series
    assert slower.points[-1] == Point(x=1.25, y=1.25), "a line, though nothing is faster than one worker"


def test_the_fastest_lines_have_colours_and_the_others_one_entry(monkeypatch):
    monkeypatch.setattr(speedup_figures, "MOST_LINES", 2)
    *lines, _ = scaling_figure(rich_summary(), "efficiency").numbers.series
    assert [(line.words, line.colour) for line in lines] == [
        ("batch=2048", COLOURS[0]),
        ("batch=1024", COLOURS[1]),
        ("other batches", "soft"),
        ("", "soft"),
        ("", "soft"),
    ]


@pytest.mark.parametrize(("most", "log"), [(8, False), (16, True)])
def test_from_sixteen_workers_on_the_axis_is_logarithmic(most, log):
    summary = rich_summary()
    for row in summary["timings"]:
        if row["params"]["num_gpus"] == 8:
            row["params"]["num_gpus"] = most
    speedup, efficiency = (scaling_figure(summary, each).numbers for each in ("speedup", "efficiency"))
    assert [(each.x.log, each.y.log) for each in (speedup, efficiency)] == [(log, log), (log, False)]
    assert speedup.x.ticks == efficiency.x.ticks == [1, 2, 4, most]
