"""Stage 5, training loop: a trained model's parameters and buffers in a file that holds no code."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn


def cpu_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """The model's state_dict, copied to the CPU: safe to send to another process while training goes on."""
    return {name: value.detach().to("cpu", copy=True) for name, value in model.state_dict().items()}


def save_state(model: nn.Module, path: str | Path) -> None:
    """Write the state_dict, tensors on the CPU, aside and then under its name. Raises ValueError if it can't."""
    path = Path(path)
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".save-") as aside:
            written = Path(aside) / path.name
            with written.open("wb") as stream:  # by its path, torch would raise what names the path aside
                torch.save(cpu_state(model), stream)
            written.replace(path)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "torch.save failed"
        raise ValueError(f"model state: can't write {path}: {reason}; choose another path") from error


def load_state(path: str | Path) -> Mapping[str, torch.Tensor]:
    """What save_state wrote, for `model.load_state_dict`; nothing in the file is run.

    Raises ValueError if the file is missing, damaged or holds anything but tensors.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise ValueError(f"model state: can't read {path}: {error}; give a file that save_state wrote") from None
