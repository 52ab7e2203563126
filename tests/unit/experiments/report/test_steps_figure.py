"""The figure of the steps to the target by batch size."""

import pytest

from scalestudy.experiments.report.steps_figure import law_curve, steps_figure
from tests.support.rich_study import rich_summary, steps_to_target


def test_steps_stand_over_the_examples_that_a_step_has():
    """1437 examples are three steps of 512 or less, 479 on the average; of 2048 one step of 1437."""
    summary = rich_summary()
    part = summary["statistical_efficiency"]
    examples = {512: 479.0, 1024: 718.5, 2048: 1437.0}
    points = [
        {
            **point,
            "examples_per_step": examples[point["batch_size"]],
            "fitted_steps": steps_to_target(examples[point["batch_size"]]),
        }
        for point in part["points"]
        if point["batch_size"] in examples
    ]
    places, steps = law_curve(part, points)
    assert (places[0], steps[0]) == (479, pytest.approx(points[0]["fitted_steps"]))
    assert (places[-1], steps[-1]) == (pytest.approx(1437), pytest.approx(points[-1]["fitted_steps"]))
    figure = steps_figure(rich_summary(statistical_efficiency={**part, "points": points}))
    for drawn in (">479<", ">718<", ">1437<", "examples a step"):
        assert drawn in figure.svg
    assert ">512<" not in figure.svg
    assert ">512<" in steps_figure(summary).svg
