"""A model by name, drawn from the seed; the built-in models and their initialisation.

Imports the ground floor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from scalestudy.training.config import TrainConfig
from scalestudy.training.exceptions import InputError
from scalestudy.training.models.common import initialise
from scalestudy.training.models.networks import MLP, LeNet, LinearRegression, Residual, ResNet18
from scalestudy.training.registry import MODELS, call_with, named_parameters, resolve_field
from scalestudy.training.seeding import seed_parameters

Facts = tuple[int, int] | Mapping[str, Any]
FACTS = ("num_classes", "in_channels")
"""What data of pairs tell a model."""


def seeded_model(config: TrainConfig, facts: Facts) -> nn.Module:
    """Build the model that every rank of the trial starts from, at any world size.

    It is drawn on the CPU, right after the generators were seeded. `facts`: the data's. Raises what `build_model`
    raises.
    """
    seed_parameters(config.seed)
    return build_model(config.model, facts, config.model_args)


def build_model(name: str, facts: Facts, model_args: Mapping[str, Any]) -> nn.Module:
    """Build the model of that name on the CPU, drawn from PyTorch's global generator.

    `facts`: what it learns from the data: (num_classes, in_channels), each of which it gets if it names it, or named
    arguments. `model_args` go over both. Raises ValueError if the name or an argument is unknown, if the callable
    returns no module, or if parameters have no shape yet.
    """
    builder = resolve_field("model", name, MODELS)
    if isinstance(facts, tuple):  # never by position: Net(hidden, layers) would be built, and is another network
        takes = named_parameters(builder) or ()
        facts = {key: each for key, each in zip(FACTS, facts, strict=True) if key in takes}
    model = call_with(builder, f"model_args: {name!r}", **{**facts, **model_args})
    if not isinstance(model, nn.Module):
        raise InputError(f"model: {name!r} gave a {type(model).__name__}", "the callable must return an nn.Module")
    lazy = [key for key, value in (*model.named_parameters(), *model.named_buffers()) if is_lazy(value)]
    if lazy:
        raise InputError(
            f"model: {name!r} has lazy layers ({lazy[0]}), whose shapes are unknown before the first batch",
            "give the layers their sizes",
        )
    return model


__all__ = ["MLP", "LeNet", "LinearRegression", "ResNet18", "Residual", "build_model", "initialise", "seeded_model"]
