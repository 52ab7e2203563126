"""The figures of laws – which are drawn, over what, and what is said of those that are not."""

import pytest

from scalestudy.experiments.report.batch_figures import law_curve, steps_figure
from scalestudy.experiments.report.speedup_figures import speedup_figure
from tests.support.rich_study import rich_summary, steps_to_target, unidentified


@pytest.fixture(scope="module")
def summary():
    return rich_summary()


def test_no_law_is_drawn_that_the_data_do_not_identify(summary):
    usl = {**summary["usl"], "fits": [{**fit, "extrapolates": False} for fit in summary["usl"]["fits"]]}
    model = {**summary["throughput_model"], "beta_r": unidentified(None, "time a third number of workers")}
    part = summary["statistical_efficiency"]
    steps = {**part, "b_crit": unidentified(1200.0, "try batch sizes above 2048")}
    unknown = rich_summary(usl=usl, throughput_model=model, statistical_efficiency=steps)
    speedup, steps = speedup_figure(unknown), steps_figure(unknown)
    assert "law, where measured" not in speedup.svg
    assert "No law is drawn" in speedup.caption
    assert "S_min (1 + B_crit" not in steps.svg
    assert "No law is drawn: S_min 60 (53 to 67); B_crit not identified: try batch sizes above 2048." in steps.caption


def flagged_timings(summary, *batches):
    """The timings of some batch sizes (all where none is named), marked."""
    rows = summary["timings"]
    marked = [row for row in rows if not batches or row["params"]["batch_size"] in batches]
    return [{**row, "flags": ["shared_node"]} if row in marked else row for row in rows]


def test_a_law_that_rests_on_flagged_timings_is_drawn_and_says_so(summary):
    asked = rich_summary(usl={**summary["usl"], "flagged": True}, timings=flagged_timings(summary))
    figure = speedup_figure(asked)
    assert "law, where measured" in figure.svg
    assert "The curves are Gunther's law" in figure.caption
    assert "Flagged timings (†) were used all the same." in figure.caption
    left_out = speedup_figure(rich_summary(timings=flagged_timings(summary)))
    assert "law, where measured" not in left_out.svg


def test_why_no_law_is_drawn_is_the_reason_of_the_line_drawn(summary):
    """The topmost line is of batch 2048; the first of the fits without a law is of another batch."""
    fits = [{**fit, "extrapolates": False, "why": f"of batch {fit['batch_size']}"} for fit in summary["usl"]["fits"]]
    model = {"value": None, "why": "x"}
    usl = {**summary["usl"], "fits": fits[::-1]}
    caption = speedup_figure(rich_summary(usl=usl, throughput_model=model)).caption
    assert "No law is drawn through the points of batch=2048: of batch 2048." in caption
    usl = {**usl, "fits": fits[1:]}
    rows = flagged_timings(summary, 2048)
    caption = speedup_figure(rich_summary(usl=usl, throughput_model=model, timings=rows)).caption
    assert "No law is drawn through the points of batch=2048: its timings are marked shared node." in caption


def test_steps_stand_over_the_examples_that_a_step_has(summary):
    """1437 examples are three steps of 512 or less, 479 on the average; of 2048 one step of 1437."""
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


def test_two_points_are_no_law(summary):
    part = summary["statistical_efficiency"]
    assert "S_min (1 + B_crit" in steps_figure(summary).svg
    two = rich_summary(statistical_efficiency={**part, "points": part["points"][:2]})
    assert "S_min (1 + B_crit" not in steps_figure(two).svg


@pytest.mark.parametrize("key", ["sigma", "kappa"])
def test_a_law_that_is_half_identified_ends_where_measuring_ended(summary, key):
    fits = [{**fit, key: unidentified(0.0, "time more")} for fit in summary["usl"]["fits"]]
    drawn = speedup_figure(rich_summary(usl={**summary["usl"], "fits": fits})).svg
    assert "law, where measured" in drawn
    assert "law, beyond" not in drawn
