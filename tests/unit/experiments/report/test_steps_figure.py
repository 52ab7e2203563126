"""The figure of the steps to the target by batch size."""

from scalestudy.experiments.report.steps_figure import steps_figure
from tests.support.rich_study import rich_summary


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
    for drawn in (">479<", ">718<", ">1437<", "examples a step"):
        assert drawn in figure.svg
    assert ">512<" not in figure.svg
    assert ">512<" in steps_figure(summary).svg


def test_the_law_is_drawn_where_the_data_identify_it_and_both_critical_batches_are_told():
    summary = rich_summary()
    part = summary["statistical_efficiency"]
    figure = steps_figure(summary)
    assert ">S_min (1 + B_crit / B)<" in figure.svg
    assert "at this target" in figure.caption
    assert "20 % more steps than perfect scaling at" in figure.caption
    unknown = {**part["s_min"], "identified": False, "why": "S_min may be anything"}
    without = steps_figure(rich_summary(statistical_efficiency={**part, "s_min": unknown}))
    assert ">S_min (1 + B_crit / B)<" not in without.svg
    assert "No law is drawn" in without.caption
