"""What the figure of efficiency draws; test_page.py has its words."""

import re

import numpy as np
import pytest

from scalestudy.experiments.analysis.measures.scaling import SpeedupIntervals
from scalestudy.experiments.report.drawing import PALETTE
from scalestudy.experiments.report.efficiency_figure import efficiency_figure, lines_of_batches
from tests.support.rich_study import rich_summary

BAR = r'<path d="M ([\d.]+) ([\d.]+) \nL \1 ([\d.]+) \n"[^>]*stroke: '


def test_bars_are_the_intervals_of_the_measured_speed_ups():
    summary = rich_summary()
    fastest, intervals = lines_of_batches(summary)[0], SpeedupIntervals(summary["timings"])
    assert fastest.sizes == [1, 2, 4, 8]
    ends = [end / row["params"]["num_gpus"] for row in fastest.rows[1:] for end in intervals.of(row)]
    bars = re.findall(BAR + PALETTE[0].lower(), efficiency_figure(summary).svg)
    drawn = [float(height) for _, *both in bars for height in both]
    assert len(drawn) == 6  # one worker has no bar
    scale, zero = np.polyfit(ends, drawn, 1)
    assert scale < 0  # heights of an SVG count downwards
    assert np.multiply(scale, ends) + zero == pytest.approx(drawn, abs=0.01)


def test_what_was_timed_once_has_no_bars():
    summary = rich_summary()
    for row in summary["timings"]:
        row["scatter"]["seconds"] = {"value": None, "why": "fewer than two runs measured it", "n": 1}
    figure = efficiency_figure(summary)
    assert not re.findall(BAR + PALETTE[0].lower(), figure.svg)
    assert "Bars" not in figure.caption
