"""Initialisation and checks that all models share.

An initialiser is a function (module) -> None. `nn.Module.apply` calls it on every module of a model, children first. It
draws from PyTorch's global generator on the CPU, so a seed gives the same numbers at any world size.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from scalestudy.training.exceptions import InputError
from scalestudy.training.registry import INITIALISATIONS, resolve

_WEIGHTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def initialise(model: nn.Module, init: str) -> None:
    """Draw the model's parameters by `normal`, `xavier`, `default` or the user's `package.module:callable`.

    Raises ValueError if there is no such initialiser.
    """
    if not isinstance(init, str):
        raise InputError(f"model_args.init: {init!r} is not a name", f"choose one of {', '.join(INITIALISATIONS)}")
    try:
        initialiser = resolve(init, INITIALISATIONS)
    except InputError as error:
        raise InputError(f"model_args.init: {error.what}", error.remedy) from None
    model.apply(initialiser)


def normal(module: nn.Module) -> None:
    """Draw weights of linear and convolutional layers from N(0, 0.01²); set their biases to zero."""
    _draw(module, lambda weight: nn.init.normal_(weight, std=0.01))


def xavier(module: nn.Module) -> None:
    """Draw weights of linear and convolutional layers uniformly in ± sqrt(6 / (fan_in + fan_out)); biases are zero.

    Source: Glorot and Bengio 2010, "Understanding the difficulty of training deep feedforward neural networks".
    """
    _draw(module, nn.init.xavier_uniform_)


def default(module: nn.Module) -> None:
    """Keep what the layer drew when it was made."""


def _draw(module: nn.Module, fill: Callable[[torch.Tensor], torch.Tensor]) -> None:
    if isinstance(module, _WEIGHTED):
        fill(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def is_whole(value: object, least: int) -> bool:
    """Return whether the value is a whole number, at least `least`; a bool is none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def check_image_size(size: object, least: int) -> None:
    """Raise ValueError unless `size`, the side of the images in pixels, is a whole number, at least `least`."""
    if not is_whole(size, least):
        raise InputError(f"model_args.image_size: {size!r} is too small or not a whole number", f"use at least {least}")


def check_images(inputs: torch.Tensor) -> None:
    """Raise ValueError unless inputs are images (N, C, H, W)."""
    if inputs.dim() != 4:
        raise InputError(
            f"data: examples of shape {list(inputs.shape[1:])} are not images [C, H, W], which this model takes",
            "choose mlp or linear_regression, or other data",
        )


def check_numbers(inputs: torch.Tensor, numbers: int) -> None:
    """Raise ValueError unless each example of inputs (N, …) has `numbers` numbers."""
    if math.prod(inputs.shape[1:]) != numbers:
        raise InputError(
            f"data: examples of shape {list(inputs.shape[1:])} do not fit the model, which takes "
            f"{numbers} numbers each",
            "set model_args.image_size to the side of the images, or to 1 for other data",
        )
