"""How long trials will take, by the last timings of their like."""

import pytest

from scalestudy.experiments.plan.estimate import LastTimings, Timing, estimate
from scalestudy.experiments.plan.plan import corner_trials, make_plan
from scalestudy.experiments.plan.timing_runs import TIMED_SECONDS
from tests.support.synthetic_studies import spec_of

ONE = "name: x\ntrain: {epochs: 2}\nsweep: {num_gpus: [1], batch_size: [32]}"
TWO = "name: x\ntrain: {epochs: 2}\nsweep: {num_gpus: [1, 2], batch_size: [32]}"


def record(trial, *seconds, kind="training", **changes):
    """A record with an epoch of 320 examples for each number of seconds, and evaluations of half a second."""
    epochs = [
        {"train_seconds": each, "eval_seconds": 0.5, "samples": 320, "samples_per_second": 640.0, "tokens": None}
        for each in seconds
    ]
    plain = {"kind": kind, "params": trial.params, "workload": trial.workload, "train": trial.train, "epochs": epochs}
    return {**plain, **changes}


def last(*studies):
    return LastTimings([[Timing.of(each, f"runs/{number}") for each in study] for number, study in enumerate(studies)])


def test_a_trial_takes_the_median_of_what_its_like_took():
    plan = make_plan(spec_of(ONE))
    (trial,) = plan.trials
    found = estimate(plan, last([record(trial, 3.0, 3.0), record(trial, 4.0, 4.0), record(trial, 8.0, 8.0)]))
    # two epochs of 3, 4 and 8 s, and two evaluations of half a second
    assert found.seconds == [9.0]
    assert (found.epochs, found.worker_epochs, found.timed, found.rests_on) == (2, 2, 1, ("runs/0",))


def test_the_last_study_counts_and_of_a_cell_that_it_lacks_the_one_before():
    plan = make_plan(spec_of(TWO))
    one, two = plan.trials
    found = estimate(plan, last([record(one, 1.0, 1.0)], [record(one, 9.0, 9.0), record(two, 5.0, 5.0)]))
    assert found.seconds == [3.0, 11.0]
    assert (found.timed, found.rests_on) == (2, ("runs/0", "runs/1"))
    # seconds times workers: 3 · 1 + 11 · 2
    assert found.worker_seconds == pytest.approx(25.0)


def test_a_cell_that_was_not_timed_counts_by_the_examples_a_second_of_the_others():
    plan = make_plan(spec_of("name: x\ntrain: {epochs: 2}\nsweep: {num_gpus: [1, 2, 4], batch_size: [32]}"))
    one, two, _ = plan.trials
    found = estimate(plan, last([record(one, 4.0, 4.0), record(two, 2.0, 2.0)]))
    assert found.seconds[2] == 7.0, "between two workers, 5 s, and one, 9 s"
    assert found.timed == 2


def test_of_trials_alike_those_on_the_fewest_nodes_count():
    plan = make_plan(spec_of("name: x\ntrain: {epochs: 2}\nsweep: {num_gpus: [2], batch_size: [32]}"))
    (trial,) = plan.trials
    near, far = (record(trial, 2.0 * nodes, 2.0 * nodes, world={"nodes": nodes}) for nodes in (1, 5))
    assert estimate(plan, last([far, near, far, near])).seconds == [5.0]
    assert estimate(plan, last([far])).seconds == [21.0], "there are no others"


@pytest.mark.parametrize(("length", "examples"), [("steps: 5", 5 * 32), ("tokens: 1600", 160), ("epochs: 3", 960)])
def test_lengths_in_steps_and_tokens_are_lengths_in_examples(length, examples):
    text = ONE + "\nworkload: {task: 'my_task:Task'}"
    timed = record(make_plan(spec_of(text)).trials[0], 3.2, 3.2)
    for epoch in timed["epochs"]:
        epoch.update(eval_seconds=0.0, tokens=3_200)
    # an example takes 0.01 s and has ten tokens
    (seconds,) = estimate(make_plan(spec_of(text.replace("epochs: 2", length))), last([timed])).seconds
    assert seconds == pytest.approx(0.01 * examples)


def test_of_steps_alone_nobody_knows_how_many_an_epoch_has():
    plan = make_plan(spec_of(ONE))
    (trial,) = plan.trials
    counted = record(trial, 3.2, train={**trial.train, "epochs": None, "steps": 20})
    assert estimate(plan, last([counted])).seconds is None


@pytest.mark.parametrize(
    ("override", "counts"),
    [
        ("train.schedule=cosine", True),
        ("train.warmup_epochs=1", True),
        ("train.checkpoint_every=0", True),
        ("train.epochs=3", True),
        ("train.warm_up_steps=2", True),
        ("train.precision=bf16", False),
        ("train.compile=true", False),
        ("train.lr_rule=adascale", False),
        ("train.gradient_sync=naive", False),
        ("workload.model=mlp", False),
    ],
)
def test_which_timings_count_for_which_training(override, counts):
    timings = last([record(make_plan(spec_of(ONE)).trials[0], 1.0)])
    assert (estimate(make_plan(spec_of(ONE, override)), timings).seconds is not None) == counts


def test_where_one_trial_was_not_timed_no_number_is_given():
    plan = make_plan(spec_of("name: x\nsweep: {num_gpus: [2], batch_size: [8], train.gradient_sync: [ddp, naive]}"))
    found = estimate(plan, last([record(plan.trials[0], 1.0)]))
    assert (found.seconds, found.worker_seconds, found.timed) == (None, None, 1)
    assert estimate(plan, LastTimings([])).seconds is None


def test_a_timing_run_counts_by_its_rate_after_the_warm_up():
    trial = make_plan(spec_of(ONE)).trials[0]
    timing = Timing.of(record(trial, 99.0, kind="timing"), "runs/a")
    assert (timing.example_seconds, timing.evaluation_seconds, timing.epoch_examples) == (1 / 640, None, None)
    assert Timing.of({**record(trial, 99.0, kind="timing"), "epochs": []}, "runs/a") is None


def test_a_search_is_estimated_at_the_corners_of_its_space_in_turn():
    spec = spec_of(TWO + "\nsearch: {method: tpe, samples: 10}")
    grid = make_plan(spec_of(TWO))
    timings = last([record(trial, float(trial.num_gpus)) for trial in grid.trials])
    found = estimate(make_plan(spec), timings, corners=corner_trials(spec))
    assert (len(found.trials), found.epochs, found.worker_epochs) == (2, 4, 8), "all points of the space, the most"
    assert sorted(found.seconds) == [2 * 1.5, 2 * 2.5]


def test_a_timing_run_takes_its_steps_and_two_seconds_at_least():
    sweep = "sweep: {num_gpus: [1, 2], batch_size: [32, 128], learning_rate: [0.1, 0.2], seed: [0, 1]}"
    plan = make_plan(spec_of(f"name: x\ntrain: {{epochs: 4}}\n{sweep}"))
    found = estimate(plan, last([record(plan.trials[0], 4.0)]), timed_alone=True)
    # 16 trials of 4 epochs; 2 batches × 2 sizes are timed twice
    assert (len(found.trials), found.epochs, found.worker_epochs) == (16, 64, 8 * 4 + 8 * 4 * 2)
    assert len(found.timing_runs) == 8
    assert found.seconds[:16] == [18.0] * 16
    # 65 steps of 32 or 128 examples, an example 4 / 320 s
    assert {round(seconds, 6) for seconds in found.seconds[16:]} == {65 * 32 / 80, 65 * 128 / 80}
    quick = estimate(plan, last([record(plan.trials[0], 0.001)]), timed_alone=True)
    whole = 5 * 128 * 0.001 / 320 + TIMED_SECONDS  # after five steps of warm-up
    assert quick.seconds[-1] == pytest.approx(whole)


def test_timing_runs_follow_trials_that_run_side_by_side():
    plan = make_plan(spec_of(TWO))
    assert [trial.num_gpus for trial in estimate(plan, LastTimings([]), timed_alone=True).timing_runs] == [1, 2, 1, 2]
    assert estimate(plan, LastTimings([])).timing_runs == []


LOOP = """
name: x
workload: {loop: 'my:loop', exact: true}
train: {epochs: 4}
sweep: {num_gpus: [1, 2], batch_size: [32]}
"""


def reports(trial, *seconds, samples=320):
    """A record of a loop, whose reports include its evaluation."""
    plain = record(trial, *seconds)
    for epoch in plain["epochs"]:
        epoch |= {"eval_seconds": None, "samples_per_second": None, "samples": samples}
    return plain


def test_a_loop_takes_what_its_reports_took():
    plan = make_plan(spec_of(LOOP))
    found = estimate(plan, last([reports(trial, 3.0, 3.0, 3.0, 3.0) for trial in plan.trials]))
    assert found.seconds == pytest.approx([12.0, 12.0])
    assert (found.epochs, found.worker_epochs, found.timed) == (8, 12, 2)


def test_the_timing_run_of_a_loop_takes_three_reports():
    plan = make_plan(spec_of(LOOP))
    (one, _) = plan.trials
    assert last([reports(one, 3.0, 3.0)]).timing_run(one) == pytest.approx(9.0)


def test_a_loop_that_told_no_examples_is_not_estimated():
    plan = make_plan(spec_of(LOOP))
    (one, two) = plan.trials
    assert Timing.of(reports(one, 3.0, samples=0), "runs/0") is None
    assert Timing.of(reports(two, 3.0, samples=None), "runs/0") is None
