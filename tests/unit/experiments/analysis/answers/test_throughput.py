"""From trials to the law of a step's time."""

import math

import pytest

from scalestudy.experiments.analysis.answers.posterior import Posterior
from scalestudy.experiments.analysis.answers.throughput import part_of_combination, throughput_part
from scalestudy.experiments.analysis.laws.step_figures import MEASURE
from scalestudy.experiments.analysis.measures.cells import combinations, gather
from scalestudy.experiments.analysis.measures.metric import ACCURACY
from scalestudy.experiments.analysis.measures.step_timings import step_timing, timed_steps
from scalestudy.experiments.analysis.measures.trial import Trial
from scalestudy.experiments.plan.timing_flags import TimingFlag
from scalestudy.experiments.plan.timing_runs import timing_trials
from tests.support.known_laws import Constants, StepLaw, figures
from tests.support.synthetic_studies import spec_of, strict, study_of
from tests.support.timed_studies import lent_study
from tests.support.trials import make_timings

CONSTANTS = Constants(alpha_c=0.004, beta_c=5e-5, launch=0.0026, linear=0.0004, gamma=1.5)
LAW = StepLaw(constants=CONSTANTS)
TEXT = (
    "name: x\ntrain: {epochs: 3}\nsweep: {num_gpus: [1, 2, 4, 8], batch_size: [64, 256, 1024], seed: [0, 1, 2, 3, 4]}"
)
TWO_SIZES = "name: x\nsweep: {num_gpus: [1, 2], batch_size: [256, 512]}"


def cells_of(text=TEXT, law=LAW, change=None, **keywords):
    _, plan, trials = study_of(text, law, change=change, **keywords)
    return gather(plan, trials, ACCURACY)


def throughput(cells, recommendation=None, **keywords):
    return throughput_part(Posterior(spec_of(TEXT), cells, **keywords), recommendation)


@pytest.fixture(scope="module")
def noisy():
    return cells_of(law=StepLaw(constants=CONSTANTS, noise=0.05))


def test_without_noise_the_constants_are_the_laws():
    part = strict(throughput(cells_of()))
    for name, truth in figures(CONSTANTS).items():
        assert part[name]["value"] == pytest.approx(truth, rel=0.02), name
    assert part["data_seconds"] == pytest.approx({"value": LAW.data, "low": LAW.data, "high": LAW.data})
    assert (part["alpha_n"], part["beta_n"]) == (None, None)
    assert (part["of"], part["flagged"], part["others"]) == ("", False, [])


def test_repeats_are_trials_over_seeds(noisy):
    part = strict(throughput(noisy))
    assert len(part["points"]) == 12
    for point in part["points"]:
        workers, batch = point["num_gpus"], point["batch_size"]
        assert point["n"] == 5
        assert point["per_worker_batch"] == batch / workers  # 61,440 divides by every batch
        truth = float(CONSTANTS.step_seconds(workers, batch / workers)) + LAW.data
        assert point["measured_seconds"] == pytest.approx(truth, rel=0.15)
        assert point["low"] <= point["fitted_seconds"] <= point["high"]
    assert part["median_error"] < 0.05
    assert part["cross_validated"] == 12


def test_learning_rates_are_repeats_too():
    both = cells_of("name: x\nsweep: {num_gpus: [1, 2], batch_size: [64, 256, 1024], learning_rate: [0.1, 0.2]}")
    assert {point["n"] for point in throughput(both)["points"]} == {2}


def test_the_last_step_of_an_epoch_may_be_smaller():
    # 1,437 examples in batches of 512 make 3 steps of 479 on average
    part = throughput(cells_of(law=StepLaw(constants=CONSTANTS, samples=1437), text=TEXT.replace("1024", "512")))
    (point,) = [point for point in part["points"] if (point["num_gpus"], point["batch_size"]) == (1, 512)]
    assert point["per_worker_batch"] == pytest.approx(479)


def test_flagged_timings_are_left_out_unless_asked():
    for flag in TimingFlag:
        cells = cells_of(TWO_SIZES, flags={"*": [flag]})
        part = strict(throughput(cells))
        assert part["value"] is None
        assert f"4 {flag}" in part["why"]
        asked = strict(throughput(cells, include_flagged=True))
        assert asked["flagged"]
        assert asked["alpha_c"]["value"] is not None


def test_a_flag_that_is_not_known_keeps_nothing_out():
    assert throughput(cells_of(flags={"*": ["of_tomorrow"]})) == throughput(cells_of())


def test_a_flagged_trial_leaves_the_others_of_its_cell():
    part = throughput(cells_of(flags={"workers=2 batch=64 lr=0.1 seed=0": ["resumed"]}))
    assert sorted(point["n"] for point in part["points"]) == [4, *[5] * 11]
    assert not part["flagged"]


def test_timing_runs_stand_for_the_disturbed_trials():
    spec, plan, trials = study_of(TEXT, StepLaw(constants=CONSTANTS, noise=0.3), flags={"*": ["shared_node"]})
    runs = timing_trials(spec, plan.trials, {trial["trial_id"]: trial for trial in trials})
    timings = make_timings(runs, LAW, warm_up_seconds=0.0)
    part = strict(throughput(gather(plan, [*trials, *timings], ACCURACY)))
    assert {point["n"] for point in part["points"]} == {2}
    assert part["alpha_c"]["value"] == pytest.approx(CONSTANTS.alpha_c, rel=0.02)
    assert not part["flagged"]


def test_trainings_with_another_num_gpus_are_not_timings_of_a_cell():
    text = "name: x\nsweep: {num_gpus: [1, 2], batch_size: [256]}\ntargets: {accuracy: [0.9]}\n"
    study = lent_study(f"{text}search: {{method: adaptive}}\nbudget: {{trials: 9}}", LAW, seeds=[0], flags={})
    (combination,) = combinations(gather(study.plan, study.trained, ACCURACY))
    assert [cell.lent for cell in combination.cells] == [False, True]
    steps = timed_steps(combination)
    assert [(size.num_gpus, len(size.timings)) for size in steps.sizes] == [(1, 1)]


def test_a_law_for_each_combination_of_other_keys():
    text = TEXT.replace("seed:", "train.gradient_sync: [ddp, naive], seed:")
    cells = cells_of(text)
    part = strict(throughput(cells))
    assert [part["of"], *(other["of"] for other in part["others"])] == ["gradient_sync=ddp", "gradient_sync=naive"]
    choice = {"choice": {"params": {**cells[0].params, "train.gradient_sync": "naive"}}}
    assert throughput(cells, recommendation=choice)["of"] == "gradient_sync=naive"
    assert part_of_combination(part, "gradient_sync=naive")["of"] == "gradient_sync=naive"
    assert part_of_combination(part, "gradient_sync=flat") is None


def test_nodes_have_constants_of_their_own():
    def over_nodes(trial):
        trial["world"]["nodes"] = 1 if trial["params"]["num_gpus"] < 4 else 2

    part = strict(throughput(cells_of(change=over_nodes)))
    assert part["alpha_n"]["value"] == pytest.approx(2 * CONSTANTS.linear, rel=0.2)  # 4 workers, over 2 on one node
    assert part["beta_n"]["value"] is None
    assert MEASURE["beta_n"] in part["beta_n"]["why"]


def test_without_phases_waiting_is_in_the_other_constants():
    def forget(trial):
        for epoch in trial["epochs"]:
            epoch["phases"] = None

    part = strict(throughput(cells_of(change=forget)))
    assert part["data_seconds"]["value"] is None
    assert "phases were not measured" in part["data_seconds"]["why"]
    assert part["alpha_c"]["value"] == pytest.approx(CONSTANTS.alpha_c + LAW.data, rel=0.05)


@pytest.mark.parametrize("bad", [0.0, -1.0, None, math.nan, math.inf, "x"])
def test_times_that_are_none_are_not_measured(bad):
    def spoil(trial):
        if trial["params"]["num_gpus"] == 2:
            for epoch in trial["epochs"]:
                epoch["train_seconds"] = bad

    part = strict(throughput(cells_of(change=spoil)))
    assert {point["num_gpus"] for point in part["points"]} == {1, 4, 8}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("name: x", "one batch per worker only"),
        ("name: x\nsweep: {num_gpus: [1, 2], batch_size: [256]}", "time 2 more"),
        ("name: x\nsweep: {batch_size: [64, 128]}", "time 1 more"),
    ],
)
def test_too_little_is_no_law(text, why):
    part = strict(throughput(cells_of(text)))
    assert part["value"] is None
    assert why in part["why"]


@pytest.mark.parametrize("ending", ["diverged", "failed", "out_of_memory", "skipped"])
def test_no_trial_that_is_timed(ending):
    cells = cells_of(endings={"*": ending})
    assert "nowhere" in strict(throughput(cells))["why"]
    assert throughput([])["why"] == "the study has no cells"


def test_a_wait_longer_than_the_step_was_not_measured():
    _, _, trials = study_of("name: x", LAW)
    trials[0]["epochs"] = trials[0]["epochs"][:1]
    trials[0]["epochs"][0]["phases"]["data"] = 1e9
    assert step_timing(Trial.of(trials[0])).data_seconds is None
