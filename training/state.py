"""Parameters as bytes that hold no code."""

from __future__ import annotations

import io
import pickle
import tempfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Any

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


MAPPINGS = (dict, OrderedDict)  # `state_dict()` of a module is an OrderedDict
KEYS = (str, int)
SEQUENCES = (list, tuple)
LEAVES = (torch.Tensor, nn.Parameter, bool, int, float, str, NoneType)


def pack(state: Any) -> bytes:
    """A state as bytes for `unpack`: dicts with keys of int or str, lists, tuples, tensors, numbers, strings and None.

    Tensors may be on any device. Those that share memory share it again when unpacked, and a view takes all of its
    base along: clone a small view of something big. Raises ValueError for anything else in the state, NumPy's scalars
    and subclasses of the types included: it could be written, but not read again without running code.
    """
    odd = next(_odd_places(state, "state"), None)
    if odd is not None:
        raise ValueError(f"{odd} can't be in a checkpoint; turn it into tensors, numbers, strings, lists or dicts")
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def unpack(data: bytes) -> Any:
    """The state that was packed, with its tensors on the CPU; nothing in the bytes is run.

    Raises ValueError if they are damaged, hold code, or hold anything that `pack` refuses.
    """
    try:
        state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        odd = next(_odd_places(state, "state"), None)
    except MemoryError:
        raise
    except Exception as error:  # a damaged file can raise whatever the reader trips over
        odd = f"state: {len(data)} bytes can't be read ({type(error).__name__}): they are damaged or hold code"
    if odd is not None:
        raise ValueError(f"{odd}; resume from a checkpoint that this program wrote") from None
    return state


def _odd_places(value: Any, place: str) -> Iterator[str]:
    """Each place in a state that holds what may not be there, and what that is."""
    if type(value) in MAPPINGS:
        for key, item in value.items():
            if type(key) not in KEYS:
                yield f"{place}: a key of type {_name(type(key))}"
            yield from _odd_places(item, f"{place}[{key!r}]")
    elif type(value) in SEQUENCES:
        for index, item in enumerate(value):
            yield from _odd_places(item, f"{place}[{index}]")
    elif type(value) not in LEAVES:
        yield f"{place}: a {_name(type(value))}"


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
