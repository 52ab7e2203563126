"""A config as arguments, and back."""

import shlex

import hypothesis.strategies as st
import pytest
from hypothesis import given

from scalestudy.training.arguments import OF_STUDIES, make_arguments, make_config, make_parser
from scalestudy.training.config import LoaderConfig, OptimizerConfig, ScheduleConfig, TrainConfig

LEAST = {"model": "lenet", "data": "digits", "batch_size": 64, "learning_rate": 0.1}
OTHER = {
    "epochs": 3,
    "evaluate_batches": 2,
    "optimizer": OptimizerConfig(name="sgd", momentum=0.9, weight_decay=1e-05, nesterov=True),
    "lr_rule": "linear",
    "base_batch_size": 32,
    "warmup_epochs": 0.5,
    "schedule": ScheduleConfig(name="my_module:factor", args={"gamma": 0.5}, per="epoch"),
    "gradient_clip": 1e-07,
    "precision": "bf16",
    "channels_last": "auto",
    "compile": "reduce-overhead",
    "cudnn_benchmark": True,
    "accumulation": 2,
    "unused_parameters": True,
    "augment": "crop_flip",
    "gradient_sync": "my_module:build",
    "powersgd_rank": 4,
    "local_steps": 3,
    "sync_batch_norm": True,
    "shards": (3.0, 0.0, 1.5),
    "warm_up_steps": 0,
    "model": "torchvision:resnet18",
    "data": "my_data:load",
    "batch_size": 100,
    "learning_rate": 3.0,
    "seed": 7,
    "model_args": {"init": "it's", "hidden": [16, 8], "none": None, "ä": {"a b": True}},
    "data_args": {"train_samples": 60},
    "data_root": "--folder",
    "loss": "mse",
    "metric": "mse",
    "loader": LoaderConfig(workers=2, prefetch=4),
    "max_steps": 60,
    "checkpoint_every": 0,
}

APART = {
    "steps": {"epochs": None, "steps": 50},
    "tokens": {"epochs": None, "tokens": 50, "task": "my_task:Task", "metric": "f1"},
    "eval_every": {"epochs": None, "steps": 50, "eval_every": {"steps": 5}},
    "warmup_steps": {"warmup_steps": 5},
    "warmup_tokens": {"warmup_tokens": 5, "task": "my_task:Task", "metric": "f1"},
    "warmup_share": {"warmup_share": 0.1},
    "task": {"task": "my_task:Task", "metric": "f1"},
    "task_args": {"task": "my_task:Task", "metric": "f1", "task_args": {"smoothing": 0.1}},
    "min_seconds": {"max_steps": 60, "min_seconds": 2.5},
}
"""Keys that don't go with some of the others."""


def read(arguments):
    return make_config(make_parser("").parse_args(arguments))


def test_of_the_defaults_nothing_is_told():
    told = "--model lenet --data digits --batch-size 64 --learning-rate 0.1"
    assert make_arguments(TrainConfig(**LEAST)) == told.split()


def test_every_key_has_another_value_here():
    plain = TrainConfig(**LEAST).to_dict()
    same = {key for key, value in TrainConfig(**OTHER).to_dict().items() if value == plain[key]}
    assert same == {*OF_STUDIES, *APART}


@pytest.mark.parametrize("key", OTHER)
def test_a_value_of_any_key_comes_back(key):
    config = TrainConfig(**{**LEAST, key: OTHER[key]})
    assert read(make_arguments(config)) == config
    assert getattr(read(make_arguments(config)), key) == OTHER[key]


OPTIMIZERS = (
    OptimizerConfig(name="adamw", betas=(0.9, 0.95), eps=1e-07, amsgrad=True),
    OptimizerConfig(momentum=0.5, dampening=0.25),
    OptimizerConfig(name="my_optimizer:build", args={"layers": [1, 2]}),
)


@pytest.mark.parametrize("changes", [*APART.values(), *({"optimizer": each} for each in OPTIMIZERS)], ids=str)
def test_what_goes_with_few_others_comes_back_too(changes):
    config = TrainConfig(**LEAST, **changes)
    assert read(make_arguments(config)) == config


@pytest.mark.parametrize(
    ("key", "value"), [("channels_last", True), ("compile", True), ("shards", "speed"), ("shards", (1.0,))]
)
def test_other_forms_of_a_value_come_back(key, value):
    assert getattr(read(make_arguments(TrainConfig(**LEAST, **{key: value}))), key) == value


@pytest.mark.parametrize("text", ["1.5,.5", "[1.5, 0.5]"])
def test_a_list_may_stand_in_brackets_as_remedies_write_it(text):
    assert read([*make_arguments(TrainConfig(**LEAST)), "--shards", text]).shards == (1.5, 0.5)


@given(st.sets(st.sampled_from(sorted(OTHER))))
def test_all_of_them_together_come_back_by_way_of_a_shell(changed):
    config = TrainConfig(**{**LEAST, **{key: OTHER[key] for key in changed}})
    assert read(shlex.split(shlex.join(make_arguments(config)))) == config


def test_two_lengths_are_refused_also_if_one_is_the_default():
    least = make_arguments(TrainConfig(**LEAST))
    assert read([*least, "--steps", "20"]).epochs is None
    assert read(least).epochs == 10
    with pytest.raises(ValueError, match="steps: 20 does not go with epochs 10"):
        read([*least, "--steps", "20", "--epochs", "10"])
