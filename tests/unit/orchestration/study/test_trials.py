"""A planned trial becomes what the training loop takes."""

from scalestudy.experiments.plan.plan import make_plan
from scalestudy.experiments.plan.timing_runs import timing_trials
from scalestudy.orchestration.study.trials import order, train_config
from scalestudy.training.config import TrainKnobs, keys
from tests.support.synthetic_studies import spec_of, study_of


def test_a_planned_trial_without_a_later_key_trains_with_its_default():
    (trial,) = make_plan(spec_of("name: x")).trials
    del trial.train["augment"]
    assert train_config(trial, "data").augment == "none"


def test_every_key_of_train_reaches_the_training():
    (trial,) = make_plan(spec_of("name: x\ntrain: {epochs: 7, shards: [1.0], optimizer: {weight_decay: 0.5}}")).trials
    config = train_config(trial, "data")
    assert set(trial.train) == {key.name for key in keys(TrainKnobs)} | {"checkpoint_every"}
    assert {key: config.to_dict()[key] for key in trial.train if key != "checkpoint_every"} == {
        key: value for key, value in trial.train.items() if key != "checkpoint_every"
    }
    assert (config.epochs, config.shards, config.optimizer.weight_decay) == (7, (1.0,), 0.5)


def test_the_order_says_which_way_is_better(tmp_path):
    _, plan, _ = study_of("name: x")
    assert order(plan.trials[0], tmp_path, tmp_path / "t").metric_mode == "max"


STEPS = 65  # five to warm up, sixty to be timed


def test_the_training_loop_takes_a_timing_trial():
    text = "name: x\nsweep: {num_gpus: [1, 2], train.gradient_sync: [ddp, powersgd, local_sgd]}"
    spec, plan, trials = study_of(text, flags={"*": ["shared_node"]})
    for trial in timing_trials(spec, plan.trials, {each["trial_id"]: each for each in trials}):
        config = train_config(trial, "data")
        assert (config.max_steps, config.warm_up_steps) == (STEPS, 5)
    assert all(train_config(trial, "data").max_steps is None for trial in plan.trials)
