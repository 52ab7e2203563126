"""`torchvision:<name>`: any image classifier of torchvision, for any number of channels.

Shapes: N examples, C channels, H × W pixels, K classes. Inputs (N, C, H, W), outputs (N, K) logits.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import nn

from scalestudy.training.exceptions import InputError
from scalestudy.training.models.common import check_images, initialise
from scalestudy.training.torchvision_compat import import_torchvision

RGB = 3  # the channels that torchvision's classifiers are made for
_WITH_SECOND_HEADS = ("googlenet", "inception_v3")  # by default they return a tuple of logits while training
_ONE_SIZE = ("vit", "maxvit")  # families that take one size of images
_ANY_SIZE = ("swin", "efficientnet")  # families whose stated size is their training's, not a limit


def find_classifier(name: str) -> Callable[..., nn.Module]:
    """Return callable(num_classes, in_channels, **model_args) of torchvision's classifier of that name.

    Raises ValueError, with the closest name, if torchvision has none.
    """
    models = import_torchvision().models
    names = models.list_models(module=models)
    if name not in names:
        close = difflib.get_close_matches(name, names, n=1) or ["resnet18"]
        raise InputError(
            f"'torchvision:{name}': torchvision has no classifier of that name", f"did you mean torchvision:{close[0]}?"
        )
    return functools.partial(_build, models, name)


class ImageSizeCheck:
    """A forward hook that refuses images of unfit size. Torchvision's own errors name shapes of inner layers."""

    def __init__(self, model: str, least: int, exact: bool) -> None:
        self.model = model
        self.least = least  # height and width, in pixels
        self.exact = exact  # whether it is the only size

    def __call__(self, module: nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
        """Check the model's inputs (N, C, H, W), the first of its `arguments`."""
        check_images(arguments[0])
        height, width = arguments[0].shape[2:]
        if min(height, width) < self.least or (self.exact and max(height, width) > self.least):
            limit = "exactly" if self.exact else "at least"
            raise InputError(
                f"data: images of {height} × {width} pixels do not fit {self.model}, which takes {limit} "
                f"{self.least} × {self.least}",
                "choose other data or another model",
            )


def _build(
    models: ModuleType, name: str, num_classes: int, in_channels: int, init: str = "default", **model_args: Any
) -> nn.Module:
    """Build the classifier; `init: default` keeps what torchvision draws. `model_args` go to torchvision's class."""
    for key in ("weights", "pretrained"):
        if model_args.get(key):
            raise InputError(
                f"model_args.{key}: {model_args[key]!r} would be downloaded by every worker, but models of a study "
                "start from its seeds",
                "remove it, or load a file in a function of your own (package.module:callable)",
            )
    if model_args.get("aux_logits"):
        raise InputError(
            f"model_args.aux_logits: with {model_args['aux_logits']!r} torchvision:{name} returns several tensors of "
            "logits, which no loss supports",
            "remove it",
        )
    second_heads = {"aux_logits": False, "init_weights": True} if name in _WITH_SECOND_HEADS else {}
    try:
        model: nn.Module = models.get_model(name, num_classes=num_classes, **(second_heads | model_args))
    except (TypeError, ValueError, AssertionError) as error:
        reason = str(error).splitlines()[0].replace("; ", ", ") if str(error) else type(error).__name__
        raise InputError(
            f"model_args: {model_args!r} do not suit torchvision:{name} ({reason})", "correct or remove them"
        ) from None
    if in_channels != RGB:
        _take_channels(model, in_channels)
    initialise(model, init)

    family = name.split("_")[0]
    if not family.startswith(_ANY_SIZE):
        least = min(weights.meta["min_size"][0] for weights in models.get_model_weights(name))
        if family in _ONE_SIZE:
            least = model_args.get("image_size") or model_args.get("input_size", [least])[0]
        if least > 1:
            model.register_forward_pre_hook(ImageSizeCheck(f"torchvision:{name}", least, family in _ONE_SIZE))
    return model


def _take_channels(model: nn.Module, in_channels: int) -> None:
    """Replace the first convolution by one for that many channels, as PyTorch initialises it.

    Rejected: to repeat grey images three times. It costs memory and time in every step and trains the same functions.
    """
    name, first = next((name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d))
    parent, _, attribute = name.rpartition(".")
    replacement = nn.Conv2d(
        in_channels,
        first.out_channels,
        first.kernel_size,  # type: ignore[arg-type]
        stride=first.stride,  # type: ignore[arg-type]
        padding=first.padding,  # type: ignore[arg-type]
        bias=first.bias is not None,
    )
    setattr(model.get_submodule(parent), attribute, replacement)
