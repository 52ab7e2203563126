"""User code of every part that ends with what is no ordinary exception; trials name it `tests.support.quitting:…`.

An argument, or QUITS in the environment, says with what: a key of `ENDS`.
"""

import asyncio
import os
import sys
from typing import Any

import torch
from torch import nn

from scalestudy.training.data import Splits
from tests.support.user_models import linear, rank


class CancelledError(BaseException):
    """As trio's, which is no Exception."""

    def __init__(self, *, why: str) -> None:
        super().__init__(why)


def _raises(error: BaseException) -> Any:
    raise error


class MuteError(Exception):
    """Its text can't be made."""

    def __str__(self) -> str:
        return self.missing


WORDS = "the licence server is away"
ENDS = {
    "exits": lambda: sys.exit(WORDS),
    "exits_zero": lambda: sys.exit(0),
    "exits_none": sys.exit,
    "interrupted": lambda: _raises(KeyboardInterrupt(WORDS)),
    "cancelled": lambda: _raises(asyncio.CancelledError(WORDS)),
    "generator": lambda: _raises(GeneratorExit(WORDS)),
    "trio": lambda: _raises(CancelledError(why=WORDS)),
    "key": lambda: _raises(KeyError(WORDS)),
    "mute": lambda: _raises(MuteError()),
}


def ends() -> Any:
    return ENDS[os.environ.get("QUITS", "exits")]()


def model_built(num_classes: int, in_channels: int) -> nn.Module:
    return ends()


class ModelForward(nn.Module):
    """Ends in its first training step, on one rank."""

    def __init__(self, num_classes: int, in_channels: int, on_rank: int = 0, quits: str = "exits") -> None:
        super().__init__()
        self.body, self.on_rank, self.quits = linear(num_classes, in_channels), on_rank, quits

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if rank() == self.on_rank:
            ENDS[os.environ.get("QUITS", self.quits)]()
        return self.body(inputs)


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return ends()


class ModelBackward(ModelForward):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return _Backward.apply(self.body(inputs))


def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return ends()


def metric(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return ends()


class QuittingTask:
    """Ends in its loss."""

    def forward(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return model(batch[0])

    def loss(self, outputs: torch.Tensor, batch: Any) -> tuple[torch.Tensor, int]:
        return ends()

    def evaluate(self, outputs: torch.Tensor, batch: Any) -> dict[str, Any]:
        return {}

    def finish(self, sums: dict[str, float]) -> dict[str, float]:
        return {}


class Optimizer(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:
        ends()


def schedule(progress: float) -> float:
    return ends()


def data_loaded(root: Any) -> Splits:
    return ends()


class Examples(torch.utils.data.Dataset[Any]):
    """Digits of noise; the example with this number ends, wherever it is read."""

    def __init__(self, last: int) -> None:
        self.last = last

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index == self.last:
            ends()
        return torch.zeros(1, 28, 28), index % 10


class Stream(torch.utils.data.IterableDataset[Any]):
    """Ends after its first examples."""

    def __iter__(self) -> Any:
        for index in range(16):
            yield torch.zeros(1, 28, 28), index % 10
        ends()


def data_read(root: Any) -> Any:
    return Splits.from_datasets(Examples(21), Examples(-1), num_classes=10)


def data_streamed(root: Any) -> Any:
    return Splits.from_datasets(Stream(), Examples(-1), num_classes=10)


def quitting_collate(examples: Any) -> Any:
    """Ends on a whole batch; the first examples, of which the form is learnt, are fewer."""
    if len(examples) == 16:
        ends()
    return torch.utils.data.default_collate(examples)


def data_collated(root: Any) -> Any:
    return Splits.from_datasets(Examples(-1), Examples(-1), num_classes=10, collate=quitting_collate)
