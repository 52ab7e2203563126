"""The measured rule of the learning rate."""

import json

import pytest

from scalestudy.experiments.analysis.answers.lr_rule import lr_rule
from scalestudy.experiments.analysis.measures.parts import present
from tests.support.batch_studies import BatchTruth
from tests.support.batch_summaries import analysed, rule_of, study

WIDE = "[0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2]"


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


def test_the_law_of_the_best_rate_stands_beside_the_rates_tried():
    part = rule_of(BatchTruth(exponent=0.5, noise=0.01), rates=WIDE)
    for point in part["points"]:
        truth = 0.4 * (point["batch_size"] / 256) ** 0.5
        assert 0.98 * point["low"] < truth < 1.02 * point["high"]
        assert point["fitted_rate"] == pytest.approx(truth, 0.05)
        assert point["best_rate"] in (0.1, 0.2, 0.4, 0.8)


def test_rates_that_the_seeds_can_not_tell_apart_widen_it():
    sharp, shallow = (rule_of(BatchTruth(curvature=curvature), rates=WIDE) for curvature in (0.5, 0.02))
    lengths = [part["exponent"]["high"] - part["exponent"]["low"] for part in (sharp, shallow)]
    assert lengths[1] > 1.5 * lengths[0]


def test_best_rates_at_the_edges_are_marked_and_widen_the_interval():
    wide, short = (rule_of(rates=rates) for rates in (WIDE, "[0.2, 0.4, 0.8]"))
    assert [point["edge"] for point in short["points"]] == ["lowest", "lowest", None, "highest", "highest"]
    lengths = [part["exponent"]["high"] - part["exponent"]["low"] for part in (wide, short)]
    assert lengths[1] > 1.5 * lengths[0]
    assert short["exponent"]["low"] < 1 < short["exponent"]["high"]


def test_one_rate_a_batch_size_makes_no_rule():
    part = rule_of(rates="[0.4]", epochs=100)
    assert (part["exponent"]["value"], part["nearest"]) == (None, None)
    assert "one rate" in part["why"]
    assert all(point["fitted_rate"] is None for point in part["points"])


def test_a_rule_that_was_hardly_learnt_is_not_identified():
    part = rule_of(BatchTruth(curvature=0.0, noise=0.2), rates="[0.2, 0.4]", batches="[128, 192, 256]", seeds="[0]")
    assert part["exponent"]["identified"] is False
    assert part["nearest"] is None
    assert "batch sizes further apart" in part["why"]


@pytest.mark.parametrize("batches", ["[128]", "[128, 256]"])
def test_below_three_batch_sizes_there_is_no_exponent(batches):
    part = rule_of(batches=batches)
    assert part["exponent"]["value"] is None
    assert "needs 3" in part["why"]


@pytest.mark.parametrize("targets", ["[]", "[0.8]"])
def test_without_a_target_that_is_reached_there_are_best_rates_and_no_rule(targets):
    # 3 epochs of 20,480 examples: no training is near its end
    part = rule_of(BatchTruth(noise=0.0), targets=targets, epochs=3)
    assert part["target_or_metric"] == "test accuracy at the last evaluation"
    assert part["target"] is None
    assert [point["best_rate"] for point in part["points"]] == [0.1, 0.2, 0.4, 0.8, 1.6]
    assert part["exponent"]["value"] is None
    assert part["why"]


def test_the_rule_that_was_applied_is_part_of_it():
    # sqrt from 256 on: a nominal rate that is the best at every batch size is an effective one that rises as √B
    part = rule_of(BatchTruth(exponent=0.0, noise=0.0), rates=WIDE, train=", lr_rule: sqrt, base_batch_size: 256")
    assert part["applied_rule"] == "sqrt"
    assert part["exponent"]["value"] == pytest.approx(0.5, abs=1e-3)
    point = part["points"][0]
    assert (point["best_rate"], point["effective_rate"]) == (0.4, pytest.approx(0.2))  # · √(64/256)
    assert point["fitted_rate"] == pytest.approx(0.4, 1e-3)


def test_adascale_has_no_exponent():
    part = rule_of(train=", lr_rule: adascale")
    assert part["exponent"]["value"] is None
    assert "adascale" in part["why"]
    assert part["points"][0]["effective_rate"] is None


def test_an_exponent_that_holds_two_rules_is_nearest_to_none():
    part = rule_of(BatchTruth(exponent=0.75), batches="[192, 256, 320]", rates="[0.2, 0.4, 0.8]")
    assert present(part["exponent"])
    assert part["exponent"].get("identified", True)
    assert part["nearest"] is None
    assert part["exponent"]["low"] < 0.75 < part["exponent"]["high"]


def test_each_combination_of_other_keys_has_its_own_rule():
    part = rule_of(sweep=", train.lr_rule: [none, linear]", seeds="[0]", rates=WIDE)
    assert [part["of"], part["others"][0]["of"]] == ["lr_rule=none", "lr_rule=linear"]
    assert part["others"][0]["exponent"]["value"] == pytest.approx(part["exponent"]["value"] + 1, abs=1e-6)


@pytest.mark.parametrize("ending", ["diverged", "out_of_memory", "failed", "skipped"])
def test_trials_of_which_every_one_ended_so(ending):
    part = rule_of(endings={"*": ending})
    assert (part["value"], part["why"]) == (None, "no training finished")


def test_a_study_that_never_began():
    spec, plan, _ = study()
    assert analysed(spec, plan, [], lr_rule)["value"] is None
    assert lr_rule(spec, [])["why"] == "the study has no cells"
