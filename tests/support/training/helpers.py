"""What the tests of training share: a small config, and a training whose outcome can be sent between processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from scalestudy.training.config import TrainConfig
from scalestudy.training.distributed import Worker
from scalestudy.training.loop.hooks import Hook
from scalestudy.training.loop.train import TrainResult, train
from scalestudy.training.loop.trial import Trial
from scalestudy.training.losses import PerExample, cross_entropy, make_metric
from scalestudy.training.task import ExamplesTask

ALONE = Worker(0, 1, torch.device("cpu"), threads=1)


def make_config(**changes: Any) -> TrainConfig:
    """A training of some 10 ms."""
    values: dict[str, Any] = {
        "model": "mlp",
        "model_args": {"hidden": [16]},
        "data": "synthetic",
        "data_args": {"train_samples": 256, "test_samples": 64},
        "batch_size": 32,
        "learning_rate": 0.05,
        "epochs": 1,
    }
    return TrainConfig(**(values | changes))


def examples_task(loss: PerExample = cross_entropy, metric: str = "accuracy") -> ExamplesTask:
    """The default task with this loss of an example."""
    return ExamplesTask(loss, make_metric(metric))


class EachStep(Hook):
    """Keeps what a function finds at the end of each step."""

    def __init__(self, look: Callable[[Trial], Any]) -> None:
        self.look = look
        self.seen: list[Any] = []

    def step_ends(self, trial: Trial, step: int) -> None:
        self.seen.append(self.look(trial))


class FirstParameters(Hook):
    """Keeps a copy of the parameters before the first step."""

    def train_starts(self, trial: Trial) -> None:
        self.state = state_of(trial.model)


def state_of(model: torch.nn.Module) -> dict[str, NDArray[Any]]:
    """The parameters, copied."""
    return {name: parameter.detach().numpy().copy() for name, parameter in model.named_parameters()}


def outcome(result: TrainResult) -> dict[str, Any]:
    """Everything of a result that must not depend on the process it was made in."""
    return {
        "status": result.status,
        "message": result.message,
        "curve": [(record.train_loss, record.test_loss, record.test_metric) for record in result.records],
        "tokens": [record.tokens for record in result.records],
        "replica_max_diff": [record.replica_max_diff for record in result.records],
        "state": state_of(result.model),
    }


def run_training(worker: Worker, *configs: TrainConfig) -> dict[str, Any]:
    """The outcome of the last config after all of them were trained in this process, with the state it started from."""
    for config in configs:
        first = FirstParameters()
        result = train(config, worker, hooks=[first])
    return {**outcome(result), "first_state": first.state}


def refusal(worker: Worker, config: TrainConfig) -> str:
    """What a training is refused with."""
    try:
        train(config, worker)
    except ValueError as error:
        return str(error)
    return "nothing"


def same_bits(one: dict[str, NDArray[Any]], other: dict[str, NDArray[Any]]) -> bool:
    """Whether two states are equal to the last bit."""
    return one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)


def largest_difference(one: dict[str, NDArray[Any]], other: dict[str, NDArray[Any]]) -> float:
    """max |a - b| over all parameters."""
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)


def smallest_movement(one: dict[str, NDArray[Any]], other: dict[str, NDArray[Any]]) -> float:
    """The least, over tensors, of each tensor's largest change."""
    return min(float(np.abs(one[name] - other[name]).max()) for name in one)
