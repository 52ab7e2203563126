"""A planned trial becomes what the training loop takes."""

import pytest

from scalestudy.experiments.plan.plan import make_plan
from scalestudy.experiments.plan.timing_runs import timing_trials
from scalestudy.orchestration.study.trials import order, train_config
from scalestudy.training.config import Train
from tests.support.synthetic_studies import spec_of, study_of


def test_every_key_of_train_reaches_the_training():
    (trial,) = make_plan(spec_of("name: x\ntrain: {epochs: 7, shards: [1.0], optimizer: {weight_decay: 0.5}}")).trials
    config = train_config(trial, "data")
    assert set(trial.train) == Train.model_fields.keys()
    assert {key: config.to_dict()[key] for key in trial.train} == trial.train
    assert (config.epochs, config.shards, config.optimizer.weight_decay) == (7, (1.0,), 0.5)


@pytest.mark.parametrize(("every", "kept"), [(1, True), (0, False)])
def test_a_trial_writes_checkpoints_where_the_spec_wants_some(tmp_path, every, kept):
    (trial,) = make_plan(spec_of(f"name: x\ntrain: {{checkpoint_every: {every}}}")).trials
    assert order(trial, tmp_path, tmp_path / "t").checkpoints == (str(tmp_path / "t") if kept else None)


def test_a_training_stops_at_the_hardest_target_and_a_timing_run_at_none(tmp_path):
    text = "name: x\nworkload: {metric: mse, metric_mode: min}\ntargets: {accuracy: [0.2, 0.1, 0.3], stop: true}"
    spec, plan, trials = study_of(text, flags={"*": ["shared_node"]})
    assert spec.stop_target == spec.hardest_target == 0.1
    (timing, *_) = timing_trials(spec, plan.trials, {each["trial_id"]: each for each in trials})
    ends = [order(trial, tmp_path, tmp_path / "t", stop_at=0.1).stop_at for trial in (plan.trials[0], timing)]
    assert ends == [0.1, None]
    goes_on = spec_of(text.replace("true", "false"))
    assert (goes_on.stop_target, goes_on.hardest_target) == (None, 0.1)
    assert spec_of("name: x\ntargets: {accuracy: [0.2, 0.3]}").hardest_target == 0.3
    assert spec_of("name: x").hardest_target is None


STEPS = 65  # five to warm up, sixty to be timed


def test_the_training_loop_takes_a_timing_trial():
    text = "name: x\nsweep: {num_gpus: [1, 2], train.gradient_sync: [ddp, powersgd, local_sgd]}"
    spec, plan, trials = study_of(text, flags={"*": ["shared_node"]})
    for trial in timing_trials(spec, plan.trials, {each["trial_id"]: each for each in trials}):
        config = train_config(trial, "data")
        assert (config.max_steps, config.warm_up_steps, config.min_seconds) == (STEPS, 5, 2.0)
    assert all(train_config(trial, "data").max_steps is None for trial in plan.trials)
