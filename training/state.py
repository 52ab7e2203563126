"""A model's parameters in a file, and a checkpoint's state as bytes. Reading either runs no code."""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Any

import torch
from torch import nn

from scalestudy.training.exceptions import InputError
from scalestudy.training.whole_file import write_whole

# what `pack` takes
_MAPPINGS = (dict, OrderedDict)  # a module's `state_dict()` is an OrderedDict
_KEYS = (str, int)
_SEQUENCES = (list, tuple)
_LEAVES = (torch.Tensor, nn.Parameter, bool, int, float, str, NoneType)


def cpu_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the state_dict, copied to the CPU: safe to send to another process while training goes on."""
    return {name: value.detach().to("cpu", copy=True) for name, value in model.state_dict().items()}


def save_state(model: nn.Module, path: str | Path) -> None:
    """Write the state_dict, its tensors on the CPU, all at once. Raises ValueError if it can't."""
    buffer = io.BytesIO()
    try:
        torch.save(cpu_state(model), buffer)
        write_whole(Path(path), buffer.getbuffer())
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "torch.save failed"
        raise InputError(f"model state: can't write {path}: {reason}", "choose another path") from error


def load_state(path: str | Path) -> Mapping[str, torch.Tensor]:
    """Read what save_state wrote, for `model.load_state_dict`. Nothing in the file is run.

    Raises ValueError if the file is missing, damaged or holds anything but tensors.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise InputError(f"model state: can't read {path}: {error}", "give a file that save_state wrote") from None


def pack(state: Any) -> bytes:
    """Return a state as bytes: dicts keyed by int or str, lists, tuples, tensors, numbers, strings and None.

    Tensors may be on any device. Tensors that share memory share it again when unpacked. A view takes all of its base
    along, so clone a small view of something big. Raises ValueError for other types, also for NumPy's scalars and
    subclasses of these types: they could be written, but not read again without running code.
    """
    odd = next(_odd_places(state, "state"), None)
    if odd is not None:
        raise InputError(f"{odd} can't be in a checkpoint", "turn it into tensors, numbers, strings, lists or dicts")
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def unpack(data: bytes) -> Any:
    """Return the state that was packed, with its tensors on the CPU. Nothing in the bytes is run.

    Raises ValueError if they are damaged, hold code, or hold anything that `pack` refuses.
    """
    try:
        state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        odd = next(_odd_places(state, "state"), None)
    except MemoryError:
        raise
    except Exception as error:  # on a damaged file the reader can raise anything
        odd = f"state: {len(data)} bytes can't be read ({type(error).__name__}): they are damaged or hold code"
    if odd is not None:
        raise InputError(odd, "resume from a checkpoint that this program wrote") from None
    return state


def _odd_places(value: Any, place: str) -> Iterator[str]:
    """Yield each place in a state whose content is refused, with its type."""
    if type(value) in _MAPPINGS:
        for key, item in value.items():
            if type(key) not in _KEYS:
                yield f"{place}: a key of type {_type_name(key)}"
            yield from _odd_places(item, f"{place}[{key!r}]")
    elif type(value) in _SEQUENCES:
        for index, item in enumerate(value):
            yield from _odd_places(item, f"{place}[{index}]")
    elif type(value) not in _LEAVES:
        yield f"{place}: a {_type_name(value)}"


def _type_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
