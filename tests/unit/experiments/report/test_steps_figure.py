"""The figure of the steps to the target by batch size."""

import pytest

from scalestudy.experiments.report.steps_figure import steps_figure
from tests.support.rich_study import B_CRIT, BATCHES, S_MIN, rich_summary, steps_to_target

LAW = "S_min (1 + B_crit / B)"


def series_of(figure):
    return {each.words: each for each in figure.numbers.series}


def test_steps_stand_over_the_examples_that_a_step_has():
    """1437 examples are three steps of 512 or less, 479 on the average; of 2048 one step of 1437."""
    summary = rich_summary()
    part = summary["statistical_efficiency"]
    examples = {512: 479.0, 1024: 718.5, 2048: 1437.0}
    points = [
        {**point, "examples_per_step": examples[point["batch_size"]]}
        for point in part["points"]
        if point["batch_size"] in examples
    ]
    figure = steps_figure(rich_summary(statistical_efficiency={**part, "points": points}))
    assert figure.numbers.x.ticks == [479, 718, 1437]
    assert "examples a step" in figure.numbers.x.label
    assert "fewer examples than the batch size" in figure.caption
    drawn = [point.x for each in figure.numbers.series if each.shape for point in each.points]
    assert drawn == [479.0, 718.5, 1437.0]
    whole = steps_figure(summary)
    assert whole.numbers.x.ticks == list(BATCHES)
    assert "batch size (examples" in whole.numbers.x.label
    assert "fewer examples" not in whole.caption


def test_the_law_is_drawn_where_the_data_identify_it_and_both_critical_batches_are_told():
    summary = rich_summary()
    part = summary["statistical_efficiency"]
    figure = steps_figure(summary)
    law, band = series_of(figure)[LAW], series_of(figure)["its 90% band"]
    # S(B) = S_min (1 + B_crit / B)
    assert [(point.x, point.y) for point in law.points] == [
        (batch, pytest.approx(S_MIN * (1 + B_CRIT / batch))) for batch in BATCHES
    ]
    assert [(point.low / point.y, point.high / point.y) for point in band.points] == [
        (pytest.approx(0.9), pytest.approx(1.1))
    ] * len(BATCHES)
    assert (law.line, band.band) == ("solid", True)
    assert "at this target" in figure.caption
    assert "20 % more steps than perfect scaling at" in figure.caption
    unknown = {**part["s_min"], "identified": False, "why": "S_min may be anything"}
    without = steps_figure(rich_summary(statistical_efficiency={**part, "s_min": unknown}))
    assert not {LAW, "its 90% band"} & set(series_of(without))
    assert "No law is drawn" in without.caption


def test_each_regime_has_its_shape_and_a_rate_at_the_edge_is_hollow():
    figure = steps_figure(rich_summary())
    edge = ", rate at the edge of the grid"
    looks = {words: (each.shape, each.hollow) for words, each in series_of(figure).items() if each.shape}
    assert looks == {
        f"perfect scaling{edge}": ("circle", True),
        "perfect scaling": ("circle", False),
        "diminishing returns": ("square", False),
        f"diminishing returns{edge}": ("square", True),
    }


def test_a_point_has_the_range_over_its_trainings_and_their_cells():
    summary = rich_summary()
    (point,) = series_of(steps_figure(summary))["perfect scaling"].points
    measured = summary["statistical_efficiency"]["points"][1]
    assert (point.x, point.y, point.low, point.high) == (256, *(measured[key] for key in ("steps", "low", "high")))
    labels = [summary["cells"][place]["label"] for place in point.cells]
    assert labels == [f"workers={workers} batch=256 lr=0.1" for workers in (1, 2, 4, 8)]
    assert point.words == [
        "batch 256 at its best rate, 0.1",
        "331 steps to 0.85 (308 to 357)",
        "20 trainings",
        "perfect scaling",
    ]


def test_the_ideal_takes_half_the_steps_at_twice_the_batch():
    start, end = series_of(steps_figure(rich_summary()))["ideal"].points
    # 128 to 2048 are four doublings
    assert (start.x, end.x, end.y) == (128, 2048, pytest.approx(start.y / 2**4))
    assert start.y == pytest.approx(1.02 * steps_to_target(128))


def test_the_critical_batch_and_the_noise_scale_are_shaded_over_their_intervals():
    critical, noise = steps_figure(rich_summary()).numbers.uprights
    assert (critical.at, critical.low, critical.high) == (1200, pytest.approx(984), pytest.approx(1416))
    assert (noise.at, noise.low, noise.high) == (980, 720, 1330)
    assert critical.words == "B_crit 1,200 (984 to 1,416, shaded)"
    part = rich_summary()["statistical_efficiency"]
    far = {**part, "b_crit": {"value": 8_200.0, "low": None, "high": None}}  # 4 times 2048 are 8192
    (only,) = steps_figure(rich_summary(statistical_efficiency=far)).numbers.uprights
    assert only == noise
