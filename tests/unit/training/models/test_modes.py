"""Training and evaluation modes: dropout and batch normalisation act in the steps, and not in the evaluation."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import torch
from torch import nn

from scalestudy.training.config import TrainConfig
from scalestudy.training.data.loading import open_data
from scalestudy.training.loop.hooks import Hook
from scalestudy.training.loop.train import TrainResult, train
from scalestudy.training.loop.trial import Trial
from scalestudy.training.records import EpochRecord
from tests.support.training.helpers import ALONE, make_config


class Modes(Hook):
    """What the model is like after each step, and after the epoch's evaluation."""

    def __init__(self) -> None:
        self.training: list[bool] = []
        self.zeroed: list[float] = []  # share of numbers that dropout set to zero
        self.statistics: list[torch.Tensor] = []  # running means after each step
        self.evaluated: list[torch.Tensor] = []  # running means after each evaluation

    def train_starts(self, trial: Trial) -> None:
        (dropout,) = (layer for layer in trial.model.modules() if isinstance(layer, nn.Dropout))
        dropout.register_forward_hook(self._look)

    def step_ends(self, trial: Trial, step: int) -> None:
        self.training.append(all(module.training for module in trial.model.modules()))
        self.statistics.append(running_mean(trial.model))

    def epoch_ends(self, trial: Trial, record: EpochRecord) -> None:
        self.evaluated.append(running_mean(trial.model))

    def _look(self, module: nn.Module, inputs: tuple[torch.Tensor, ...], outputs: torch.Tensor) -> None:
        alive = inputs[0] != 0
        self.zeroed.append((outputs[alive] == 0).double().mean().item())


def running_mean(model: nn.Module) -> torch.Tensor:
    (normalisation,) = (layer for layer in model.modules() if isinstance(layer, nn.BatchNorm1d))
    return normalisation.running_mean.clone()


def trained(**changes: Any) -> tuple[TrainConfig, TrainResult, Modes]:
    """Two epochs of 8 steps of 32 examples, and an evaluation of 64 after each."""
    config = make_config(model_args={"hidden": [16], "dropout": 0.5, "batch_norm": True}, epochs=2, **changes)
    modes = Modes()
    return config, train(config, ALONE, hooks=[modes]), modes


def test_steps_drop_and_evaluations_do_not() -> None:
    _, _, modes = trained()
    steps, evaluations = [*modes.zeroed[:8], *modes.zeroed[9:17]], [modes.zeroed[8], modes.zeroed[17]]
    assert len(modes.zeroed) == 18
    assert all(0.3 < share < 0.7 for share in steps)
    assert evaluations == [0.0, 0.0]


def test_steps_move_the_running_statistics_and_evaluations_do_not() -> None:
    _, _, modes = trained()
    assert modes.training == [True] * 16
    moved = [torch.zeros(16), *modes.statistics]
    assert not any(torch.equal(before, after) for before, after in itertools.pairwise(moved))
    assert torch.equal(modes.evaluated[0], modes.statistics[7])
    assert torch.equal(modes.evaluated[1], modes.statistics[15])


def test_the_recorded_loss_is_that_of_the_model_in_evaluation_mode() -> None:
    config, result, _ = trained()
    data = open_data(config, ALONE)
    ((inputs, targets),) = data.test_batches(0, data.test_samples)

    def loss(model: nn.Module) -> float:
        with torch.no_grad():
            return nn.functional.cross_entropy(model(inputs), targets).item()

    in_training = loss(copy.deepcopy(result.model).train())
    assert abs(loss(result.model.eval()) - result.records[-1].test_loss) < 1e-6
    assert abs(in_training - result.records[-1].test_loss) > 1e-3
