"""Steps to a target over batch sizes and the gradient noise scale, from trials to the part of the summary."""

import json
import math
from unittest.mock import ANY

import numpy as np
import pytest
from scipy import special

from scalestudy.experiments.analysis.answers.efficiency import noise_scale, statistical_efficiency, tunings
from scalestudy.experiments.analysis.answers.posterior import Posterior
from scalestudy.experiments.analysis.answers.remedies import Steps
from scalestudy.experiments.analysis.measures.cells import gather
from scalestudy.experiments.analysis.measures.metric import ACCURACY
from scalestudy.experiments.analysis.measures.parts import missing, present
from scalestudy.experiments.analysis.measures.trainings import Training
from tests.bench import batch_law
from tests.bench.batch_law import PARTS, RATES, SIZES, law_tallies, noise_tally, seed_tally
from tests.support.batch_studies import BatchTruth
from tests.support.batch_summaries import analysed, efficiency_of, study
from tests.support.timed_studies import lent_study
from tests.support.trials import Law

EXACT = BatchTruth(noise=0.0)
MISSED = "half of the trainings or more missed the target"


def point(part, batch_size):
    (found,) = [each for each in part["points"] if each["batch_size"] == batch_size]
    return found


def test_without_noise_the_truth_is_found():
    part = efficiency_of(EXACT)
    assert part["target"] == 0.8
    assert part["s_min"]["value"] == pytest.approx(400, 1e-3)
    assert part["b_crit"]["value"] == pytest.approx(256, 1e-3)
    assert part["near_perfect"]["value"] == pytest.approx(256 / 5, 1e-3)
    assert part["e_min"]["value"] == pytest.approx(400 * 256, 1e-3)
    assert part["why"] is None
    # at batch 256 = B_crit: 400 · (1 + 1) steps at the rate 0.4
    assert point(part, 256) == {
        "batch_size": 256,
        "examples_per_step": 256,
        "learning_rate": 0.4,
        "steps": pytest.approx(800),
        "low": pytest.approx(800),
        "high": pytest.approx(800),
        "estimate": {"value": pytest.approx(800, 1e-3), "low": ANY, "high": ANY},
        "examples": pytest.approx(800 * 256),
        "n": 3,
        "edge": None,
        "rates": 7,
        "upper_bound": False,
        "stopped": 0,
        "regime": "diminishing returns",
        "fitted_steps": pytest.approx(800, 1e-3),
    }
    assert part["regimes"] == {"perfect_up_to": pytest.approx(64, 1e-3), "flat_from": pytest.approx(1024, 1e-3)}
    assert json.loads(json.dumps(part, allow_nan=False)) == part


def test_the_same_training_on_more_workers_is_no_second_one():
    grid = {"batches": "[64, 256, 1024]", "rates": "[0.1, 0.4, 1.6]"}
    one, three = efficiency_of(workers="[1]", **grid), efficiency_of(workers="[1, 2, 4]", **grid)
    assert three["num_gpus"] == [1, 2, 4]
    assert point(three, 256)["n"] == 3
    for name in ("s_min", "b_crit", "e_min"):
        assert three[name] == pytest.approx(one[name], rel=0.01)


def test_a_lent_training_is_no_second_one():
    text = (
        "name: x\ntrain: {epochs: 6}\nsearch: {method: adaptive}\nbudget: {trials: 100}\ntargets: {accuracy: [0.3]}\n"
        "sweep: {num_gpus: [1, 2, 4], batch_size: [32, 64], learning_rate: [0.2, 0.4]}"
    )
    study = lent_study(text, Law(learning=130), train_with=2)
    part = analysed(study.spec, study.plan, study.trials, statistical_efficiency)
    assert part["num_gpus"] == [2]
    assert {each["n"] for each in part["points"]} == {3}


@pytest.mark.parametrize(
    ("train", "more", "pooled"),
    [
        ("", "", [1, 2]),
        (", gradient_sync: flat", "", [1, 2]),
        (", gradient_sync: bf16", "", [1]),
        (", gradient_sync: powersgd", "", [1]),
        (", gradient_sync: local_sgd", "", [1]),
        (", lr_rule: adascale", "", [1]),
        ("", "workload: {model: mlp, model_args: {batch_norm: true}}", [1]),
        (", sync_batch_norm: true", "workload: {model: mlp, model_args: {batch_norm: true}}", [1, 2]),
        ("", "workload: {model: mlp, model_args: {dropout: 0.5}}", [1]),
    ],
)
def test_what_depends_on_workers_is_not_pooled_over_them(train, more, pooled):
    part = efficiency_of(workers="[1, 2]", batches="[64, 128]", rates="[0.2]", train=train, more=more)
    assert part["num_gpus"] == pooled


def test_each_combination_is_judged_by_itself():
    sweep = ", train.gradient_sync: [ddp, bf16]"
    part = efficiency_of(workers="[1, 2]", batches="[64, 128]", rates="[0.2]", sweep=sweep)
    assert {each["of"]: each["num_gpus"] for each in (part, *part["others"])} == {
        "gradient_sync=ddp": [1, 2],
        "gradient_sync=bf16": [1],
    }


def test_the_training_set_is_what_an_epoch_goes_through():
    assert efficiency_of(batches="[64, 128]", rates="[0.2]", law=Law(samples=20480))["training_examples"] == 20480


def test_rates_at_the_edge_of_the_grid_are_marked_and_widen_what_is_known():
    # at batch 64 the best rate is 0.1, at 1024 it is 1.6
    wide, short = (efficiency_of(rates=rates) for rates in ("[0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2]", "[0.2, 0.4, 0.8]"))
    assert [each["edge"] for each in wide["points"]] == [None] * 5
    assert [each["edge"] for each in short["points"]] == ["lowest", "lowest", None, "highest", "highest"]
    widths = []
    for part in (wide, short):
        assert part["s_min"]["low"] < 400 < part["s_min"]["high"]
        assert part["b_crit"]["low"] < 256 < part["b_crit"]["high"]
        widths.append(part["s_min"]["high"] / part["s_min"]["low"] - 1)
    assert widths[1] > 2 * widths[0]


def test_one_rate_is_no_tuning():
    part = efficiency_of(rates="[0.4]", epochs=100)
    assert part["b_crit"]["identified"] is False
    assert (part["s_min"]["low"], part["regimes"], part["curve"]) == (None, None, [])
    assert "trained at one rate" in part["why"]
    assert "other rates than 0.4 at batch 64" in part["why"]
    assert all(each["fitted_steps"] is None and each["regime"] is None for each in part["points"])
    assert all(each["estimate"]["low"] < each["estimate"]["high"] for each in part["points"])


@pytest.mark.parametrize(("rates", "lawful"), [("[0.1, 0.2, 0.4, 0.8]", True), ("[0.4]", False)])
def test_steps_of_a_batch_size_that_was_not_tried_need_a_law_that_is_identified(rates, lawful):
    spec, plan, trials = study(batches="[64, 128, 256, 512]", rates=rates)
    posterior = Posterior(spec, gather(plan, trials, ACCURACY))
    (tuned,) = tunings(posterior, {"target": 0.8, "choice": missing(""), "recommended": missing("")})
    steps = Steps.of(posterior, tuned)
    assert steps.at(256) is not None
    assert (steps.at(1024) is not None) == lawful
    if lawful:
        assert steps.at(1024).value == tuned.law.steps(1024).value


def test_the_same_cell_has_the_same_steps_as_in_its_time():
    spec, plan, trials = study(batches="[64, 256]", workers="[1, 2]")
    posterior = Posterior(spec, gather(plan, trials, ACCURACY))
    (tuned,) = tunings(posterior, {"target": 0.8, "choice": missing(""), "recommended": missing("")})
    times = posterior.times(0.8)
    for each in tuned.points:
        label = f"workers=1 batch={each.measured.batch_size} lr={each.measured.best.rate:g}"
        place = times.labels.index(label)
        assert np.log(each.estimate.value) == pytest.approx(times.learnt_of([place]).mean(), abs=0.002)
        low, high = np.exp(np.quantile(times.learnt_of([place]), [0.05, 0.95]))
        assert (each.estimate.low, each.estimate.high) == pytest.approx((low, high))


@pytest.mark.parametrize("batches", ["[128]", "[128, 256]"])
def test_below_three_batch_sizes_there_are_points_and_no_law(batches):
    part = efficiency_of(batches=batches)
    assert part["points"]
    for name in ("s_min", "b_crit", "e_min"):
        assert part[name]["value"] is None
        assert "needs 3" in part[name]["why"]
    assert all(each["fitted_steps"] is None for each in part["points"])


def test_the_target_is_that_of_the_recommendation():
    # 0.95 is reached by two batch sizes, which make no law
    part = efficiency_of(EXACT, targets="[0.45, 0.8, 0.95]", epochs=12)
    assert part["target"] == 0.95
    assert [each["steps"] is None for each in part["points"]] == [False, False, True, True, True]
    assert "2 batch sizes have measured steps" in part["why"]


def test_without_a_recommended_one_it_is_the_hardest_that_three_batch_sizes_reach():
    def chosen(**text):
        spec, plan, trials = study(EXACT, **text)
        (tuned,) = tunings(Posterior(spec, gather(plan, trials, ACCURACY)))
        return tuned

    # epochs of 20,480 examples to 0.8 (2,000, 1,200, 800, 600, 500 steps): 6.25, 7.5, 10, 15, 25; to 0.45 half of them,
    # to 0.95 0.85/0.7 = 1.21 times as many
    found = chosen(targets="[0.45, 0.8, 0.95]", epochs=12)
    assert found.target == 0.8
    assert [point.measured.best is None for point in found.points] == [False, False, False, True, True]
    assert chosen(targets="[0.45, 0.8]", epochs=9).target == 0.45
    part = efficiency_of(EXACT, batches="[256, 512, 1024]", targets="[0.8]", epochs=12)
    assert part["target"] == 0.8
    assert f"512: {MISSED}; 1024: {MISSED}" in part["why"]


def test_a_seed_that_missed_tells_that_it_took_longer():
    spec, plan, trials = study(EXACT)
    for trial in trials:
        if trial["params"]["batch_size"] == 1024 and trial["params"]["seed"] == 2:
            trial["epochs"] = trial["epochs"][:5]
    part = analysed(spec, plan, trials, statistical_efficiency)
    assert point(part, 1024)["steps"] == pytest.approx(500)
    assert point(part, 1024)["high"] is None
    assert part["s_min"]["value"] == pytest.approx(400, 0.02)


def test_met_within_the_first_epoch_is_an_upper_bound():
    # 200,000 examples are 3,125 steps of 64, and the target takes 2,000
    part = efficiency_of(EXACT, law=Law(samples=200_000), epochs=5)
    assert point(part, 64)["upper_bound"]
    assert point(part, 64)["steps"] == 3125
    assert not point(part, 1024)["upper_bound"]
    part = efficiency_of(EXACT, law=Law(samples=2_000_000), epochs=2)
    assert part["s_min"]["value"] is None
    assert "64: met at the first evaluation" in part["why"]


def test_batches_beyond_the_training_set_count_once():
    # one step an epoch of 1,000 examples, whatever the batch size; at batch 1024 the target takes 25
    truth = BatchTruth(noise=0.0, s_min=20)
    part = efficiency_of(
        truth, law=Law(samples=1000), epochs=60, batches="[1024, 2048, 4096]", seeds="[0]", rates="[1.6, 3.2]"
    )
    assert {each["examples_per_step"] for each in part["points"]} == {1000}
    assert "1 batch size has" in part["why"]


def test_each_combination_of_other_keys_has_its_own_part():
    part = efficiency_of(sweep=", train.gradient_sync: [ddp, flat]", seeds="[0]")
    assert part["of"] == "gradient_sync=ddp"
    assert [other["of"] for other in part["others"]] == ["gradient_sync=flat"]
    assert present(part["others"][0]["s_min"])


def test_the_noise_scale_stands_beside_it():
    part = efficiency_of(train=", optimizer: {name: sgd, momentum: 0.9}")
    noise = part["noise_scale"]
    assert noise["low"] < 300 < noise["high"]
    assert noise["optimizer"] == "sgd, momentum 0.9"
    assert [each["batch_size"] for each in noise["by_batch"]] == [64, 128, 256, 512, 1024]


@pytest.mark.parametrize("ending", ["diverged", "out_of_memory", "failed", "skipped"])
def test_trials_of_which_every_one_ended_so(ending):
    part = efficiency_of(endings={"*": ending})
    assert part["value"] is None
    assert part["why"] == (
        "no batch size reached a target"
        if ending == "diverged"
        else "no training ended in a way that says how many steps a target takes"
    )


def test_a_study_without_targets_has_its_noise_scale():
    part = efficiency_of(targets="[]")
    assert part["target"] is None
    assert part["points"] == []
    assert "names no target" in part["why"]
    assert "names no target" in part["s_min"]["why"]
    assert part["noise_scale"]["value"] == pytest.approx(300, rel=0.05)


def test_a_study_that_never_began():
    spec, plan, _ = study()
    assert "no training ended" in analysed(spec, plan, [], statistical_efficiency)["why"]
    assert statistical_efficiency(spec, [])["why"] == "the study has no cells"


def test_memory_that_ran_out_says_nothing_of_steps():
    spec, plan, trials = study(EXACT, workers="[1, 2]")
    for trial in trials:
        if trial["params"]["num_gpus"] == 1 and trial["params"]["batch_size"] == 1024:
            trial.update(status="out_of_memory", epochs=[])
    assert point(analysed(spec, plan, trials, statistical_efficiency), 1024)["steps"] == pytest.approx(500)


# --- the gradient noise scale, from what trainings recorded -----------------------------------------------------------


def training(squared, trace, *, batch_size=64, rate=0.1, seed=0, num_gpus=1, steps=10):
    noise = None if squared is None else (squared, trace)
    return Training(
        num_gpus=num_gpus,
        batch_size=batch_size,
        rate=rate,
        seed=seed,
        curve=(),
        final=None,
        examples_per_step=float(batch_size),
        noise=noise,
        noise_steps=steps if noise else 0,
    )


def test_means_apart_then_their_ratio():
    # mean tr Σ (200 + 400)/2 = 300 over mean |G|² (0.5 + 1.5)/2 = 1, where the mean of ratios is 333
    found = noise_scale([training(0.5, 200, seed=0), training(1.5, 400, seed=1)], {64: 0.1}, "sgd")
    assert found["value"] == pytest.approx(300)
    assert (found["optimizer"], found["steps"]) == ("sgd", 20)
    assert found["by_batch"] == [{"batch_size": 64, "value": pytest.approx(300)}]


def test_more_workers_are_no_more_trainings():
    # the pair (1, 2) of squares is one training of mean 1.5, beside one of 0.5: mean 1
    trainings = [training(1, 300, num_gpus=1), training(2, 300, num_gpus=2), training(0.5, 300, seed=1)]
    found = noise_scale(trainings, {}, "sgd")
    assert found["value"] == pytest.approx(300)


def test_only_the_best_rate_of_a_batch_size_counts():
    trainings = [training(1, 300), training(1, 900, rate=0.8), training(1, 500, batch_size=128, rate=0.8)]
    found = noise_scale(trainings, {64: 0.1}, "sgd")
    assert found["by_batch"] == [{"batch_size": 64, "value": 300}, {"batch_size": 128, "value": 500}]


def test_negative_estimates_average_out_or_leave_nothing():
    assert noise_scale([training(-0.5, 300, seed=0), training(2.5, 300, seed=1)], {}, "sgd")["value"] == 300
    found = noise_scale([training(-0.5, 300, seed=0), training(0.25, 300, seed=1)], {}, "sgd")
    assert (found["value"], found["low"]) == (None, None)
    assert "not above zero" in found["why"]
    assert found["by_batch"] == [{"batch_size": 64, "value": None}]


def test_one_training_has_no_interval():
    found = noise_scale([training(1, 300)], {}, "adam")
    assert (found["value"], found["low"], found["high"]) == (300, None, None)
    assert "no scatter" in found["why"]


def test_nothing_was_measured():
    for trainings in ([], [training(None, None)]):
        found = noise_scale(trainings, {}, "sgd")
        assert (found["value"], found["steps"], found["by_batch"]) == (None, 0, [])
        assert "has recorded" in found["why"]


def test_where_the_denominator_may_be_zero_it_is_not_identified():
    found = noise_scale([training(-0.5, 300, seed=0), training(2.5, 300, seed=1)], {}, "sgd")
    assert (found["low"], found["high"], found["identified"]) == (None, None, False)
    assert "open whether" in found["why"]
    assert "measure more" in found["why"]
    known = noise_scale([training(1, 300, seed=0), training(1.01, 301, seed=1)], {}, "sgd")
    assert (known["identified"], known["why"]) == (True, None)


# --- what the intervals hold on 100 draws; on 1,000 it is `tests.bench.batch_law` that tells --------------------------


DRAWS = 100
LEAST = math.ceil(special.bdtrik(0.001, DRAWS, 0.86))
"""Hits that 100 draws fall below once in 1,000 times where 86 % of the intervals hold the truth."""
MOST = math.ceil(special.bdtrik(0.98, DRAWS, 0.94))
"""Hits that 100 draws pass 15 times in 1,000 where 94 % of the intervals hold the truth: 98. A bound that is
passed once in 1,000 would be 100 of 100, which no interval passes, however wide."""


LAWS = 4
ALL_SIZES, SCATTERED, ALIKE = "7 sizes, B_crit/8 to 8 B_crit", "5 rates, cells scatter by 3 %", "5 rates, all as good"
WIDTHS = pytest.mark.parametrize(("wider", "right"), [(1.0, True), (0.4, False), (2.5, False)])
"""Intervals of other widths are the wrong law: in 20 of 20 seeds they hold the truth too seldom or too often."""


@pytest.fixture(scope="module")
def by_sizes():
    """Laws over batch sizes, by which sizes were trained."""
    return {name: law_tallies(sizes, RATES[SCATTERED], LAWS, seed=1) for name, sizes in SIZES.items()}


@WIDTHS
def test_the_law_over_batch_sizes_is_held_as_often_as_promised(by_sizes, wider, right):
    hits = [hit for tallies in by_sizes.values() for tally in tallies.values() for hit in tally.held(wider)]
    assert (0.8 <= np.mean(hits) <= 0.98) == right  # 96 of them


def test_the_figures_of_the_law_are_near_the_truth(by_sizes):
    for name in ("s_min", "b_crit", "e_min", "exponent"):
        assert np.median(np.abs([error for tallies in by_sizes.values() for error in tallies[name].errors])) < 0.08


@pytest.fixture(scope="module")
def by_rates():
    """The same by what is known of the rate."""
    kinds = ("known", ALIKE, "3 rates, all too low", "5 rates, neighbours take 5 % more steps")
    return {rates: law_tallies(SIZES[ALL_SIZES], RATES[rates], 2 * LAWS, seed=1) for rates in kinds}


@WIDTHS
def test_the_law_is_held_whatever_is_known_of_the_rate(by_rates, wider, right):
    """But where all rates are as good: beforehand some rate is better, and there is no exponent."""
    hits = [tally.held(wider) for rates, found in by_rates.items() if rates != ALIKE for tally in found.values()]
    assert (0.8 <= np.mean(hits) <= 0.98) == right  # 88 of them


@pytest.mark.parametrize("rates", ["known", ALIKE, "3 rates, all too low", "5 rates, neighbours take 5 % more steps"])
def test_the_law_is_near_the_truth_whatever_is_known_of_the_rate(by_rates, rates):
    for name, tally in by_rates[rates].items():
        if name == "exponent" and rates == ALIKE:
            continue  # there is none
        assert sum(tally.held()) >= len(tally.found) / 4, name
        assert tally.error < 0.08, name
        assert abs(tally.bias) < 0.04, name


@pytest.mark.parametrize(("trainings", "scatter"), [(5, 0.1), (25, 0.5)])
def test_the_noise_scale(trainings, scatter):
    assert LEAST <= sum(noise_tally(trainings, DRAWS, scatter).held()) <= MOST


@pytest.mark.parametrize(("seeds", "missed"), [(5, 0.0), (10, 0.0)])
def test_a_typical_time(seeds, missed):
    assert LEAST <= sum(seed_tally(seeds, DRAWS, missed).held()) <= MOST


def test_order_statistics_hold_the_median_of_all_seeds():
    """With a tenth of the seeds missing, the median of all is that of seeds that never miss at 5/9: a little later."""
    assert sum(seed_tally(10, DRAWS, 0.1).held()) >= LEAST


def test_the_tables_can_be_printed(monkeypatch):
    monkeypatch.setattr(batch_law, "FEW_DRAWS", 1)
    for part in PARTS.values():
        heading, _, table = part.text(small=True).partition("\n\n")
        assert heading == f"### {part.title}"
        assert len(table.splitlines()) >= 2 + 4, "a header, a rule, and a row a case"
