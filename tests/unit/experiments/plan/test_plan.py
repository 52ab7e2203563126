"""The plan of a study."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalestudy.experiments.plan.estimate import estimate
from scalestudy.experiments.plan.plan import Plan, label, make_plan
from tests.support.synthetic_studies import spec_of, study_of

GRID = "name: x\nsweep: {num_gpus: [2, 1], batch_size: [64, 32], learning_rate: [0.2, 0.1], seed: [1, 0]}"


def test_order_is_by_num_gpus_then_as_the_grid_runs():
    names = [trial.run_name for trial in make_plan(spec_of(GRID)).trials]
    assert names[:5] == [
        "gpus=1 batch=64 lr=0.2 seed=1",
        "gpus=1 batch=64 lr=0.2 seed=0",
        "gpus=1 batch=64 lr=0.1 seed=1",
        "gpus=1 batch=64 lr=0.1 seed=0",
        "gpus=1 batch=32 lr=0.2 seed=1",
    ]
    assert names[8] == "gpus=2 batch=64 lr=0.2 seed=1"
    assert len(set(names)) == 16


def test_points_are_multiplied_with_the_lists():
    plan = make_plan(
        spec_of("name: x\nsweep: {points: [{num_gpus: 2, batch_size: 8}, {num_gpus: 1, batch_size: 4}], seed: [0, 1]}")
    )
    assert [(trial.num_gpus, trial.batch_size, trial.seed) for trial in plan.trials] == [
        (1, 4, 0),
        (1, 4, 1),
        (2, 8, 0),
        (2, 8, 1),
    ]


def test_swept_train_keys_are_put_in_and_named():
    plan = make_plan(spec_of("name: x\nsweep: {train.gradient_sync: [naive], train.optimizer.momentum: [0, 0.9]}"))
    last = plan.trials[-1]
    assert (last.train["gradient_sync"], last.train["optimizer"]["momentum"]) == ("naive", 0.9)
    assert last.params["train.optimizer.momentum"] == 0.9
    assert last.run_name == "gpus=1 batch=256 lr=0.1 seed=0 gradient_sync=naive momentum=0.9"
    assert "seed" not in last.cell
    assert plan.trials[0].train["optimizer"]["momentum"] == 0


def test_the_plan_is_plain_data_and_back():
    plan = make_plan(spec_of("name: x\nsweep: {num_gpus: [2], train.shards: [even, [1, 3]]}"))
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    with pytest.raises(ValueError, match="version"):
        Plan.from_dict({**plan.to_dict(), "version": 0})


def ids(text, *overrides):
    return [trial.trial_id for trial in make_plan(spec_of(text, *overrides)).trials]


def test_ids_are_twelve_hex_digits_and_differ():
    found = ids(GRID)
    assert len(set(found)) == len(found) == 16
    assert all(len(each) == 12 and set(each) <= set("0123456789abcdef") for each in found)


@pytest.mark.parametrize(
    "override",
    [
        "train.epochs=3",
        "workload.model=mlp",
        "workload.model_args={init: normal}",
        "resources.cpus_per_worker=2",
        "resources.device=cuda",
        "train.optimizer.momentum=0.9",
        "train.gradient_sync=naive",
        "train.lr_rule=linear",
        "train.schedule=cosine",
        "train.precision=bf16",
        "train.channels_last=auto",
        "train.accumulation=2",
        "train.shards=speed",
        "train.warmup_epochs=0.5",
        "train.augment=crop_flip",
    ],
)
def test_what_can_change_a_result_changes_the_id(override):
    assert not set(ids(GRID)) & set(ids(GRID, override))


@pytest.mark.parametrize(
    "override",
    [
        "name=y",
        "description=other",
        "storage=elsewhere",
        "targets.accuracy=[0.5]",
        "limits.trial_minutes=1",
        "resources.exclusive=true",
        "search.samples=3",
        "tracking.experiment=e",
        "train.checkpoint_every=0",
    ],
)
def test_what_can_not_change_a_result_keeps_the_id(override):
    assert ids(GRID) == ids(GRID, override)


def test_an_id_does_not_depend_on_how_the_value_came_in():
    swept = ids("name: x\nsweep: {train.gradient_sync: [naive]}")
    assert swept == ids("name: x\ntrain: {gradient_sync: naive}")
    assert ids("name: x\nsweep: {learning_rate: [1]}") == ids("name: x\nsweep: {learning_rate: [1.0]}")


def test_an_id_once_given_stays():
    """Guards `--extend` and resume over releases: a change of this value orphans every recorded trial."""
    assert ids("name: x") == ["83584a54b4a4"]


@given(
    st.lists(st.integers(1, 8), min_size=1, max_size=3, unique=True),
    st.lists(st.integers(8, 64), min_size=1, max_size=3, unique=True),
    st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True),
)
def test_the_grid_is_complete_and_sorted(gpus, batches, seeds):
    plan = make_plan(spec_of(f"name: x\nsweep: {{num_gpus: {gpus}, batch_size: {batches}, seed: {seeds}}}"))
    got = {(trial.num_gpus, trial.batch_size, trial.seed) for trial in plan.trials}
    assert got == {(g, b, s) for g in gpus for b in batches for s in seeds}
    assert len(plan.trials) == len(got)
    workers = [trial.num_gpus for trial in plan.trials]
    assert workers == sorted(workers)


def test_labels_are_short():
    assert (
        label({"num_gpus": 2, "learning_rate": 1e-05, "train.shards": [1.0, 3.0]}) == "gpus=2 lr=1e-05 shards=[1.0,3.0]"
    )


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
