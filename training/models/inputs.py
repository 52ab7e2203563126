"""Stage 5, training loop: what the built-in models ask of their arguments and of the examples they are given."""

from __future__ import annotations

import math

import torch


def is_whole(value: object, least: int) -> bool:
    """Whether the value is a whole number (no bool) of at least `least`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def check_image_size(size: object, least: int) -> None:
    """Raise ValueError unless `size`, the side of the images in pixels, is a whole number of at least `least`."""
    if not is_whole(size, least):
        raise ValueError(f"model_args.image_size: {size!r} is too small or not a whole number; use at least {least}")


def check_images(inputs: torch.Tensor) -> None:
    """Raise ValueError unless inputs are images (N, C, H, W)."""
    if inputs.dim() != 4:
        raise ValueError(f"data: examples of shape {list(inputs.shape[1:])} are not images [C, H, W], which this model "
                         "takes; choose mlp or linear_regression, or other data")  # fmt: skip


def check_numbers(inputs: torch.Tensor, numbers: int) -> None:
    """Raise ValueError unless each example of inputs (N, …) has so many numbers."""
    if math.prod(inputs.shape[1:]) != numbers:
        raise ValueError(f"data: examples of shape {list(inputs.shape[1:])} do not fit the model, which takes "
                         f"{numbers} numbers each; set model_args.image_size to the side of the images, or to 1 if "
                         "they are none")  # fmt: skip
