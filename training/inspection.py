"""Stage 5, training loop: what a trial's model is made of before its first step, and the memory that it takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from training.config import OptimizerConfig, TrainConfig
from training.data.loading import open_data
from training.distributed import Worker
from training.models import seeded_model

ADAM_STEP_BYTES = 4  # Adam counts each parameter's steps in a float32 of its own


@dataclass(frozen=True)
class ParameterRow:
    """One tensor that the model learns."""

    name: str  # the first of its names
    shape: tuple[int, ...]
    count: int  # numbers in it
    mean: float | None  # of its numbers as the trial's seed draws them; None: it has none
    std: float | None  # over the count, not the count - 1
    trained: bool  # whether it needs a gradient
    shared_with: tuple[str, ...]  # the other places where the model uses the same tensor


@dataclass(frozen=True)
class Memory:
    """Bytes on each worker, whatever the batch; activations come on top and grow with the worker's share of it."""

    parameters: int
    gradients: int  # of the trained parameters
    optimizer: int  # what it keeps between steps
    buffers: int


@dataclass(frozen=True)
class Inspection:
    """A model as a trial starts from it."""

    parameters: tuple[ParameterRow, ...]
    buffer_tensors: int  # running statistics and the like: kept and saved, not learned
    buffer_numbers: int
    memory: Memory

    @property
    def trained_numbers(self) -> int:
        """Numbers that the optimizer updates, each shared one counted once."""
        return sum(row.count for row in self.parameters if row.trained)

    @property
    def frozen_numbers(self) -> int:
        """Numbers in parameters that need no gradient."""
        return sum(row.count for row in self.parameters if not row.trained)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {**dataclasses.asdict(self), "trained_numbers": self.trained_numbers,
                "frozen_numbers": self.frozen_numbers}  # fmt: skip


def inspect_config(config: TrainConfig) -> Inspection:
    """The model that a trial of this config starts from, on any rank: same data, same seed, same code.

    Raises DataError for missing data, ValueError for a model that can't be built; what a user's code raises passes.
    """
    data = open_data(config, Worker(0, 1, torch.device("cpu")))
    return inspect_model(seeded_model(config, data.num_classes, data.in_channels), config.optimizer)


def inspect_model(model: nn.Module, optimizer: OptimizerConfig) -> Inspection:
    """The parameters of the model in its order, each tensor once, and the memory of training it."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    buffers = list(model.buffers())
    trained = [parameter for parameter in names if parameter.requires_grad]
    return Inspection(
        parameters=tuple(_row(parameter, *its_names) for parameter, its_names in names.items()),
        buffer_tensors=len(buffers),
        buffer_numbers=sum(buffer.numel() for buffer in buffers),
        memory=Memory(
            parameters=_bytes(names),
            gradients=_bytes(trained),
            optimizer=optimizer_bytes(optimizer, trained),
            buffers=_bytes(buffers),
        ),
    )


def optimizer_bytes(config: OptimizerConfig, trained: Iterable[torch.Tensor]) -> int:
    """What PyTorch's optimizer keeps from its first step on: SGD momentum, Adam and AdamW two moments and a count."""
    parameters = list(trained)
    if config.name == "sgd":
        return _bytes(parameters) if config.momentum else 0
    return 2 * _bytes(parameters) + ADAM_STEP_BYTES * len(parameters)


def _row(parameter: nn.Parameter, name: str, *others: str) -> ParameterRow:
    values = parameter.detach().double()
    some = values.numel() > 0
    return ParameterRow(
        name=name,
        shape=tuple(parameter.shape),
        count=parameter.numel(),
        mean=values.mean().item() if some else None,
        std=values.std(correction=0).item() if some else None,
        trained=parameter.requires_grad,
        shared_with=others,
    )


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
