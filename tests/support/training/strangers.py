"""Models, losses and optimizers as other people bring them: each keeps, makes or asks for something unusual."""

from __future__ import annotations

import multiprocessing
import os
import time
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

HERE = "tests.support.training.strangers"


class Classifier(nn.Module):
    """Images, then what a subclass does with their 784 numbers, then ten numbers."""

    def __init__(self, num_classes: int = 10, in_channels: int = 1) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(784, 16), nn.Linear(16, num_classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.head(self.between(torch.tanh(self.body(inputs.flatten(1)))))
        return outputs

    def between(self, features: torch.Tensor) -> torch.Tensor:
        return features


# --- state that is not all tensors --------------------------------------------------------------------------------
class WithState(Classifier):
    """What it returns as its extra state is of a kind."""

    KINDS: ClassVar[dict[str, Any]] = {
        "dict": {"seen": 3, "scales": [1.0, torch.ones(2)]},
        "number": 7,
        "none": None,
        "set": {1, 2},
        "bytes": b"abc",
        "by pairs": {(1, "a"): 2.5, None: torch.float32},
        "numpy": np.int64(3),
        "an array": {"table": np.zeros(2)},
        "an object": F,
        "a path": os.path,
        "a function": cache,
    }

    def __init__(self, num_classes: int, in_channels: int, kind: str = "dict") -> None:
        super().__init__(num_classes, in_channels)
        self.state = self.KINDS[kind]

    def get_extra_state(self) -> Any:
        return self.state

    def set_extra_state(self, state: Any) -> None:
        self.state = state


# --- buffers that change ------------------------------------------------------------------------------------------
class GrowingTable(Classifier):
    """A buffer as long as the longest batch; persistent or not."""

    def __init__(self, num_classes: int, in_channels: int, persistent: bool = False) -> None:
        super().__init__(num_classes, in_channels)
        self.persistent = persistent
        self.register_buffer("table", torch.zeros(1), persistent=persistent)

    def between(self, features: torch.Tensor) -> torch.Tensor:
        if len(self.table) < len(features):
            self.register_buffer("table", torch.linspace(0, 1e-3, len(features)), persistent=self.persistent)
        return features + self.table[: len(features)].mean()


class LateBuffer(Classifier):
    """A statistic that is registered with the first batch, as wide as that batch is long."""

    def between(self, features: torch.Tensor) -> torch.Tensor:
        if self.training and "first" not in self._buffers:
            self.register_buffer("first", features.detach().mean(dim=1))
        return features


class WiderBuffer(Classifier):
    """Turns a counter of whole numbers into one of floats at its second training batch."""

    def __init__(self, *facts: Any) -> None:
        super().__init__(*facts)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def between(self, features: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.count = self.count + 1 if len(features) % 2 else self.count.double() + 0.5
        return features


class SparseAdjacency(Classifier):
    """A buffer that is not dense."""

    def __init__(self, *facts: Any) -> None:
        super().__init__(*facts)
        self.register_buffer("graph", torch.eye(16).to_sparse(), persistent=False)

    def between(self, features: torch.Tensor) -> torch.Tensor:
        return torch.sparse.mm(self.graph, features.T).T


class Normed(Classifier):
    """Batch normalisation of features, which one example alone has none for."""

    def __init__(self, *facts: Any) -> None:
        super().__init__(*facts)
        self.norm = nn.BatchNorm1d(16)

    def between(self, features: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = self.norm(features)
        return normed


# --- what stays in a process --------------------------------------------------------------------------------------
_KEPT = nn.Linear(784, 16)
_COUNTS = {"models": 0, "examples": 0}


@cache
def _cached() -> nn.Linear:
    return nn.Linear(784, 16)


def counted(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A metric that counts the examples that it has ever seen."""
    _COUNTS["examples"] += len(targets)
    return torch.full((len(targets),), float(_COUNTS["examples"]))


class Backbone(Classifier):
    """A first layer that an earlier training may have trained."""

    shared: ClassVar[nn.Linear | None] = None

    def __init__(
        self,
        num_classes: int,
        in_channels: int,
        kept: str = "nowhere",
        default: list[nn.Linear] = [],  # noqa: B006
    ) -> None:
        super().__init__(num_classes, in_channels)
        if kept == "in a cache":
            self.body = _cached()
        elif kept == "in the module":
            self.body = _KEPT
        elif kept == "in the class":
            type(self).shared = type(self).shared or nn.Linear(784, 16)
            assert self.shared is not None
            self.body = self.shared
        elif kept == "in a default argument":
            default[:] = default or [nn.Linear(784, 16)]
            self.body = default[0]
        elif kept == "as a weight":
            self.body.weight = _cached().weight
        elif kept == "as a count":
            _COUNTS["models"] += 1
            with torch.no_grad():
                self.body.weight.mul_(_COUNTS["models"])
        elif kept == "as a child":  # which has this process's pipes open, and outlives it
            multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True).start()
        elif kept == "by the clock":
            with torch.no_grad():
                self.body.weight.add_(int.from_bytes(os.urandom(2), "big") * 1e-6)
