"""The measured rule of the learning rate."""

import json

import pytest

from scalestudy.experiments.analysis.answers.lr_rule import lr_rule
from tests.support.batch_studies import BatchTruth
from tests.support.batch_summaries import analysed, rule_of, study

WIDE = "[0.0125, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4]"


@pytest.mark.parametrize(("exponent", "nearest"), [(1.0, "linear"), (0.5, "sqrt"), (0.0, "constant")])
def test_the_rule_is_found(exponent, nearest):
    part = rule_of(BatchTruth(exponent=exponent, noise=0.01), rates=WIDE)
    assert part["nearest"] == nearest
    assert part["exponent"]["low"] < exponent < part["exponent"]["high"]
    assert part["exponent"]["value"] == pytest.approx(exponent, abs=0.1)
    assert part["target_or_metric"] == "soonest to 0.8 test accuracy"
    assert part["target"] == 0.8
    assert part["why"] is None
    assert json.loads(json.dumps(part, allow_nan=False)) == part


def test_what_the_grid_leaves_open_is_in_the_interval():
    """The best rates lie on a line to the last digit, and the exponent is still known only to the grid's spacing."""
    part = rule_of(BatchTruth(noise=0.0), rates=WIDE)
    assert [point["best_rate"] for point in part["points"]] == [0.1, 0.2, 0.4, 0.8, 1.6]
    assert part["by_resolution"]
    # x − mean = −2 … 2 log 2, their squares 10 log² 2; ranges log 2: 1.6449 · √(1/12/10) = 0.1502
    assert part["exponent"]["high"] - part["exponent"]["value"] == pytest.approx(0.1502, abs=1e-4)
    assert part["points"][0]["fitted_rate"] == pytest.approx(0.1)


def test_rates_that_the_seeds_can_not_tell_apart_widen_it():
    sharp, shallow = (rule_of(BatchTruth(curvature=curvature), rates=WIDE) for curvature in (0.5, 0.02))
    lengths = [part["exponent"]["high"] - part["exponent"]["low"] for part in (sharp, shallow)]
    assert lengths[1] > 1.5 * lengths[0]


def test_a_rate_at_the_edge_is_a_bound_and_left_out():
    part = rule_of(BatchTruth(noise=0.01), rates="[0.1, 0.2, 0.4, 0.8, 1.6]")
    assert [point["edge"] for point in part["points"]] == ["lowest", None, None, None, "highest"]
    assert part["exponent"]["value"] == pytest.approx(1, abs=0.01)
    part = rule_of(BatchTruth(noise=0.01), rates="[0.2, 0.4, 0.8]")
    assert part["exponent"]["value"] is None
    assert part["nearest"] is None
    assert "rates below 0.2 at batch 64" in part["why"]
    assert "rates above 0.8 at batch 1024" in part["exponent"]["why"]
    assert all(point["fitted_rate"] is None for point in part["points"])


@pytest.mark.parametrize("batches", ["[128]", "[128, 256]"])
def test_below_three_batch_sizes_there_is_no_exponent(batches):
    part = rule_of(batches=batches)
    assert part["exponent"]["value"] is None
    assert "needs 3 batch sizes" in part["why"]


def test_without_a_target_the_metric_decides():
    # 3 epochs of 20,480 examples: no training is near its end
    part = rule_of(BatchTruth(noise=0.0), targets="[]", epochs=3)
    assert part["target_or_metric"] == "test accuracy at the last evaluation"
    assert part["target"] is None
    assert part["exponent"]["value"] == pytest.approx(1)
    part = rule_of(BatchTruth(noise=0.0), targets="[0.8]", epochs=3)
    assert part["target_or_metric"] == "test accuracy at the last evaluation"


def test_the_rule_that_was_applied_is_part_of_it():
    # sqrt from 256 on: a nominal rate that is the best at every batch size is an effective one that rises as √B
    part = rule_of(BatchTruth(exponent=0.0, noise=0.0), rates=WIDE, train=", lr_rule: sqrt, base_batch_size: 256")
    assert part["applied_rule"] == "sqrt"
    assert part["exponent"]["value"] == pytest.approx(0.5)
    point = part["points"][0]
    assert (point["best_rate"], point["effective_rate"]) == (0.4, pytest.approx(0.2))  # · √(64/256)
    assert point["fitted_rate"] == pytest.approx(0.4)


def test_adascale_has_no_exponent():
    part = rule_of(train=", lr_rule: adascale")
    assert part["exponent"]["value"] is None
    assert "adascale" in part["why"]
    assert part["points"][0]["effective_rate"] is None


def test_an_exponent_that_holds_two_rules_is_nearest_to_none():
    part = rule_of(BatchTruth(exponent=0.75), batches="[128, 256, 512]", rates=WIDE)
    assert part["nearest"] is None
    assert part["exponent"]["low"] < 0.75 < part["exponent"]["high"]


def test_each_combination_of_other_keys_has_its_own_rule():
    part = rule_of(sweep=", train.lr_rule: [none, linear]", seeds="[0]", rates=WIDE)
    assert [part["of"], part["others"][0]["of"]] == ["lr_rule=none", "lr_rule=linear"]
    assert part["others"][0]["exponent"]["value"] == pytest.approx(part["exponent"]["value"] + 1)


@pytest.mark.parametrize("ending", ["diverged", "out_of_memory", "failed", "skipped"])
def test_trials_of_which_every_one_ended_so(ending):
    part = rule_of(endings={"*": ending})
    assert (part["value"], part["why"]) == (None, "no training finished")


def test_a_study_that_never_began():
    spec, plan, _ = study()
    assert analysed(spec, plan, [], lr_rule)["value"] is None
    assert lr_rule(spec, [])["why"] == "the study has no cells"
