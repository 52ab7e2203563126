"""A perceptron of two hidden layers with dropout, for images such as Fashion-MNIST's.

Name it in a spec as `model: perceptron:build`, `data: fashion_mnist`, with this file in the folder where you call
`scalestudy`.
"""

from torch import nn


def build(num_classes: int, in_channels: int, size: int = 28, width: int = 512, dropout: float = 0.25) -> nn.Module:
    """Images (N, in_channels, size, size) -> logits (N, num_classes)."""
    return nn.Sequential(
        nn.Flatten(),
        *(nn.Linear(in_channels * size**2, width), nn.ReLU(), nn.Dropout(dropout)),
        *(nn.Linear(width, width), nn.ReLU(), nn.Dropout(dropout)),
        nn.Linear(width, num_classes),
    )
