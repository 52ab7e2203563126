"""Which timing runs follow a packed sweep, and what is taken from them."""

import json
from typing import Any

import pytest

from scalestudy.experiments.analysis import recommend, summarise
from scalestudy.experiments.analysis.measures.cells import gather
from scalestudy.experiments.analysis.measures.metric import ACCURACY
from scalestudy.experiments.plan.plan import TrialPlan, cell_trial, make_plan
from scalestudy.experiments.plan.timing_flags import TimingFlag
from scalestudy.experiments.plan.timing_runs import TIMED_STEPS, timing_trial, timing_trials
from scalestudy.experiments.spec.search_space import stated_places
from tests.support.loop_studies import loop_study
from tests.support.synthetic_studies import spec_of, study_of, words_of
from tests.support.trials import Law, make_timings

TEXT = (
    "name: x\ntrain: {epochs: 4}\ntargets: {accuracy: [0.2]}\n"
    "sweep: {num_gpus: [1, 2], batch_size: [32, 128], learning_rate: [0.1, 0.2], seed: [0, 1]}"
)
PACKED = {"*": ["shared_node"]}
DISTURBED = Law(fixed=0.02, sync=0.03)
QUIET = Law()


def timings_of(text: str = TEXT, **keywords: Any) -> list[TrialPlan]:
    spec, plan, trials = study_of(text, flags=keywords.pop("flags", PACKED), **keywords)
    return timing_trials(spec, plan.trials, {trial["trial_id"]: trial for trial in trials})


# --- the plan -------------------------------------------------------------------------------------------------------


def test_each_kind_of_step_is_timed_twice_with_others_between_the_most_workers_first():
    """Back from where the first round ended: its last group is at hand. Each group is exchanged once a round."""
    timings = timings_of()
    assert [trial.name for trial in timings] == [
        "timing workers=2 batch=32",
        "timing workers=2 batch=128",
        "timing workers=1 batch=32",
        "timing workers=1 batch=128",
        "timing workers=1 batch=32",
        "timing workers=1 batch=128",
        "timing workers=2 batch=32",
        "timing workers=2 batch=128",
    ]
    trained = make_plan(spec_of(TEXT)).trials
    ids = {trial.trial_id for trial in timings}
    assert len(ids) == 8
    assert ids.isdisjoint(trial.trial_id for trial in trained)
    assert {trial.kind for trial in timings} == {"timing"}
    assert timings == timings_of(), "the same in every run"
    assert all((trial.learning_rate, trial.seed) == (0.1, 0) for trial in timings), "those of the first trial"


def test_a_timing_trial_trains_some_sixty_steps_and_nothing_else_changes():
    for trial in timings_of():
        like = next(each for each in make_plan(spec_of(TEXT)).trials if each.params == trial.params)
        assert trial.workload == like.workload
        changed = {key: value for key, value in trial.train.items() if like.train.get(key) != value}
        epochs = {"epochs": 6} if trial.batch_size == 128 else {}  # 12 steps an epoch: 65 are in 6 of them
        assert changed == {"max_steps": 65, "min_seconds": 2.0, "checkpoint_every": 0, **epochs}
    slow, eager = (timings_of(TEXT.replace("epochs: 4", f"epochs: 4, warm_up_steps: {steps}"))[0] for steps in (40, 0))
    assert (slow.train["warm_up_steps"], slow.train["max_steps"]) == (40, 40 + TIMED_STEPS)
    assert (eager.train["warm_up_steps"], eager.train["max_steps"]) == (5, 5 + TIMED_STEPS)


def test_what_was_not_disturbed_is_not_timed_again():
    assert timings_of(flags={}) == []
    assert timings_of(flags={"*": sorted({*TimingFlag, "of_tomorrow"} - {"shared_node"})}) == []
    one = timings_of(flags={"workers=2 batch=32 lr=0.2 seed=1": ["shared_node"]})
    assert [trial.name for trial in one] == ["timing workers=2 batch=32"] * 2


@pytest.mark.parametrize("ending", ["diverged", "failed", "out_of_memory", "skipped"])
def test_what_no_trial_finished_is_not_timed(ending):
    endings = {f"workers=2 batch=32 lr={rate} seed={seed}": ending for rate in (0.1, 0.2) for seed in (0, 1)}
    assert "timing workers=2 batch=32" not in {trial.name for trial in timings_of(endings=endings)}
    assert timings_of(endings={"*": ending}) == []


def test_the_rate_and_the_seed_are_of_the_first_trial_that_finished():
    first = "workers=1 batch=32 lr=0.1 seed=0"
    found = [each for each in timings_of(endings={first: "diverged"}) if each.name == "timing workers=1 batch=32"]
    assert [(trial.learning_rate, trial.seed) for trial in found] == [(0.1, 1)] * 2


def test_parameters_that_change_no_step_make_no_more_timings():
    sweep = "sweep: {num_gpus: [1], batch_size: [32], train.epochs: [3, 4], train.schedule: [constant, cosine]}"
    assert len(timings_of(f"name: x\n{sweep}")) == 2
    sweep = "sweep: {num_gpus: [1], batch_size: [32], train.gradient_sync: [ddp, naive], train.precision: [fp32, bf16]}"
    assert len(timings_of(f"name: x\n{sweep}")) == 8


def test_an_extended_study_knows_its_timings_again():
    more = TEXT.replace("[0.1, 0.2]", "[0.05, 0.1, 0.2]").replace("seed: [0, 1]", "seed: [7, 0, 1]")
    longer = TEXT.replace("epochs: 4", "epochs: 40")
    ids = [trial.trial_id for trial in timings_of()]
    assert [trial.trial_id for trial in timings_of(more)] == ids
    assert [trial.trial_id for trial in timings_of(longer)] == ids
    for other in ("model: mlp", "data: mnist"):
        text = TEXT.replace("name: x", f"name: x\nworkload: {{{other}}}")
        assert not {trial.trial_id for trial in timings_of(text)} & set(ids)
    assert not {trial.trial_id for trial in timings_of(f"{TEXT}\nresources: {{cpus_per_worker: 2}}")} & set(ids)


# --- the analysis ---------------------------------------------------------------------------------------------------


@pytest.fixture
def study():
    """A packed study's spec, plan and trials, and the lines of its timing runs."""
    spec, plan, trials = study_of(TEXT, DISTURBED, flags=PACKED)
    wanted = timing_trials(spec, plan.trials, {trial["trial_id"]: trial for trial in trials})
    return spec, plan, trials, make_timings(wanted, QUIET)


def row_of(rows, **params):
    return next(row for row in rows if params.items() <= row["params"].items())


def step_of(law, num_gpus, batch_size):
    return sum(law.phases(num_gpus, batch_size).values())


def test_speed_ups_and_times_are_those_of_the_timing_runs(study):
    """At batch 128: one worker 0.0002 + 0.002 + 0.0128 + 0.0003 = 0.0153 s a step, two 0.0002 + 0.002 + 0.0064 +
    0.0012 + 0.0003 = 0.0101; 1.515 times as fast. Side by side it was 0.0333 to 0.0569: slower than one."""
    spec, plan, trials, timings = study
    for epoch in (epoch for timing in timings for epoch in timing["epochs"]):
        epoch["tokens"] = 8 * epoch["samples"]
    summary = summarise(spec, plan, [*trials, *timings])
    two = row_of(summary["cells"], num_gpus=2, batch_size=128)
    assert two["speedup"] == pytest.approx(0.0153 / 0.0101)
    assert two["efficiency"] == pytest.approx(0.0153 / 0.0101 / 2)
    assert two["epoch_seconds"]["value"] == pytest.approx(12 * 0.0101)
    assert two["samples_per_second"]["value"] == pytest.approx(1437 / (12 * 0.0101))
    assert two["tokens_per_second"]["value"] == pytest.approx(8 * 1437 / (12 * 0.0101))
    assert two["step_seconds"] == pytest.approx(QUIET.phases(2, 128))
    assert row_of(summarise(spec, plan, trials)["cells"], num_gpus=2, batch_size=128)["speedup"] < 0.6
    pooled = row_of(summary["timings"], num_gpus=2, batch_size=32)
    assert pooled["step_seconds"] == pytest.approx(QUIET.phases(2, 32))
    assert pooled["epoch_seconds"]["value"] == pytest.approx(45 * step_of(QUIET, 2, 32))
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary


def test_the_mark_goes_from_what_is_undisturbed_now(study):
    spec, plan, trials, timings = study
    before, after = summarise(spec, plan, trials), summarise(spec, plan, [*trials, *timings])
    assert all(row["flags"] == ["shared_node"] and not row["timed_apart"] for row in before["cells"])
    assert all(row["flags"] == [] and row["timed_apart"] for row in (*after["cells"], *after["timings"]))
    assert "disturbed" in {verdict["cause"] for verdict in before["verdicts"]}
    assert "disturbed" not in {verdict["cause"] for verdict in after["verdicts"]}
    assert any("with the node to themselves" in caveat for caveat in words_of(after))
    assert not any("shared_node" in caveat for caveat in words_of(after))


def test_time_to_a_target_is_its_epochs_times_an_undisturbed_epoch(study):
    spec, plan, trials, timings = study
    before, after = summarise(spec, plan, trials), summarise(spec, plan, [*trials, *timings])
    for measured, rescaled in zip(before["time_to_target"], after["time_to_target"], strict=True):
        workers, batch = measured["params"]["num_gpus"], measured["params"]["batch_size"]
        factor = step_of(QUIET, workers, batch) / step_of(DISTURBED, workers, batch)
        assert rescaled["seconds"] == pytest.approx(measured["seconds"] * factor, rel=1e-3)
        assert rescaled["reached"] == measured["reached"] == 2
    chosen = recommend(spec, plan, [*trials, *timings], accuracy=0.2)
    assert chosen["fastest"]["num_gpus"] == 2
    assert chosen["fastest"]["seconds"] == after["recommendation"]["fastest"]["seconds"]
    assert recommend(spec, plan, trials, accuracy=0.2)["fastest"]["num_gpus"] == 1, "what the packed timings would say"


def test_timing_runs_are_counted_apart(study):
    spec, plan, trials, timings = study
    before, after = summarise(spec, plan, trials), summarise(spec, plan, [*trials, *timings])
    assert after["trials"] == before["trials"]
    assert (after["trials"]["planned"], after["trials"]["finished"], after["trials"]["not_run"]) == (16, 16, 0)
    assert (before["timing_runs"], after["timing_runs"]) == ({"runs": 0, "used": 0}, {"runs": 8, "used": 8})
    assert [row["label"] for row in after["cells"]] == [row["label"] for row in before["cells"]]
    assert [row["trials"] for row in after["cells"]] == [row["trials"] for row in before["cells"]]
    assert after["cost"]["worker_seconds"] > before["cost"]["worker_seconds"], "they cost something all the same"


def failed(timing):
    return {**timing, "status": "failed", "epochs": [], "error": {"kind": "exception", "message": "broke", "rank": 0}}


def test_of_several_runs_the_middle_counts_and_a_failed_one_takes_nothing_from_the_others(study):
    spec, plan, trials, timings = study
    slow = make_timings(timings_of()[4:], Law(fixed=0.004))
    assert [timing["trial_id"] for timing in slow] == [timing["trial_id"] for timing in timings[4:]]
    whole, broken = (
        row_of(summarise(spec, plan, [*trials, *timings[:4], *again])["cells"], num_gpus=2, batch_size=128)
        for again in (slow, [failed(timing) for timing in slow])
    )
    # 0.0101 s a step in one run and 0.0121 in the other, 12 steps an epoch
    found = whole["epoch_seconds"]
    assert [found[key] for key in ("value", "low", "high")] == pytest.approx([12 * 0.0111, 12 * 0.0101, 12 * 0.0121])
    assert found["n"] == 2
    assert sum(whole["step_seconds"].values()) == pytest.approx(0.0111)
    assert broken["epoch_seconds"]["value"] == pytest.approx(12 * 0.0101)
    cells = gather(plan, [*trials, *timings[:4], *slow], ACCURACY)
    assert {len(cell.timings) for cell in cells} == {2}


def test_a_kind_of_step_whose_timing_runs_failed_is_left_as_it_was(study):
    spec, plan, trials, timings = study
    some = [
        failed(each) if each["params"]["num_gpus"] == 2 and each["params"]["batch_size"] == 32 else each
        for each in timings
    ]
    before, after = summarise(spec, plan, trials), summarise(spec, plan, [*trials, *some])
    params = {"num_gpus": 2, "batch_size": 32}
    assert row_of(after["timings"], **params)["step_seconds"] == row_of(before["timings"], **params)["step_seconds"]
    assert row_of(after["cells"], **params)["flags"] == ["shared_node"]
    assert row_of(after["cells"], num_gpus=2, batch_size=128)["flags"] == []
    assert (after["trials"]["failed"], after["timing_runs"]) == (0, {"runs": 8, "used": 6})
    assert after["failures"][0]["trials"] == ["timing workers=2 batch=32"] * 2


def test_a_cell_that_only_diverged_gets_no_timings(study):
    spec, plan, trials, timings = study
    broken = [{**t, "status": "diverged"} if t["params"]["learning_rate"] == 0.2 else t for t in trials]
    summary = summarise(spec, plan, [*broken, *timings])
    row = row_of(summary["cells"], num_gpus=2, batch_size=32, learning_rate=0.2)
    assert (row["epoch_seconds"]["value"], row["timed_apart"]) == (None, False)
    assert row_of(summary["cells"], num_gpus=2, batch_size=32, learning_rate=0.1)["timed_apart"]


# --- other keys, and loops ------------------------------------------------------------------------------------------


def test_other_keys_that_change_a_step_are_timed_with_every_num_gpus():
    sweep = "sweep: {num_gpus: [1, 2], train.gradient_sync: [ddp, ring], train.schedule: [constant, cosine]}"
    assert [trial.name for trial in timings_of(f"name: x\n{sweep}")] == [
        f"timing workers={gpus} batch=256 gradient_sync={sync}" for gpus in (2, 1, 1, 2) for sync in ("ddp", "ring")
    ]


def test_the_timing_runs_that_an_adaptive_search_asks_for_are_those_of_a_packed_grid():
    """So both have the same ids for the same steps."""
    adaptive = TEXT.replace(", seed: [0, 1]", "") + "\nsearch: {method: adaptive}\nbudget: {trials: 9}"
    spec = spec_of(adaptive)
    packed = {trial.name: trial.trial_id for trial in timings_of()[:4]}
    for cell in stated_places(spec):
        timing = timing_trial(spec, cell_trial(spec, cell, 7), 0)
        assert timing.trial_id == packed[timing.name]


LOOP = """
name: x
workload: {loop: 'my_loop:train', exact: true}
train: {epochs: 6}
sweep: {num_gpus: [1, 2], batch_size: [32], learning_rate: [0.1, 0.2]}
"""


def timings_of_a_loop(text: str = LOOP, *, samples: bool = True) -> list[TrialPlan]:
    spec, plan, lines = loop_study(text=text, samples=samples, flags=PACKED)
    return timing_trials(spec, plan.trials, {line["trial_id"]: line for line in lines})


def test_a_loop_is_timed_by_its_first_reports() -> None:
    timings = timings_of_a_loop()
    assert [timing.num_gpus for timing in timings] == [2, 1, 1, 2]
    assert all(timing.train == {"epochs": 3} and timing.kind == "timing" for timing in timings)
    assert len({timing.trial_id for timing in timings}) == 4
    assert timings_of_a_loop(LOOP.replace("epochs: 6", "epochs: 2"))[0].train == {"epochs": 3}, (
        "the first report is not timed"
    )


def test_a_loop_that_tells_no_examples_is_not_timed() -> None:
    assert timings_of_a_loop(samples=False) == []
