"""The plan of a study: its trials, their order and their ids."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalestudy.experiments.plan.plan import Plan, corner_trials, label, make_plan, step_params
from scalestudy.orchestration.study.trials import train_config
from tests.support.synthetic_studies import spec_of
from tests.support.timed_studies import packed_study

GRID = "name: x\nsweep: {num_gpus: [2, 1], batch_size: [64, 32], learning_rate: [0.2, 0.1], seed: [1, 0]}"


def test_order_is_by_num_gpus_then_as_the_grid_runs():
    names = [trial.name for trial in make_plan(spec_of(GRID)).trials]
    assert names[:5] == [
        "workers=1 batch=64 lr=0.2 seed=1",
        "workers=1 batch=64 lr=0.2 seed=0",
        "workers=1 batch=64 lr=0.1 seed=1",
        "workers=1 batch=64 lr=0.1 seed=0",
        "workers=1 batch=32 lr=0.2 seed=1",
    ]
    assert names[8] == "workers=2 batch=64 lr=0.2 seed=1"
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
    assert last.name == "workers=1 batch=256 lr=0.1 seed=0 gradient_sync=naive momentum=0.9"
    assert "seed" not in last.cell
    assert plan.trials[0].train["optimizer"]["momentum"] == 0


def test_swept_arguments_of_model_and_data_are_put_in_and_named():
    text = "name: x\nworkload: {model: mlp, model_args: {hidden: [8], dropout: 0.1}}\nsweep:\n"
    swept = "  {workload.model_args.hidden: [[16], [16, 8]], workload.data_args.seed: [3, null]}"
    spec = spec_of(text + swept)
    trials = make_plan(spec).trials
    assert [trial.name.partition("seed=0 ")[2] for trial in trials] == [
        "model.hidden=[16] data.seed=3",
        "model.hidden=[16] data.seed=null",
        "model.hidden=[16,8] data.seed=3",
        "model.hidden=[16,8] data.seed=null",
    ]
    assert trials[2].workload["model_args"] == {"hidden": [16, 8], "dropout": 0.1}
    assert trials[2].workload["data_args"] == {"seed": 3}
    assert len({trial.trial_id for trial in trials}) == 4
    assert train_config(trials[3], "data").model_args == {"hidden": [16, 8], "dropout": 0.1}
    assert spec.workload.model_args["hidden"] == [8]


def test_a_swept_argument_gives_a_trial_the_id_that_it_has_without_the_sweep():
    swept = make_plan(spec_of("name: x\nworkload: {model: mlp}\nsweep: {workload.model_args.hidden: [[16]]}")).trials[0]
    plain = make_plan(spec_of("name: x\nworkload: {model: mlp, model_args: {hidden: [16]}}")).trials[0]
    assert swept.trial_id == plain.trial_id


def test_the_plan_is_plain_data_and_back():
    grid = spec_of("name: x\nsweep: {num_gpus: [2], train.shards: [even, [1, 3]]}")
    searched = spec_of("name: x\nsearch: {method: tpe}\nsweep: {num_gpus: [1, 2], learning_rate: [0.1, 0.2]}")
    for plan in map(make_plan, (searched, grid)):
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


def test_ids_of_specs_from_before_schedules_had_arguments_are_as_they_were():
    """Of version 0.2."""
    assert ids("name: x\ntrain: {schedule: cosine}") == ids("name: x\ntrain: {schedule: {name: cosine}}")
    assert ids("name: x\ntrain: {schedule: cosine}") == ["2b6f19b5a187"]
    swept = "sweep: {train.schedule: [constant, cosine, 'my:f'], train.warmup_steps: [5]}"
    assert ids(f"name: x\n{swept}") == ["e0bf7b5f4e45", "748b9ec0d548", "e73cc241f231"]


def test_the_arguments_of_a_schedule_are_swept_like_others():
    own = "name: x\ntrain: {schedule: 'my:f'}\nsweep: {train.schedule.args.gamma: [0.1, 0.2]}"
    trials = make_plan(spec_of(own)).trials
    assert [trial.name.partition("seed=0 ")[2] for trial in trials] == ["schedule.gamma=0.1", "schedule.gamma=0.2"]
    assert [train_config(trial, "data").schedule.args for trial in trials] == [{"gamma": 0.1}, {"gamma": 0.2}]
    plain = ids("name: x\ntrain: {schedule: {name: 'my:f', args: {gamma: 0.1}, per: step}}")
    assert plain == [trials[0].trial_id]
    whole = "name: x\nsweep: {train.schedule: [cosine, {name: 'my:f', args: {gamma: 0.1}}, {name: linear, per: epoch}]}"
    assert ids(whole)[1] == plain[0]
    names = [trial.name.partition("seed=0 ")[2] for trial in make_plan(spec_of(whole)).trials]
    assert names == ["schedule=cosine", "schedule=my:f(gamma=0.1)", "schedule=linear(per=epoch)"]


def test_a_schedule_and_an_argument_of_it_may_both_be_swept():
    swept = "sweep: {train.schedule.args.floor: [0.1], train.schedule: [cosine, {name: linear, args: {floor: 0.3}}]}"
    found = [train_config(trial, "data").schedule for trial in make_plan(spec_of(f"name: x\n{swept}")).trials]
    assert [(each.name, each.args) for each in found] == [("cosine", {"floor": 0.1}), ("linear", {"floor": 0.1})]


def test_no_part_of_a_schedule_changes_the_time_of_a_step():
    keys = ("train.schedule", "train.schedule.args.gamma", "train.schedule.per", "train.warmup_share", "learning_rate")
    assert step_params({**dict.fromkeys(keys, 1), "num_gpus": 2, "train.precision": "bf16"}) == {
        "num_gpus": 2,
        "train.precision": "bf16",
    }


def test_an_id_does_not_depend_on_how_the_value_came_in():
    swept = ids("name: x\nsweep: {train.gradient_sync: [naive]}")
    assert swept == ids("name: x\ntrain: {gradient_sync: naive}")
    assert ids("name: x\nsweep: {learning_rate: [1]}") == ids("name: x\nsweep: {learning_rate: [1.0]}")


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
        label({"num_gpus": 2, "learning_rate": 1e-05, "train.shards": [1.0, 3.0]})
        == "workers=2 lr=1e-05 shards=[1.0,3.0]"
    )


def test_the_corners_of_a_search_are_what_the_training_loop_takes():
    spec = spec_of(
        """
        name: x
        sweep: {num_gpus: [1, 2], learning_rate: {log_uniform: [0.01, 1]}, train.schedule: [cosine, one_cycle]}
        search: {method: tpe}
        """
    )
    corners = corner_trials(spec)
    assert {(each.num_gpus, each.learning_rate, each.train["schedule"]) for each in corners} == {
        (gpus, rate, schedule) for gpus in (1, 2) for rate in (0.01, 1.0) for schedule in ("cosine", "one_cycle")
    }
    for trial in corners:
        train_config(trial, "data").weights(trial.num_gpus)


# --- timing runs ------------------------------------------------------------------------------------------------------


def some(numbers, most=3):
    return st.lists(numbers, min_size=1, max_size=most, unique=True)


@given(
    some(st.integers(1, 8)),
    some(st.integers(8, 64)),
    some(st.sampled_from([0.05, 0.1, 0.2])),
    some(st.integers(0, 9)),
)
def test_every_cell_is_trained_with_every_seed_and_every_step_timed_twice(gpus, batches, rates, seeds):
    sweep = f"sweep: {{num_gpus: {gpus}, batch_size: {batches}, learning_rate: {rates}, seed: {seeds}}}"
    study = packed_study(f"name: x\n{sweep}")
    keys = ("num_gpus", "batch_size", "learning_rate", "seed")
    trained = [tuple(trial["params"][key] for key in keys) for trial in study.trained]
    assert sorted(trained) == sorted(itertools.product(gpus, batches, rates, seeds))
    assert study.plan.expected_trials == len(trained)
    assert [cell["num_gpus"] for cell in study.plan.cells] == sorted(len(batches) * len(rates) * gpus)
    timed = [(trial["params"]["num_gpus"], trial["params"]["batch_size"]) for trial in study.timings]
    assert sorted(timed) == sorted(2 * [(gpu, batch) for gpu in gpus for batch in batches])
    ids = [trial["trial_id"] for trial in study.trials]
    assert len(set(ids)) == len(ids)
