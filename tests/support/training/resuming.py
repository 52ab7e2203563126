"""Trainings that are killed and resumed, for the tests of both."""

from __future__ import annotations

from typing import Any

from scalestudy.training.checkpoint.byte_store import LocalByteStore
from scalestudy.training.checkpoint.hook import Checkpoints
from scalestudy.training.config import OptimizerConfig, TrainConfig
from scalestudy.training.distributed import Worker
from scalestudy.training.loop.hooks import Hook
from scalestudy.training.loop.train import train
from scalestudy.training.loop.trial import Trial
from tests.support.training.helpers import make_config, outcome, same_bits

STEPS = 4  # an epoch
EPOCHS = 3


class KilledError(Exception):
    """Stands for SIGKILL, which the pool's processes would not survive; tests/long sends a real one."""


class KillAfter(Hook):
    """Ends the training after so many steps in all."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def step_ends(self, trial: Trial, step: int) -> None:
        self.left -= 1
        if not self.left:
            raise KilledError


def config_of(**changes: Any) -> TrainConfig:
    """Three epochs of four steps, the last smaller, after which everything has moved."""
    values: dict[str, Any] = {
        "batch_size": 16,
        "epochs": EPOCHS,
        "learning_rate": 0.1,
        "data_args": {"train_samples": 3 * 16 + 10, "test_samples": 16},
    }
    return make_config(**(values | changes))


def checkpointed(
    worker: Worker,
    config: TrainConfig,
    folder: str,
    every_steps: int,
    *hooks: Hook,
    preemptible: bool = False,
) -> dict[str, Any]:
    """The outcome of a training that writes checkpoints, and goes on from what it finds, with what it said."""
    said: list[str] = []
    store = LocalByteStore(folder)
    checkpoints = Checkpoints(store, every_steps=every_steps, preemptible=preemptible, say=said.append)
    choices = checkpoints.find(config, worker)
    seen: list[int] = []
    all_hooks = [checkpoints, *hooks]
    result = train(config, worker, hooks=all_hooks, choices=choices, on_epoch=lambda r: seen.append(r.epoch))
    return {**outcome(result), "resumed": checkpoints.resumed, "said": said, "seen": seen}


def killed_and_resumed(worker: Worker, config: TrainConfig, folder: str, kill_after: int, every_steps: int = 0) -> Any:
    """The outcome after a kill and a resume in the same process."""
    try:
        checkpointed(worker, config, folder, every_steps, KillAfter(kill_after))
    except KilledError:
        return checkpointed(worker, config, folder, every_steps)
    raise AssertionError("it was not killed")


def never_killed(worker: Worker, config: TrainConfig) -> dict[str, Any]:
    """The outcome without checkpoints."""
    return outcome(train(config, worker))


def check_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Equal to the bit in everything that a training computes."""
    assert one["curve"] == other["curve"]
    assert one["tokens"] == other["tokens"]
    assert same_bits(one["state"], other["state"])
    assert one["status"] == other["status"]


def killed(worker: Worker, config: TrainConfig, folder: str, kill_after: int, every_steps: int) -> None:
    """A training that ends so."""
    try:
        checkpointed(worker, config, folder, every_steps, KillAfter(kill_after))
    except KilledError:
        return


LENET = {"model": "lenet", "model_args": {}}
DROPOUT = {"model_args": {"hidden": [16], "dropout": 0.5}}
BATCH_NORM = {"model": "tests.support.training.workloads:BatchNormNet", "model_args": {}}
MOMENTUM = {"optimizer": OptimizerConfig(momentum=0.9, weight_decay=1e-3)}
