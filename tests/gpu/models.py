"""Models of the suite, named in configs as tests.gpu.models:NAME.

Shapes: N images, C channels, K classes, w the width.
"""

from __future__ import annotations

import torch
from torch import nn

from scalestudy.training.models import Residual

TOO_MANY = 2**50  # elements, more than any memory has


def resnet9(num_classes: int, in_channels: int, width: int = 32) -> nn.Module:
    """A residual network of eight convolutions and a linear layer: (N, C, H, W) -> (N, K).

    Widths w, 2w, 4w, 8w; a pooling by two after each convolution but the first, so that 28 pixels become 14, 7 and 3;
    residual blocks of two convolutions at 14 and 3 pixels. The form is that of fast CIFAR-10 trainings (Page 2018, "How
    to train your ResNet").
    """
    return nn.Sequential(
        _convolution(in_channels, width),
        _convolution(width, 2 * width, pooled=True),
        Residual(2 * width, 2 * width, conv_bias=False),
        _convolution(2 * width, 4 * width, pooled=True),
        _convolution(4 * width, 8 * width, pooled=True),
        Residual(8 * width, 8 * width, conv_bias=False),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(8 * width, num_classes),
    )


def _convolution(in_channels: int, out_channels: int, *, pooled: bool = False) -> nn.Module:
    """(N, in, H, W) -> (N, out, H, W), or half as high and wide."""
    layers = [
        nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(),
    ]
    return nn.Sequential(*layers, *([nn.MaxPool2d(2)] if pooled else []))


class Greedy(nn.Module):
    """A linear layer whose forward asks for more memory than there is."""

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_channels, num_classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.linear(inputs.mean(dim=(2, 3)))
        return outputs + torch.empty(TOO_MANY, device=inputs.device)[:1]
