"""A planned trial becomes what the training loop takes."""

from scalestudy.experiments.plan.plan import make_plan
from scalestudy.orchestration.study.trials import train_config
from scalestudy.training.config import TrainKnobs, keys
from tests.support.synthetic_studies import spec_of


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
