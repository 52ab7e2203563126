"""Stage 1: what a spec says of training, and what the training loop takes, are the same."""

import pytest

from scalestudy.experiments.plan.plan import make_plan
from scalestudy.experiments.spec import sections
from scalestudy.experiments.spec.reading import parse_study
from scalestudy.orchestration.study.trials import TRAIN_KEYS, train_config
from scalestudy.training import registry
from scalestudy.training.config import TrainConfig
from tests.support.synthetic_studies import spec_of

ACCEPTED = [
    "train: {lr_rule: linear, warmup_epochs: 0.5, schedule: cosine, precision: bf16, channels_last: auto}",
    "train: {lr_rule: sqrt, schedule: one_cycle, compile: true, accumulation: 4, augment: crop_flip, shards: speed}",
    "train: {lr_rule: adascale, schedule: one_cycle, optimizer: {momentum: 0.9, weight_decay: 1e-4}}",
    "train: {gradient_sync: powersgd, powersgd_rank: 4, sync_batch_norm: true, checkpoint_every: 5}",
    "train: {gradient_sync: local_sgd, local_steps: 16, optimizer: {name: adamw}, channels_last: true}",
    "train: {gradient_sync: 'mine.sync:Tree', local_steps: 3}",
    "train: {local_steps: 4}\nsweep: {train.gradient_sync: [ddp, naive, flat, ring, bf16, powersgd, local_sgd]}",
    "sweep: {train.lr_rule: [none, linear], train.precision: [fp32, bf16], train.channels_last: [true, auto]}",
    "sweep: {points: [{train.lr_rule: adascale, train.precision: fp32}, {train.lr_rule: sqrt, train.precision: bf16}]}",
    "workload: {loss: mse, metric: mse, metric_mode: min, model: linear_regression, data: synthetic_linear}\n"
    "targets: {accuracy: [2.5, 0.1]}",
    "workload: {loss: 'my.losses:focal', metric: 'my.metrics:r2', model: 'torchvision:resnet18'}\n"
    "targets: {accuracy: [-1, 0]}",
]


@pytest.mark.parametrize("text", ACCEPTED)
def test_every_way_of_training_is_accepted_and_reads_back_equal(text):
    spec = parse_study(f"name: x\n{text}", "study.yaml", models=registry.MODELS, datasets=registry.DATASETS)
    again = parse_study(spec.to_yaml(), "study.yaml", models=registry.MODELS, datasets=registry.DATASETS)
    assert again == spec
    for trial in make_plan(spec).trials:  # and the training loop accepts it as well
        TrainConfig.from_dict(train_config(trial, "data")).weights(trial.num_gpus)


def test_a_spec_and_the_training_loop_know_the_same_names():
    assert tuple(registry.LOSSES) == sections.LOSSES
    assert tuple(registry.METRICS) == sections.METRICS
    assert set(registry.GRADIENT_SYNCS) == set(sections.GRADIENT_SYNCS)


def test_a_spec_and_the_training_loop_have_the_same_defaults():
    """Of every key that both have; the four of the sweep's own aside."""
    resolved = spec_of("name: x").to_dict()
    ours = {**resolved["train"], **{key: resolved["workload"][key] for key in ("loss", "metric")}}
    theirs = TrainConfig(model="lenet", data="digits", batch_size=1, learning_rate=1, epochs=1).to_dict()
    assert {key: ours[key] for key in (*TRAIN_KEYS, "loss", "metric") if key != "epochs"} == {
        key: theirs[key] for key in (*TRAIN_KEYS, "loss", "metric") if key != "epochs"
    }
    assert set(TRAIN_KEYS) == set(resolved["train"]) - {"checkpoint_every"}
