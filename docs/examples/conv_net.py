"""A small convolutional network with dropout for MNIST, as PyTorch's own first example has one.

Name it in a spec as `model: conv_net:ConvNet`, `data: mnist`, with this file in the folder where you call `scalestudy`;
the rest of that example's training is in docs/coming-from.md.
"""

from collections.abc import Sequence

import torch
from torch import nn


class Standardised(nn.Module):
    """MNIST's pixels, 0 to 1, with the mean taken away and divided by their spread."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return (images - 0.1307) / 0.3081


class ConvNet(nn.Sequential):
    """Images (N, in_channels, size, size) -> logits (N, num_classes)."""

    def __init__(
        self,
        num_classes: int,
        in_channels: int,
        channels: Sequence[int] = (32, 64),
        hidden: int = 128,
        dropout: Sequence[float] = (0.25, 0.5),
        size: int = 28,
    ) -> None:
        first, second = channels
        super().__init__(
            Standardised(),
            *(nn.Conv2d(in_channels, first, 3), nn.ReLU(), nn.Conv2d(first, second, 3), nn.ReLU()),
            *(nn.MaxPool2d(2), nn.Dropout(dropout[0]), nn.Flatten()),
            *(nn.Linear(second * ((size - 4) // 2) ** 2, hidden), nn.ReLU(), nn.Dropout(dropout[1])),
            nn.Linear(hidden, num_classes),
        )
