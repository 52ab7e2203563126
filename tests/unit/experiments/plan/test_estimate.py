"""What a study is estimated to cost."""

import json

import pytest

from scalestudy.experiments.plan.estimate import ONE_TIMING, estimate, step_ratios
from scalestudy.experiments.plan.plan import corner_trials, make_plan
from tests.support.factorised import SMALL, grid_of
from tests.support.synthetic_studies import spec_of, study_of
from tests.support.trials import Law, make_trials

GRID = "name: x\nsweep: {num_gpus: [2, 1], batch_size: [64, 32], learning_rate: [0.2, 0.1], seed: [1, 0]}"


def test_the_cost_is_estimated_from_earlier_epochs():
    text = "name: x\ntrain: {epochs: 3}\nsweep: {num_gpus: [1, 2], batch_size: [8]}"
    _, plan, trials = study_of(text)
    first = plan.trials[0]
    known = [{**trial, "workload": first.workload, "train": {**first.train, "epochs": 9}} for trial in trials]
    for trial in known:
        for epoch in trial["epochs"]:
            epoch.update(train_seconds=2.0, eval_seconds=0.5)
    cost = estimate(plan, known)
    # 2 trials × 3 epochs × 2.5 s; the second with 2 workers: 7.5 · 1 + 7.5 · 2
    assert (cost.trials, cost.epochs, cost.worker_epochs) == (2, 6, 9)
    assert (cost.seconds, cost.worker_seconds, cost.why) == (15.0, 22.5, None)


def test_a_timing_of_another_way_of_training_does_not_count():
    _, plan, trials = study_of("name: x\nsweep: {num_gpus: [2], batch_size: [8], train.gradient_sync: [ddp, naive]}")
    ddp, naive = plan.trials
    known = [{**trials[0], "workload": trial.workload, "train": trial.train} for trial in (ddp, naive)]
    known = [
        {**trial, "epochs": [{"train_seconds": seconds}]} for trial, seconds in zip(known, (1.0, 9.0), strict=True)
    ]
    assert estimate(plan, known).seconds == 10 * (1.0 + 9.0)  # 10 epochs each, by their own timing


def test_a_timing_of_a_version_without_later_keys_counts():
    _, plan, trials = study_of("name: x\nsweep: {num_gpus: [2], batch_size: [8]}")
    (trial,) = plan.trials
    workload = {key: value for key, value in trial.workload.items() if key != "task"}
    train = {key: value for key, value in trial.train.items() if key not in ("warmup_steps", "unused_parameters")}
    train["optimizer"] = {"name": "sgd", "momentum": 0.0, "weight_decay": 0.0}
    earlier = {**trials[0], "workload": workload, "train": train, "epochs": [{"train_seconds": 2.0}]}
    assert estimate(plan, [earlier]).seconds == 10 * 2.0
    assert estimate(plan, [{**earlier, "workload": {**workload, "task": "my_task:Task"}}]).seconds is None


@pytest.mark.parametrize("turned", [False, True])
def test_of_trials_alike_those_on_the_fewest_nodes_count(turned):
    text = "name: x\ntrain: {epochs: 3}\nsweep: {num_gpus: [2], batch_size: [8], seed: [0, 1, 2]}"
    _, plan, trials = study_of(text)
    known = []
    for trial, seconds, nodes in zip(trials, (2.0, 10.0, 2.0), (1, 2, 1), strict=True):
        epochs = [{**epoch, "train_seconds": seconds, "eval_seconds": 0.0} for epoch in trial["epochs"]]
        like = {"workload": plan.trials[0].workload, "train": plan.trials[0].train}
        known.append({**trial, **like, "epochs": epochs, "world": {**trial["world"], "nodes": nodes}})
    assert estimate(plan, reversed(known) if turned else known).seconds == 3 * 3 * 2.0
    assert estimate(plan, known[1:2]).seconds == 3 * 3 * 10.0, "there are no others"


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
    ],
)
def test_which_timings_count_for_which_training(override, counts):
    text = "name: x\nsweep: {batch_size: [8]}"
    _, plan, trials = study_of(text)
    known = [{**trials[0], "workload": plan.trials[0].workload, "train": plan.trials[0].train}]
    assert (estimate(make_plan(spec_of(text, override)), known).seconds is not None) == counts


def test_without_earlier_epochs_the_cost_says_why():
    _, plan, trials = study_of(GRID)
    for earlier in ([], trials, [{**trials[0], "workload": {"model": "other"}}]):
        cost = estimate(plan, earlier)
        assert (cost.seconds, cost.worker_seconds) == (None, None)
        assert "16 of 16" in cost.why


# --- intervals --------------------------------------------------------------------------------------------------------


def timed(trial, seconds, flags=(), kind="training", **more):
    """A record whose epochs of ten steps took so many seconds each, with no evaluation."""
    epochs = [{"train_seconds": each, "eval_seconds": None, "steps": 10, **more} for each in seconds]
    whole = {"kind": kind, "params": trial.params, "flags": list(flags), "epochs": epochs}
    return {**whole, "workload": trial.workload, "train": trial.train}


ONE = "name: x\ntrain: {epochs: 2}\nsweep: {num_gpus: [1], batch_size: [32]}"
TWO_SIZES = "name: x\ntrain: {epochs: 2}\nsweep: {num_gpus: [1, 2], batch_size: [32, 64]}"


def test_nine_in_ten_of_the_epochs_timed_lie_in_the_interval():
    plan = make_plan(spec_of(ONE))
    cost = estimate(plan, [timed(plan.trials[0], [float(number) for number in range(1, 22)])])
    # of 1 … 21 the median is 11; 5 % and 95 % of the way lie 2 and 20; two epochs each
    assert (cost.seconds, cost.seconds_between) == (22.0, (4.0, 40.0))
    assert (cost.timed, cost.why) == (1, None)


def test_what_was_not_timed_is_scaled_between_the_extremes():
    plan = make_plan(spec_of(TWO_SIZES))
    cost = estimate(plan, [timed(plan.trials[0], [1.0, 1.0])])
    # a step of 1 worker, batch 32, took 0.1 s. Batch 64: 5 steps of 0.1 to 0.2 s an epoch. Two workers: half of it,
    # or 1.5 times: batch 32: 10 of 0.05 to 0.15 s; batch 64: 5 of 0.1 (per worker 32) to 0.3 s. Two epochs each
    assert cost.seconds is None
    assert cost.seconds_between == pytest.approx((2 * (1 + 0.5 + 0.5 + 0.5), 2 * (1 + 1 + 1.5 + 1.5)))
    assert cost.worker_seconds_between == pytest.approx((2 * (1 + 0.5 + 1 + 1), 2 * (1 + 1 + 3 + 3)))
    assert cost.timed == 1
    assert cost.why == "no earlier timing for 3 of 4 trials"


@pytest.mark.parametrize("shift", range(3))
def test_the_interval_holds_whatever_a_step_consists_of(shift):
    """Steps of any fixed part and any part that goes with the batch of each worker, from each cell to each other."""
    for fixed in (0.0, 0.3, 1.0):
        for workers, batch, more, larger in ((1, 32, 2, 256), (4, 512, 1, 32), (2, 64, 8, 64 << shift)):
            seconds = [fixed + (1 - fixed) * b / n for n, b in ((workers, batch), (more, larger))]
            low, high = step_ratios(workers, batch, more, larger)
            assert low <= seconds[1] / seconds[0] <= high


def test_steps_with_the_machine_to_themselves_count_before_disturbed_ones():
    plan = make_plan(spec_of(ONE))
    (trial,) = plan.trials
    packed = timed(trial, [3.0, 3.0], flags=["shared_node"])
    assert estimate(plan, [packed]).seconds == 6.0, "there is nothing better"
    alone = timed(trial, [9.0], kind="timing", samples=320, samples_per_second=320.0)
    # the timing run's step takes 320 / 10 / 320 = 0.1 s by its rate, its warm-up left out; ten steps, two epochs
    assert estimate(plan, [packed, alone]).seconds == pytest.approx(2.0)


def test_a_timing_run_without_any_whole_epoch_needs_the_steps_of_one():
    plan = make_plan(spec_of(ONE))
    run = timed(plan.trials[0], [9.0], kind="timing", samples=320, samples_per_second=320.0)
    assert estimate(plan, [run]).seconds_between is None
    low, high = estimate(plan, [{**run, "epoch_steps": 20, "evaluations": [0.0, 1.0]}]).seconds_between
    # 20 steps of 0.1 s, timed once, and an evaluation of up to 1 s, twice
    assert low == pytest.approx(2 * (2 / ONE_TIMING + 0.05))
    assert high == pytest.approx(2 * (2 * ONE_TIMING + 0.95))


def test_a_search_costs_between_its_cheapest_and_its_dearest_corner():
    spec = spec_of(TWO_SIZES + "\nsearch: {method: tpe, samples: 10}")
    grid = make_plan(spec_of(TWO_SIZES))
    corners = corner_trials(spec)
    cost = estimate(make_plan(spec), [timed(grid.trials[0], [1.0, 1.0])], corners=corners)
    assert (cost.seconds, cost.trials) == (None, 4)  # all points of the space
    assert cost.seconds_between == pytest.approx((4 * 2 * 0.5, 4 * 2 * 1.5))
    assert estimate(make_plan(spec), [], corners=corners).seconds_between is None


# --- factorised grids -------------------------------------------------------------------------------------------------


def records_of_epochs(plan, trials, seconds):
    """Records as an earlier study's, each epoch of so many seconds by num_gpus."""
    found = []
    for trial, record in zip(plan.trials, trials, strict=True):
        epochs = [{"train_seconds": seconds[trial.num_gpus], "eval_seconds": 0.0, "steps": 10}]
        found.append({**record, "workload": trial.workload, "train": trial.train, "epochs": epochs})
    return found


def test_the_estimate_counts_trainings_held_out_cells_and_timing_runs():
    plan = make_plan(spec_of(SMALL))
    cost = estimate(plan, [])
    # 8 trainings and 2 cells × 2 seeds, 4 epochs each; those with 2 workers count twice
    assert (cost.trials, cost.epochs, cost.worker_epochs, cost.timings) == (12, 48, 8 * 4 + 4 * 4 * 2, 8)
    assert estimate(plan, [], timing_runs=1).timings == 4
    assert (cost.grid.trials, cost.grid.worker_epochs) == (16, 8 * 4 + 8 * 4 * 2)
    assert (cost.seconds, cost.grid.seconds) == (None, None)
    assert "no earlier timing" in cost.why
    assert json.loads(json.dumps(cost.to_dict()))["grid"]["trials"] == 16


def test_the_estimate_in_seconds():
    plan, grid = make_plan(spec_of(SMALL)), grid_of(SMALL)
    cost = estimate(plan, records_of_epochs(grid, make_trials(grid, Law()), {1: 2.0, 2: 1.5}))
    # trainings 8 × 4 × 2 s; held out 4 × 4 × 1.5 s; timings 65 steps of 0.2 s and of 0.15 s, two batch sizes, twice
    assert cost.seconds == pytest.approx(64 + 24 + 4 * 65 * (0.2 + 0.15))
    assert cost.worker_seconds == pytest.approx(64 + 48 + 4 * 65 * (0.2 + 0.3))
    assert cost.grid.worker_seconds == pytest.approx(64 + 8 * 4 * 1.5 * 2)
    trained = records_of_epochs(plan, make_trials(plan, Law()), {1: 2.0})
    assert estimate(plan, trained).seconds is None, "nobody knows what two workers take"
