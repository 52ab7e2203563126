"""Torch data sets as users write them; the tests name their callables by import path."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

from scalestudy.training.data import DatasetSplits, Splits


class Images(Dataset[tuple[torch.Tensor, int]]):
    """`count` images (1, 4, 6) that tell their index, of classes 0, 1, 2 in turn."""

    def __init__(self, count: int) -> None:
        self.images = torch.arange(count * 24, dtype=torch.float32).view(count, 1, 4, 6) / (count * 24)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.images[index], index % 3


class Noisy(Images):
    """Draws from all three generators for each example."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image, target = super().__getitem__(index)
        return image + torch.rand(1) + random.random() + np.random.rand(), target


class Returning(Dataset[Any]):
    """The same example for every index."""

    def __init__(self, example: object, count: int = 8) -> None:
        self.example = example
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> object:
        return self.example


class FailingAt(Images):
    """A user's mistake at one example."""

    def __init__(self, count: int, index: int) -> None:
        super().__init__(count)
        self.index = index

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index == self.index:
            raise LookupError(f"example {index} is lost")
        return super().__getitem__(index)


class Mislabelled(Images):
    """Example 7 is of class 5."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image, target = super().__getitem__(index)
        return image, 5 if index == 7 else target


class WithLambda(Images):
    """Can't be pickled, as transforms with a lambda can't."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.transform = lambda image: image * 2


def images(root: str | None, train_samples: int = 20, test_samples: int = 7) -> DatasetSplits:
    """A user's data set."""
    return Splits.from_datasets(Images(train_samples), Images(test_samples), num_classes=3)


def image_tensors(root: str | None, train_samples: int = 20, test_samples: int = 7) -> Splits:
    """The same as tensors."""
    parts = [
        torch.stack(column) if torch.is_tensor(column[0]) else torch.tensor(column)
        for count in (train_samples, test_samples)
        for column in zip(*(Images(count)[index] for index in range(count)), strict=True)
    ]
    return Splits(*parts, num_classes=3)


def mislabelled(root: str | None) -> DatasetSplits:
    """One label among many is out of range."""
    return Splits.from_datasets(Mislabelled(20), Images(7), num_classes=3)


def linear(num_classes: int, in_channels: int) -> nn.Module:
    """A model for these images."""
    return nn.Sequential(nn.Flatten(), nn.Linear(24 * in_channels, num_classes))
