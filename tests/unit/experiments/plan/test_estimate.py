"""What a study is estimated to cost."""

import json

import pytest

from scalestudy.experiments.plan.estimate import estimate
from scalestudy.experiments.plan.plan import make_plan
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
    assert (cost.seconds, cost.gpu_seconds, cost.why) == (15.0, 22.5, None)


def test_a_timing_of_another_way_of_training_does_not_count():
    _, plan, trials = study_of("name: x\nsweep: {num_gpus: [2], batch_size: [8], train.gradient_sync: [ddp, naive]}")
    ddp, naive = plan.trials
    known = [{**trials[0], "workload": trial.workload, "train": trial.train} for trial in (ddp, naive)]
    known = [
        {**trial, "epochs": [{"train_seconds": seconds}]} for trial, seconds in zip(known, (1.0, 9.0), strict=True)
    ]
    assert estimate(plan, known).seconds == 10 * (1.0 + 9.0)  # 10 epochs each, by their own timing


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
        assert (cost.seconds, cost.gpu_seconds) == (None, None)
        assert "16 of 16" in cost.why


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
    assert cost.gpu_seconds == pytest.approx(64 + 48 + 4 * 65 * (0.2 + 0.3))
    assert cost.grid.gpu_seconds == pytest.approx(64 + 8 * 4 * 1.5 * 2)
    trained = records_of_epochs(plan, make_trials(plan, Law()), {1: 2.0})
    assert estimate(plan, trained).seconds is None, "nobody knows what two workers take"
