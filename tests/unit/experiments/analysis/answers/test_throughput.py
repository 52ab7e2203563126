"""From trials to the law of a step's time, and to lines of throughput."""

import math

import pytest

from scalestudy.experiments.analysis.answers.scaling_laws import usl_part
from scalestudy.experiments.analysis.answers.throughput import (
    DOUBTFUL,
    part_of_combination,
    step_timing,
    throughput_part,
    timed_steps,
    times_of,
)
from scalestudy.experiments.analysis.laws.step_terms import Constants
from scalestudy.experiments.analysis.laws.step_time import MEASURE
from scalestudy.experiments.analysis.measures.cells import gather, infer
from scalestudy.experiments.analysis.measures.metric import ACCURACY
from scalestudy.experiments.plan.timing_runs import timing_trials
from tests.support.known_laws import StepLaw, figures
from tests.support.synthetic_studies import strict, study_of
from tests.support.trials import make_timings, slow_down

CONSTANTS = Constants(alpha_c=0.004, beta_c=5e-5, launch=0.0026, linear=0.0004, gamma=1.5)
LAW = StepLaw(constants=CONSTANTS)
TEXT = (
    "name: x\ntrain: {epochs: 3}\nsweep: {num_gpus: [1, 2, 4, 8], batch_size: [64, 256, 1024], seed: [0, 1, 2, 3, 4]}"
)
TWO_SIZES = "name: x\nsweep: {num_gpus: [1, 2], batch_size: [256, 512]}"


def cells_of(text=TEXT, law=LAW, change=None, **keywords):
    _, plan, trials = study_of(text, law, change=change, **keywords)
    return gather(plan, trials, ACCURACY)


def throughput(cells, **keywords):
    return throughput_part(timed_steps(cells, **keywords))


def usl(cells, **keywords):
    return usl_part(timed_steps(cells, **keywords))


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
    assert part["held_out"] == 12


def test_learning_rates_are_repeats_too():
    both = cells_of("name: x\nsweep: {num_gpus: [1, 2], batch_size: [64, 256, 1024], learning_rate: [0.1, 0.2]}")
    assert {point["n"] for point in throughput(both)["points"]} == {2}


def test_the_law_comes_back_from_the_part(noisy):
    part = strict(throughput(noisy))
    times = times_of(part)
    for point in part["points"]:
        found = times.seconds(point["num_gpus"], point["per_worker_batch"], data_seconds=part["data_seconds"]["value"])
        assert found.value == pytest.approx(point["fitted_seconds"], rel=0.02)
        assert found.high == pytest.approx(point["high"], rel=0.02)


def test_the_last_step_of_an_epoch_may_be_smaller():
    # 1,437 examples in batches of 512 make 3 steps of 479 on average
    part = throughput(cells_of(law=StepLaw(constants=CONSTANTS, samples=1437), text=TEXT.replace("1024", "512")))
    (point,) = [point for point in part["points"] if (point["num_gpus"], point["batch_size"]) == (1, 512)]
    assert point["per_worker_batch"] == pytest.approx(479)


def test_flagged_timings_are_left_out_unless_asked():
    for flag in DOUBTFUL:
        cells = cells_of(TWO_SIZES, flags={"*": [flag]})
        part = strict(throughput(cells))
        assert part["value"] is None
        assert f"4 {flag}" in part["why"]
        assert f"4 {flag}" in usl(cells)["why"]
        asked = strict(throughput(cells, include_flagged=True))
        assert asked["flagged"]
        assert asked["alpha_c"]["value"] is not None
        assert usl(cells, include_flagged=True)["flagged"]


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
    cells = cells_of("name: x\nsweep: {num_gpus: [1, 2], batch_size: [256]}")
    inferred = infer(cells[1], cells[0].trials)
    (steps,) = timed_steps([cells[0], inferred])
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
    assert [usl(cells)["of"], usl(cells)["others"][0]["of"]] == ["gradient_sync=ddp", "gradient_sync=naive"]


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
    ("text", "law", "line"),
    [
        ("name: x", "one batch per worker only", "one num_gpus only (1)"),
        ("name: x\nsweep: {num_gpus: [1, 2], batch_size: [256]}", "time 2 more", None),
        ("name: x\nsweep: {batch_size: [64, 128]}", "time 1 more", "one num_gpus only (1)"),
    ],
)
def test_too_little_is_no_law(text, law, line):
    cells = cells_of(text)
    part = strict(throughput(cells))
    assert part["value"] is None
    assert law in part["why"]
    lines = strict(usl(cells))
    if line:
        assert line in lines["why"]
    else:
        (fit,) = lines["fits"]
        assert fit["sizes"] == [1, 2]
        assert all(fit[key]["value"] is None for key in ("sigma", "kappa", "peak_gpus", "amdahl_serial"))
        assert not fit["extrapolates"]
        assert "fewer than 4" in fit["why"]
        assert len(fit["karp_flatt"]) == 1


@pytest.mark.parametrize("ending", ["diverged", "failed", "out_of_memory", "skipped"])
def test_no_trial_that_is_timed(ending):
    cells = cells_of(endings={"*": ending})
    assert "nowhere" in strict(throughput(cells))["why"]
    assert "no steps were timed" in strict(usl(cells))["why"]
    assert throughput([])["why"] == usl([])["why"] == "the study has no cells"


def test_lines_are_strong_and_weak():
    part = strict(usl(cells_of()))
    strong = [fit for fit in part["fits"] if fit["scaling"] == "strong"]
    assert [fit["batch_size"] for fit in strong] == [1024, 256, 64]
    for fit in strong:
        assert fit["sizes"] == [1, 2, 4, 8]
        assert fit["extrapolates"]
        assert fit["gustafson_serial"]["value"] is None
        speed_up = {point["num_gpus"]: point["samples_per_second"] for point in fit["points"]}
        serial = {each["num_gpus"]: each["value"] for each in fit["karp_flatt"]}
        gain = speed_up[4] / speed_up[1]
        assert serial[4] == pytest.approx((1 / gain - 1 / 4) / (3 / 4))
    weak = {fit["per_worker_batch"]: fit["sizes"] for fit in part["fits"] if fit["scaling"] == "weak"}
    assert weak == {256: [1, 4], 128: [2, 8], 64: [1, 4], 32: [2, 8]}
    assert all(part[key] == part["fits"][0][key] for key in ("scale", "sigma", "kappa", "peak_gpus"))


def test_weak_scaling_has_gustafsons_serial_part():
    part = usl(
        cells_of(
            "name: x\nsweep: {points: ["
            + ", ".join(f"{{num_gpus: {count}, batch_size: {256 * count}}}" for count in (1, 2, 4, 8))
            + "]}"
        )
    )
    (fit,) = part["fits"]
    assert (fit["scaling"], fit["per_worker_batch"], fit["sizes"]) == ("weak", 256, [1, 2, 4, 8])
    assert 0 < fit["gustafson_serial"]["value"] < 0.5
    assert "weak scaling" in fit["amdahl_serial"]["why"]
    assert part["sigma"]["value"] is None


def test_the_curve_goes_to_twice_the_workers_with_its_band(noisy):
    curve = usl(noisy)["fits"][0]["curve"]
    assert (curve[0]["num_gpus"], curve[-1]["num_gpus"]) == (1, 16)
    assert all(point["low"] <= point["samples_per_second"] <= point["high"] for point in curve)


def test_a_curve_that_the_timings_reject_ends_where_they_do():
    """Two workers are half as fast, which no law of more or fewer workers explains."""
    text = "name: x\nsweep: {num_gpus: [1, 2, 4, 8], batch_size: [256], seed: [0, 1]}"
    cells = cells_of(text, change=lambda trial: trial["params"]["num_gpus"] == 2 and slow_down(trial))
    (fit,) = usl(cells)["fits"]
    assert fit["curve"][-1]["num_gpus"] == 8
    assert not fit["peak_gpus"]["identified"]
    assert "time 2 workers again" in fit["peak_gpus"]["why"]


def test_without_one_worker_there_is_no_karp_flatt():
    (fit,) = usl(cells_of("name: x\nsweep: {num_gpus: [2, 4, 8], batch_size: [256]}"))["fits"]
    assert fit["karp_flatt"] == []
    assert "one worker was not timed" in fit["karp_flatt_words"]
    assert not fit["retrograde"]


def test_a_wait_longer_than_the_step_was_not_measured():
    _, _, trials = study_of("name: x", LAW)
    trials[0]["epochs"] = trials[0]["epochs"][:1]
    trials[0]["epochs"][0]["phases"]["data"] = 1e9
    assert step_timing(trials[0]).data_seconds is None
