"""Models and a data set that the tests give to `train` by their import path."""

from __future__ import annotations

import os
import threading
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn

from scalestudy.training.data import Splits
from scalestudy.training.data.builtin import load_synthetic
from scalestudy.training.models import LeNet


class DoubleLeNet(LeNet):
    """LeNet in float64: rounding is too small to push an activation over ReLU's kink and be amplified there."""

    def __init__(self, num_classes: int, in_channels: int, **model_args: object) -> None:
        super().__init__(num_classes, in_channels, **model_args)
        self.double()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs.double())


class BatchNormNet(nn.Sequential):
    """Refuses an empty batch, which has no largest pixel, and a batch of one, as batch normalisation does."""

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__(
            nn.Conv2d(in_channels, 4, 3),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.BatchNorm1d(4),
            nn.Linear(4, num_classes),
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs / inputs.amax())


class DoubleBatchNormNet(nn.Sequential):
    """Batch normalisation of images and of features, in float64; no bias before it, which would never move."""

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__(
            nn.Conv2d(in_channels, 4, 5, stride=3, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(3),
            nn.Flatten(),
            nn.Linear(36, 12, bias=False),
            nn.BatchNorm1d(12),
            nn.ReLU(),
            nn.Linear(12, num_classes),
        )
        self.double()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs.double())


class RaisingNet(nn.Linear):
    """A user's mistake in forward."""

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__(784 * in_channels, num_classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("the user's own mistake")


class LeavingNet(nn.Sequential):
    """Leaves a thread that never ends, and a process that holds this one's pipes."""

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(784 * in_channels, num_classes))
        threading.Thread(target=threading.Event().wait).start()
        os.system("sleep 60 > /dev/null 2>&1 &")


class RoomyNet(nn.Linear):
    """Some 0.2 MB of activations an example, and hardly any work."""

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__(784 * in_channels, num_classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        copies = (inputs.flatten(1) * self.weight.mean()).repeat(1, 16).sin()
        return super().forward(copies.unflatten(1, (16, -1)).mean(dim=1))


def halves(module: nn.Module) -> None:
    """A user's initialiser: random weights around one half."""
    if isinstance(module, nn.Linear | nn.Conv2d):
        nn.init.normal_(module.weight, mean=0.5, std=0.1)


def refused_on_rank_one(num_classes: int, in_channels: int) -> nn.Module:
    """A mistake that one rank alone meets."""
    if dist.get_rank() == 1:
        raise ValueError("model: only rank 1 finds fault; correct it")
    return LeNet(num_classes, in_channels)


class NoMemoryOnRankOne(LeNet):
    """Rank 1, or a process alone, has no memory for the second batch, while others wait for its gradients."""

    batches = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.batches += 1
        if self.batches == 2 and not (dist.is_initialized() and dist.get_rank() == 0):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return super().forward(inputs)


def parameterless(num_classes: int, in_channels: int) -> nn.Module:
    """Nothing to train."""
    return nn.Flatten()


def splits_with_a_nan(root: str | None, position: int) -> Splits:
    """256 + 64 examples; one training example is all NaN."""
    splits = load_synthetic(None, train_samples=256, test_samples=64)
    inputs = splits.train_inputs.clone()
    inputs[position] = float("nan")
    return replace(splits, train_inputs=inputs)
