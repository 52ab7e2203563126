"""A model's parameters in a file, and a checkpoint's state as bytes. Reading either runs no code."""

from __future__ import annotations

import io
import pickle
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Any

import torch
from torch import nn

from scalestudy.training.exceptions import InputError
from scalestudy.training.whole_file import write_whole

# What a file may hold: all that PyTorch reads back without running code (torch.load's weights_only).
_MAPPINGS = (dict, OrderedDict, Counter)  # a module's `state_dict()` is an OrderedDict
_SEQUENCES = (list, tuple, set, torch.Size)
_WORDS = (bool, int, float, complex, str, bytes, NoneType, torch.dtype, torch.device)
_LEAVES = (torch.Tensor, nn.Parameter, bytearray, *_WORDS)
REMEDY = "turn it into tensors, numbers, strings, bytes, sets, lists or dicts"


def cpu_state(model: nn.Module) -> dict[str, Any]:
    """Return the state_dict with its tensors copied to the CPU: it keeps its values while training goes on.

    What a module adds by `get_extra_state` may be of any type; tensors inside its dicts and lists are copied too.
    """
    return {name: _on_cpu(value) for name, value in model.state_dict().items()}


def _on_cpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if type(value) in (dict, OrderedDict):
        return type(value)((key, _on_cpu(item)) for key, item in value.items())
    return type(value)(map(_on_cpu, value)) if type(value) in (list, tuple) else value


def save_state(model: nn.Module, path: str | Path) -> None:
    """Write the state_dict, its tensors on the CPU, all at once. Raises ValueError if it can't."""
    try:
        write_whole(Path(path), _packed(cpu_state(model), "model state").getbuffer())
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "torch.save failed"
        raise InputError(f"model state: can't write {path}: {reason}", "choose another path") from error


def load_state(path: str | Path) -> Mapping[str, Any]:
    """Read what save_state wrote, for `model.load_state_dict`. Nothing in the file is run.

    Raises ValueError if the file is missing, damaged or holds code.
    """
    try:
        state: Mapping[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        return state
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise InputError(f"model state: can't read {path}: {error}", "give a file that save_state wrote") from None


def pack(state: Any) -> bytes:
    """Return a state as bytes: tensors, numbers, strings, bytes and None, in dicts, lists, tuples and sets.

    Tensors may be on any device. Tensors that share memory share it again when unpacked. A view takes all of its base
    along, so clone a small view of something big. Raises ValueError for other types, also for NumPy's scalars and
    subclasses of these types: they could be written, but not read again without running code.
    """
    return _packed(state, "state").getvalue()


def _packed(state: Any, what: str) -> io.BytesIO:
    odd = next(_odd_places(state, what), None)
    if odd is not None:
        raise InputError(f"{odd} can't be in a checkpoint", REMEDY)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer


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
            yield from _odd_keys(key, f"{place}: a key")
            yield from _odd_places(item, f"{place}[{key!r}]")
    elif type(value) in _SEQUENCES:
        for index, item in enumerate(value):
            yield from _odd_places(item, f"{place}[{index}]")
    elif type(value) not in _LEAVES:
        yield f"{place}: a {_type_name(value)}"
    elif type(value) is bytes and not value:  # which PyTorch writes in a way that it does not read
        yield f"{place}: an empty {_type_name(value)}"


def _odd_keys(key: object, place: str) -> Iterator[str]:
    if type(key) is tuple:
        for item in key:
            yield from _odd_keys(item, place)
    elif type(key) not in _WORDS or (type(key) is bytes and not key):
        yield f"{place} of type {_type_name(key)}"


def _type_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
