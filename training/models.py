"""Stage 5, training loop: the built-in models.

Shapes: N examples, C channels, H = W = image_size pixels, K classes. Inputs (N, C, H, W), outputs (N, K) logits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import nn

from training.registry import MODELS, call_with, resolve

INITIALISATIONS = ("normal", "xavier", "default")


class LeNet(nn.Sequential):
    """The LeNet of Dive into Deep Learning's "Training on Multiple GPUs": two convolutions, average pooling, ReLU.

    `init`: `normal` is the book's N(0, 0.01²) for weights, with zero biases (its from-scratch code draws the biases
    from the same normal; its concise code leaves PyTorch's); `xavier` is uniform Glorot with zero biases; `default`
    is PyTorch's own. Raises ValueError if init is unknown or image_size leaves nothing after the second pooling.
    """

    def __init__(self, num_classes: int, in_channels: int, init: str = "xavier", image_size: int = 28) -> None:
        _check_image_size(image_size, 14)
        side = ((image_size - 2) // 2 - 4) // 2
        super().__init__(
            nn.Conv2d(in_channels, 20, kernel_size=3),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Conv2d(20, 50, kernel_size=5),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(50 * side * side, 128),  # 28 pixels: 50 × 4 × 4 = 800
            nn.ReLU(),
            nn.Linear(128, num_classes),
        )
        initialise(self, init)


class MLP(nn.Sequential):
    """Fully connected layers of the sizes in `hidden`, with ReLU between them. Raises ValueError for other values."""

    def __init__(
        self,
        num_classes: int,
        in_channels: int,
        hidden: Sequence[int] = (256,),
        init: str = "default",
        image_size: int = 28,
    ) -> None:
        if not isinstance(hidden, list | tuple) or not all(_is_whole(size, 1) for size in hidden):
            raise ValueError(f"model_args.hidden: {hidden!r} is not a list of whole numbers above 0; "
                             "write it like [256]")  # fmt: skip
        _check_image_size(image_size, 1)
        sizes = (in_channels * image_size * image_size, *hidden)
        layers: list[nn.Module] = [nn.Flatten()]
        for inputs, outputs in itertools.pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        super().__init__(*layers, nn.Linear(sizes[-1], num_classes))
        initialise(self, init)


def initialise(model: nn.Module, init: str) -> None:
    """Draw the weights of all linear and convolutional layers anew: normal(0, 0.01), Xavier or as PyTorch left them."""
    if init not in INITIALISATIONS:
        raise ValueError(f"model_args.init: {init!r} is not known; choose one of {', '.join(INITIALISATIONS)}")
    if init != "default":
        draw = _normal if init == "normal" else nn.init.xavier_uniform_
        for layer in model.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                _initialise_layer(layer, draw)


def build_model(name: str, num_classes: int, in_channels: int, model_args: dict[str, object]) -> nn.Module:
    """The model of that name, on the CPU, drawn from PyTorch's global generator.

    Raises ValueError if the name or an argument is unknown, or if the user's callable gives no module.
    """
    model = call_with(resolve(name, MODELS), f"model {name!r}", num_classes, in_channels, **model_args)
    if not isinstance(model, nn.Module):
        raise ValueError(f"model: {name!r} gave a {type(model).__name__}; the callable must return an nn.Module")
    return model


def _check_image_size(size: object, least: int) -> None:
    if not _is_whole(size, least):
        raise ValueError(f"model_args.image_size: {size!r} is too small or not a whole number; use at least {least}")


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _normal(weight: torch.Tensor) -> torch.Tensor:
    return nn.init.normal_(weight, std=0.01)


def _initialise_layer(layer: nn.Linear | nn.Conv2d, draw: Callable[[torch.Tensor], torch.Tensor]) -> None:
    draw(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
