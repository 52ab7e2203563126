"""What a spec says of training and what the training loop takes: one table of keys."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from scalestudy.experiments.plan.plan import make_plan
from scalestudy.experiments.spec.reading import parse_study
from scalestudy.orchestration.study.trials import train_config
from scalestudy.training import registry
from scalestudy.training.config import TrainKnobs, keys
from tests.support.project_files import REPOSITORY
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
        train_config(trial, "data").weights(trial.num_gpus)


KNOWN_IDS = {
    "": ["83584a54b4a4"],
    "sweep: {num_gpus: [2], train.shards: [even, [3, 1]], train.optimizer.momentum: [0, 0.9]}": [
        "54b2333219eb",
        "6a183b4f628a",
        "4554b7143f95",
        "2e8e4be21f19",
    ],
    "resources: {exclusive: true}\ntrain: {gradient_clip: 1e-05}": ["0f1baf32311a"],
    "train: {lr_rule: linear, warmup_epochs: 0.5, schedule: cosine, precision: bf16, channels_last: auto}": [
        "3baa392f0546",
    ],
    "train: {gradient_sync: local_sgd, local_steps: 16, optimizer: {name: adamw}, channels_last: true}": [
        "8da1f0c64e5f",
    ],
    "train: {gradient_sync: powersgd, powersgd_rank: 4, sync_batch_norm: true, checkpoint_every: 5}": ["e3e043051f10"],
}
"""Of version 0.1: a study of that version is resumed and extended by these ids."""


@pytest.mark.parametrize("text", KNOWN_IDS)
def test_trials_keep_their_ids(text):
    assert [trial.trial_id for trial in make_plan(spec_of(f"name: x\n{text}")).trials] == KNOWN_IDS[text]


def test_a_spec_of_version_0_1_reads_as_it_was():
    """checkpoint_every stood before warm_up_steps then; a key that came later has its default."""
    old = """
        name: x
        train:
          epochs: 3
          optimizer: {name: sgd, momentum: 0.5, weight_decay: 0.0}
          gradient_clip: null
          shards: [3.0, 1.0]
          checkpoint_every: 2
          warm_up_steps: 7
        sweep: {num_gpus: [2]}
        """
    train = spec_of(old).train
    assert (train.epochs, train.checkpoint_every, train.warm_up_steps) == (3, 2, 7)
    assert (train.optimizer.momentum, train.shards, train.gradient_clip) == (0.5, (3.0, 1.0), None)
    assert train.lr_rule == "none"


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


NEW_KEY = """
    label_smoothing: float = knob(0.0, "share of every class in a target", least=0, below=1)
"""
FIND_IT = """
import contextlib, io, json
from scalestudy.experiments.spec.reading import new_spec
from scalestudy.experiments.plan.plan import make_plan
from scalestudy.experiments.spec.reading import SpecError, parse_study
from infra.docs.spec_keys import table
from scalestudy.orchestration.study.trials import train_config
from scalestudy.training.arguments import make_config, make_parser
from scalestudy.training.config import TrainConfig

def study(text):
    return parse_study(f"name: x\\n{text}", "x.yaml", models=["lenet"], datasets=["digits"])

def problem(text):
    try:
        study(text)
    except SpecError as error:
        return str(error)

in_range = study("search: {method: random}\\nsweep: {train.label_smoothing: {uniform: [0, 0.5]}}")
trials = make_plan(study("sweep: {train.label_smoothing: [0, 0.1]}")).trials
options = make_parser("").parse_args(
    "--model lenet --data digits --batch-size 8 --learning-rate 0.1 --label-smoothing 0.2".split()
)
print(json.dumps({
    "value": study("train: {label_smoothing: 0.1}").to_dict()["train"]["label_smoothing"],
    "bad": problem("train: {label_smoothing: 1}"),
    "bad_sweep": problem("sweep: {train.label_smoothing: [-1]}"),
    "range": list(in_range.sweep.ranges()),
    "trained": [train_config(trial, "data").label_smoothing for trial in trials],
    "option": make_config(options).label_smoothing,
    "help": make_parser("").format_help(),
    "template": new_spec("x"),
    "table": table(),
}))
"""


def test_a_key_is_declared_once_and_found_everywhere(tmp_path):
    """In a copy of the packages with one more line in training/config.py."""
    for folder in ("scalestudy", "training", "experiments", "orchestration", "infra"):
        without_caches = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / folder, tmp_path / folder, symlinks=True, ignore=without_caches)
    file = tmp_path / "training" / "config.py"
    text = file.read_text("utf-8")
    place = text.index("    warm_up_steps: int = knob(")
    file.write_text(text[:place] + NEW_KEY.strip("\n") + "\n" + text[place:], "utf-8")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", FIND_IT], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["value"] == 0.1
    assert found["bad"] == "x.yaml:2: train.label_smoothing: 1 is too large; it must be less than 1"
    assert found["bad_sweep"] == "x.yaml:2: sweep.train.label_smoothing: -1 is too small; use at least 0"
    assert found["range"] == ["train.label_smoothing"]
    assert found["trained"] == [0.0, 0.1]
    assert found["option"] == 0.2
    assert "--label-smoothing LABEL_SMOOTHING" in found["help"]
    assert "share of every class in a target" in " ".join(found["help"].split())
    assert "  label_smoothing: 0.0      # share of every class in a target\n" in found["template"]
    assert "| `train.label_smoothing` | `0.0` | share of every class in a target |" in found["table"]
