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


# --- what evaluations make ----------------------------------------------------------------------------------------
class SlopeOfAnEnergy(Classifier):
    """A derivative in forward, in training and in evaluation."""

    def between(self, features: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            at = features.detach().clone().requires_grad_(True)
            (slope,) = torch.autograd.grad(at.pow(3).sum(), at, create_graph=True)
        return features + slope


class AdaptsInTests(Classifier):
    """Takes a step of its own before it answers in an evaluation."""

    def between(self, features: torch.Tensor) -> torch.Tensor:
        if not self.training:
            with torch.enable_grad():
                shift = torch.zeros(16, requires_grad=True)
                (features.detach() + shift).square().mean().backward()
            assert shift.grad is not None
            return features - 0.1 * shift.grad
        return features


class KeepsATable(Classifier):
    """A table made in the first evaluation, multiplied in the next training step."""

    table: torch.Tensor | None = None

    def between(self, features: torch.Tensor) -> torch.Tensor:
        if self.table is None and not self.training:
            self.table = torch.linspace(0.5, 1.5, 16) * features.mean(dim=0).abs().clamp(min=0.1)
        return features if self.table is None else features * self.table


class KeepsItsOutputs(Classifier):
    """Compares with what it gave last; backward of the next step would run through this step's graph again."""

    last: torch.Tensor | None = None

    def between(self, features: torch.Tensor) -> torch.Tensor:
        before, self.last = self.last, features.mean(dim=0)
        return features if before is None else features + before


class CountsItsTests(Classifier):
    """A statistic of evaluations, used in training."""

    def __init__(self, *facts: Any) -> None:
        super().__init__(*facts)
        self.seen: list[torch.Tensor] = []

    def between(self, features: torch.Tensor) -> torch.Tensor:
        if not self.training:
            self.seen.append(features.mean(dim=0))
            return features
        return features * torch.stack(self.seen).mean(dim=0).exp() if self.seen else features


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


class OddOptimizer(torch.optim.SGD):
    """Keeps a NumPy number for each parameter."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for each in group["params"]:
                self.state[each]["norm"] = np.float64(each.norm().item())
        return super().step(closure)


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


class NeverFilled(Classifier):
    """A buffer that is None."""

    def __init__(self, *facts: Any) -> None:
        super().__init__(*facts)
        self.register_buffer("later", None)


# --- parts of a batch ---------------------------------------------------------------------------------------------
class Normed(Classifier):
    """Batch normalisation of features, which one example alone has none for."""

    def __init__(self, *facts: Any) -> None:
        super().__init__(*facts)
        self.norm = nn.BatchNorm1d(16)

    def between(self, features: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = self.norm(features)
        return normed


class Squeezes(Classifier):
    """Loses the first dimension of a single example in training."""

    def between(self, features: torch.Tensor) -> torch.Tensor:
        return features.squeeze() if self.training else features


class SqueezesInTests(Classifier):
    """Loses it in an evaluation."""

    def between(self, features: torch.Tensor) -> torch.Tensor:
        return features if self.training else features.squeeze()


class Correlates(Classifier):
    """Needs three examples for a covariance that it can invert."""

    def between(self, features: torch.Tensor) -> torch.Tensor:
        if self.training and len(features) < 3:
            raise ValueError("a covariance needs three examples")
        return features


# --- gradients ----------------------------------------------------------------------------------------------------
class SparseGradients(nn.Module):
    """An embedding of the pixels' grey values, with sparse gradients."""

    def __init__(self, num_classes: int, in_channels: int, bag: bool = False, dense: bool = False) -> None:
        super().__init__()
        kind: Any = nn.EmbeddingBag if bag else nn.Embedding
        self.values, self.head = kind(8, 4, sparse=not dense), nn.Linear(4, num_classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found = self.values((inputs.flatten(1).sigmoid() * 7).long())
        outputs: torch.Tensor = self.head(found if found.dim() == 2 else found.mean(dim=1))
        return outputs


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
