"""User code that leaves something in its process; trials name it `tests.unit.orchestration.groups.keeping:…`."""

import functools
import os
import warnings

import numpy as np
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from scalestudy.training.data import Splits
from scalestudy.training.data.builtin import load_digits


class Plain(nn.Module):
    """Softmax regression that asks what others may have set, and fails or computes another number where they have."""

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(in_channels * 784, num_classes))
        assert "KEEPING" not in os.environ
        assert torch.get_float32_matmul_precision() == "highest"
        np.float32(0) / np.float32(1e-45) + np.float32(1e-30) * np.float32(1e-30)
        warnings.warn("an ordinary warning", UserWarning, stacklevel=1)
        self.shift = len(os.getcwd())  # noqa: PTH109 - as a model that reads a file beside it would depend on it

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.body(inputs + self.shift / 1_000)


def load_elsewhere(root: object) -> Splits:
    """Goes to another folder, as a loader of relative files does, and stays there."""
    os.chdir("/")
    return load_digits(root)


class Elsewhere(nn.Module):
    """Finds what it needs in the folder to which its data have gone."""

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(in_channels * 784, num_classes))
        assert os.getcwd() == "/"  # noqa: PTH109

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.body(inputs)


def _twice(module: nn.Module, _inputs: object, outputs: torch.Tensor) -> torch.Tensor | None:
    return 2 * outputs if isinstance(module, nn.Linear) else None


class Setting(nn.Module):
    """Softmax regression that sets something for its process, and leaves it so."""

    def __init__(self, num_classes: int, in_channels: int, what: str) -> None:
        super().__init__()
        self.what = what
        match what:
            case "deterministic":
                torch.use_deterministic_algorithms(True)
            case "folder":
                os.chdir("/")
            case "numpy":
                np.seterr(all="raise")
            case "warnings":
                warnings.simplefilter("error")
            case "environment":
                os.environ["KEEPING"] = "1"
            case "hook":
                register_module_forward_hook(_twice)
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(in_channels * 784, num_classes))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.what == "dtype":
            torch.set_default_dtype(torch.float64)
        if self.what == "precision":
            torch.set_float32_matmul_precision("medium")
        return self.body(inputs.mul_(0.5) if self.what == "inputs" else inputs)


@functools.cache
def _backbone(in_channels: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(in_channels * 784, 64), nn.ReLU())


def cached(num_classes: int, in_channels: int) -> nn.Module:
    return nn.Sequential(_backbone(in_channels), nn.Linear(64, num_classes))
