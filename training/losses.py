"""Losses, metrics, and a worker's share of them.

Shapes: N examples, K outputs. Outputs (N, K); targets (N,) classes, or (N,) or (N, K) numbers to predict.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from scalestudy.training.exceptions import InputError
from scalestudy.training.registry import LOSSES, METRICS, resolve_field

PerExample = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(outputs (N, …), targets (N, …)) -> values (N,)."""


@dataclass(frozen=True)
class NamedMetric:
    """What compares the trials of a study: the mean of `function` over the test set, written as test_<name>."""

    name: str  # `accuracy`; for an import path, the part after the colon
    function: PerExample


def make_loss(name: str, num_classes: int) -> PerExample:
    """Return the loss of that name or import path. Each call checks shapes, without waiting for the device.

    `num_classes`: the width that a built-in loss asks of outputs for classes. Raises ValueError, at once for an unknown
    name or path, and at a call for outputs, targets or values that do not fit.
    """
    function = resolve_field("loss", name, LOSSES)
    built_in = function in (cross_entropy, squared_error)  # a user's own may take any outputs
    return _checked("loss", name, _for_classes(function, num_classes) if built_in else function)


def make_metric(name: str) -> NamedMetric:
    """Return the metric of that name or import path, with the checks of a loss. Raises InputError."""
    short = name.rpartition(":")[2]
    if short == "loss":  # test_loss is another column of every record
        raise InputError(
            f"metric: {name!r} would be reported as test_{short}, a name that is taken", "rename the function"
        )
    return NamedMetric(short, _checked("metric", name, resolve_field("metric", name, METRICS)))


def cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the softmax cross-entropy of logits (N, K) and classes (N,): (N,)."""
    _require_classes("loss: cross_entropy", outputs, targets)
    return F.cross_entropy(outputs, targets, reduction="none")


def squared_error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return (output - target)², the mean over an example's outputs: (N,).

    Outputs (N, K); targets (N, K), or (N,) numbers if K is 1, or (N,) classes, taken as rows of 0 and one 1.
    Raises ValueError for other shapes.
    """
    if targets.is_floating_point():
        wanted = targets
    else:  # rows of 0 and one 1; F.one_hot would wait for the device to find the largest class
        classes = torch.arange(outputs.shape[-1], device=outputs.device)
        wanted = (targets.unsqueeze(1) == classes).to(outputs.dtype)
    if wanted.dim() == 1 and outputs.dim() == 2 and outputs.shape[1] == 1:
        wanted = wanted.unsqueeze(1)
    if wanted.shape != outputs.shape:
        raise InputError(
            f"loss: mse: outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)} do not fit",
            "give the model as many outputs as an example has targets",
        )
    return (outputs - wanted).square().flatten(1).mean(dim=1) if outputs.dim() > 1 else (outputs - wanted).square()


def hits(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return 1 where the largest of the logits (N, K) is the class (N,), else 0: (N,)."""
    _require_classes("metric: accuracy", outputs, targets)
    return (outputs.argmax(dim=1) == targets).to(torch.float32)


def require_outputs(outputs: object, examples: int) -> None:
    """Raise ValueError unless a model's outputs are a tensor of floating-point numbers with a row an example."""
    if not isinstance(outputs, torch.Tensor):
        raise InputError(f"model: its output is a {type(outputs).__name__}", "return one tensor (N, ...)")
    if not outputs.is_floating_point():
        raise InputError(f"model: its outputs are {outputs.dtype}", "return floating-point numbers")
    if outputs.dim() == 0 or outputs.shape[0] != examples:
        raise InputError(
            f"model: outputs {tuple(outputs.shape)} for {examples} examples", "return one row for each example"
        )


def _checked(field: str, name: str, function: PerExample) -> PerExample:
    """Return the function with a check that it gives one value an example."""

    def checked(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        values = function(outputs, targets)
        if not isinstance(values, torch.Tensor):
            raise InputError(
                f"{field}: {name!r} gave a {type(values).__name__}", "return a tensor with one value for each example"
            )
        if values.shape != targets.shape[:1]:
            raise InputError(
                f"{field}: {name!r} gave values of shape {tuple(values.shape)} for {len(targets)} examples",
                "return one value for each example (for PyTorch's losses reduction='none', then the mean over an "
                "example's values)",
            )
        return values

    return checked


def _for_classes(function: PerExample, num_classes: int) -> PerExample:
    """Return the function with a check that outputs are one a class if the targets are classes."""

    def checked(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if not targets.is_floating_point() and (outputs.dim() != 2 or outputs.shape[1] != num_classes):
            raise InputError(
                f"model: outputs {tuple(outputs.shape)} do not fit {num_classes} classes",
                f"make its last layer give {num_classes} outputs, shape (N, {num_classes})",
            )
        return function(outputs, targets)

    return checked


def _require_classes(what: str, outputs: torch.Tensor, targets: torch.Tensor) -> None:
    if outputs.dim() != 2 or targets.dim() != 1 or targets.is_floating_point():
        raise InputError(
            f"{what} needs outputs (N, K) and class numbers (N,), and got outputs {tuple(outputs.shape)} "
            f"and targets {tuple(targets.shape)} of {targets.dtype}",
            "give class numbers, such as targets.argmax(1) of one-hot targets, or choose mse for numbers",
        )
