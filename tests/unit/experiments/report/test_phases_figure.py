"""The figure of the phases of a step."""

import pytest

from scalestudy.experiments.analysis.measures.usable import PHASES
from scalestudy.experiments.report.phases_figure import PHASE_PARTS, phases_figure
from tests.support.rich_study import rich_summary, step_seconds


def test_each_bar_has_the_milliseconds_of_every_phase_and_its_cells():
    summary = rich_summary()
    bars = phases_figure(summary).numbers.bars
    assert tuple(PHASE_PARTS) == tuple(PHASES)
    for bar, row in zip(bars, summary["timings"], strict=True):
        assert bar.label == f"{row['label']}{' †' if row['flags'] else ''}"
        assert bar.values == [1000 * row["step_seconds"][phase] for phase in PHASES]
        assert [summary["cells"][place]["label"] for place in bar.cells] == row["cells"]
        # the phases of the law add up to its step; runs scatter by 2 %
        workers, batch = row["params"]["num_gpus"], row["params"]["batch_size"]
        assert sum(bar.values) == pytest.approx(1000 * step_seconds(workers, batch / workers), rel=0.05)


def test_timings_whose_phases_were_not_measured_have_no_bar():
    summary = rich_summary()
    for row in summary["timings"][1:]:
        row["step_seconds"] = {"value": None, "why": "phases were not measured"}
    assert [bar.label for bar in phases_figure(summary).numbers.bars] == [summary["timings"][0]["label"]]
