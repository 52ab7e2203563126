"""What trials leave in their process, so that each trial of a used process is the one that a fresh process would train.

Settings that user code may change are put back before each trial. Parameters, buffers and modules that user code keeps
can't be: if one that an earlier trial changed is found in a new model, the trial needs a fresh process.

Not looked at: the random generators, which every trial seeds; precision and threads, which every trial sets
(`loop.trial.start_trial`); what can't be put back, such as the threads between operations.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from scalestudy.training.own_code import is_installed
from scalestudy.training.settings import OF_PYTHON, Setting, Settings
from scalestudy.training.torchvision_compat import define_missing_operators

CONTAINERS = frozenset({list, tuple, set, frozenset, dict, OrderedDict})
LONGEST = 100
"""Items of a container that are compared one by one."""
DEEPEST = 1
"""How deep in another one a container still is."""
PIECE = 2**18
"""Integers that are multiplied by their weights at once: 1 MiB, which stays in a processor's cache."""


# --- settings -----------------------------------------------------------------------------------------------------
def _attribute(owner: Any, name: str) -> Setting:
    return Setting(lambda: getattr(owner, name), lambda value: setattr(owner, name, value))


def _hooks(module: str) -> Setting:
    """Return PyTorch's hooks on every module, or on every optimizer. Nothing public reads them."""
    registries = {name: value for name, value in vars(sys.modules[module]).items() if name.startswith("_global_")}
    registries = {name: value for name, value in registries.items() if isinstance(value, dict)}

    def put(wanted: Mapping[str, Mapping[int, Any]]) -> None:
        for name, hooks in wanted.items():
            registries[name].clear()
            registries[name].update(hooks)

    return Setting(lambda: {name: dict(hooks) for name, hooks in registries.items()}, put)


def _autocast() -> list[tuple[bool, torch.dtype]]:
    return [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")]


def _put_autocast(wanted: Sequence[tuple[bool, torch.dtype]]) -> None:
    for kind, (enabled, dtype) in zip(("cpu", "cuda"), wanted, strict=True):
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, dtype)


def _attention() -> list[bool]:
    of = torch.backends.cuda
    return [of.flash_sdp_enabled(), of.mem_efficient_sdp_enabled(), of.math_sdp_enabled(), of.cudnn_sdp_enabled()]


def _put_attention(wanted: Sequence[bool]) -> None:
    of = torch.backends.cuda
    puts = (of.enable_flash_sdp, of.enable_mem_efficient_sdp, of.enable_math_sdp, of.enable_cudnn_sdp)
    for put, enabled in zip(puts, wanted, strict=True):
        put(enabled)


def _half_precision() -> list[Any]:
    return [getattr(torch.backends.cuda.matmul, name) for name in _HALF]


def _put_half_precision(wanted: Sequence[Any]) -> None:
    for name, value in zip(_HALF, wanted, strict=True):
        setattr(torch.backends.cuda.matmul, name, value)


_HALF = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")


def _put_einsum(wanted: tuple[bool, str | None]) -> None:
    enabled, strategy = wanted
    torch.backends.opt_einsum.set_flags(strategy is not None, strategy)  # a strategy can't be set while it is off
    torch.backends.opt_einsum.set_flags(enabled)


def _gpu() -> tuple[int, float] | None:
    if not torch.cuda.is_initialized():
        return None
    return torch.cuda.current_device(), torch.cuda.get_per_process_memory_fraction()


def _put_gpu(wanted: tuple[int, float] | None) -> None:
    if wanted is not None:
        torch.cuda.set_device(wanted[0])
        torch.cuda.set_per_process_memory_fraction(wanted[1])


COMPUTING: Mapping[str, Setting] = {
    "the default dtype": Setting(torch.get_default_dtype, torch.set_default_dtype),
    "the default device": Setting(
        torch.get_default_device, lambda device: torch.set_default_device(None if device.type == "cpu" else device)
    ),
    "the gradient mode": Setting(torch.is_grad_enabled, torch.set_grad_enabled),
    "deterministic algorithms": Setting(
        lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        lambda wanted: torch.use_deterministic_algorithms(wanted[0], warn_only=wanted[1]),
    ),
    "the filling of new memory": _attribute(torch.utils.deterministic, "fill_uninitialized_memory"),
    "anomaly detection": Setting(
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda wanted: torch.autograd.set_detect_anomaly(*wanted),
    ),
    "autocast": Setting(_autocast, _put_autocast),
    "denormal numbers": Setting(lambda: sys.float_info.min / 2 == 0.0, torch.set_flush_denormal),
    "cuDNN": _attribute(torch.backends.cudnn, "enabled"),
    "cuDNN's determinism": _attribute(torch.backends.cudnn, "deterministic"),
    "oneDNN": _attribute(torch.backends.mkldnn, "enabled"),
    "attention kernels": Setting(_attention, _put_attention),
    "hooks on every module": _hooks("torch.nn.modules.module"),
    "hooks on every optimizer": _hooks("torch.optim.optimizer"),
    "the checks of distributions": Setting(
        lambda: torch.distributions.Distribution._validate_args,
        torch.distributions.Distribution.set_default_validate_args,
    ),
    "sums in half precision": Setting(_half_precision, _put_half_precision),
    "the order of an einsum": Setting(torch.backends.opt_einsum.set_flags, _put_einsum),  # without a flag it gets them
    "NumPy's error state": Setting(np.geterr, lambda wanted: np.seterr(**wanted)),
}
"""Settings on which the numbers depend that a training computes, or whether it can compute them."""
SURROUNDING: Mapping[str, Setting] = {
    **OF_PYTHON,
    "the GPU": Setting(_gpu, _put_gpu),
    "how processes share tensors": Setting(
        torch.multiprocessing.get_sharing_strategy, torch.multiprocessing.set_sharing_strategy
    ),
}
"""Settings that decide what the training finds around it."""
ALL: Mapping[str, Setting] = {**COMPUTING, **SURROUNDING}


# --- what is kept -------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Part:
    """What a parameter or a buffer of an earlier trial was as its training began."""

    is_left: Callable[[], bool]  # whether anything still holds it
    trained: bool
    content: int = 0  # of its storage; see `_contents`. Not of one that was trained


class Remains:
    """The parameters, buffers and modules of earlier trials' models, without keeping them alive.

    What user code keeps, and no training changes, makes no trial another one: an activation that is a default argument,
    or frozen layers that are loaded once.
    """

    def __init__(self) -> None:
        self._tensors: dict[int, _Part] = {}  # by id
        self._storages: dict[int, _Part] = {}  # by PyTorch's address, which no other storage gets while it is here
        self._modules: dict[int, tuple[weakref.ref[nn.Module], Any]] = {}  # by id, with what `_state` gave
        self._looked_at: dict[int, int] = {}  # what `found_in` has computed for `note`: storage's address → content
        self._foreign: dict[int, int] = {}  # memory that a trial changed and another library owns: address → content

    def found_in(self, model: nn.Module) -> str:
        """Return which part of a new model an earlier trial has changed, in words; "": none."""
        kept: dict[str, tuple[torch.UntypedStorage, set[int]]] = {}
        for name, tensor in _tensors(model):
            if (storage := _storage(tensor)) is None:
                continue
            found = [self._tensors.get(id(tensor)), self._storages.get(storage._cdata)]
            parts = [part for part in found if part is not None and part.is_left()]
            if any(part.trained for part in parts):
                return f"the model's {name} was trained by an earlier trial"
            if parts:
                kept[name] = storage, {part.content for part in parts}
            elif storage.data_ptr() in self._foreign and self._foreign[storage.data_ptr()] in _contents([storage]):
                return f"the model's {name} was trained by an earlier trial"
        contents = _contents([storage for storage, _ in kept.values()])
        self._looked_at = {storage._cdata: now for (storage, _), now in zip(kept.values(), contents, strict=True)}
        for name, (storage, before) in kept.items():
            if self._looked_at[storage._cdata] not in before:
                return f"the model's {name} was changed by an earlier trial"
        for name, module in model.named_modules():
            reference, state = self._modules.get(id(module), (None, None))
            is_kept = reference is not None and reference() is module
            if is_kept and _state(module) != state:
                return f"the model's {name or type(module).__name__} was changed by an earlier trial"
        return ""

    def note(self, model: nn.Module) -> None:
        """Remember a model whose training begins."""
        for parts in (self._tensors, self._storages):
            for key in [key for key, part in parts.items() if not part.is_left()]:
                del parts[key]
        self._modules = {key: kept for key, kept in self._modules.items() if kept[0]() is not None}
        tensors = [(tensor, storage) for _, tensor in _tensors(model) if (storage := _storage(tensor)) is not None]
        trained = {storage._cdata for tensor, storage in tensors if tensor.requires_grad}
        contents, self._looked_at = self._looked_at, {}
        others = {each._cdata: each for _, each in tensors if each._cdata not in {*trained, *contents}}
        contents.update(zip(others, _contents(list(others.values())), strict=True))
        for tensor, storage in tensors:
            is_trained, content = storage._cdata in trained, contents.get(storage._cdata, 0)
            self._tensors[id(tensor)] = _Part(_left_tensor(tensor), is_trained, content)
            self._storages[storage._cdata] = _Part(_left_storage(storage), is_trained, content)
        for module in model.modules():
            self._modules[id(module)] = weakref.ref(module), _state(module)

    def note_end(self, model: nn.Module) -> None:
        """Remember what a noted model's training has made of memory that isn't PyTorch's, as of a NumPy array."""
        for _, tensor in _tensors(model):
            storage, part = _storage(tensor), self._tensors.get(id(tensor))
            if storage is not None and part is not None and _is_foreign(storage):
                (content,) = _contents([storage])
                if part.trained or content != part.content:
                    self._foreign[storage.data_ptr()] = content


def _tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield parameters and buffers by their names."""
    yield from model.named_parameters()
    yield from model.named_buffers()


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """Return a tensor's storage; None: it has none, as a sparse tensor."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None


def _is_foreign(storage: torch.UntypedStorage) -> bool:
    """Return whether another library owns the memory: the storage is then another one for each tensor made of it."""
    return storage.device.type == "cpu" and storage.nbytes() > 0 and not storage.resizable()


def _left_tensor(tensor: torch.Tensor) -> Callable[[], bool]:
    reference = weakref.ref(tensor)
    return lambda: reference() is not None


def _left_storage(storage: torch.UntypedStorage) -> Callable[[], bool]:
    reference = StorageWeakRef(storage)
    return lambda: not reference.expired()


def _contents(storages: Sequence[torch.UntypedStorage]) -> list[int]:
    """Return a number for the bytes of each, equal for equal bytes in the same order, computed where they lie."""
    sums: dict[torch.device, list[torch.Tensor]] = {}
    for storage in storages:
        number = torch.int32 if storage.nbytes() % 4 == 0 else torch.uint8
        whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage).view(number)
        parts = [_weighted_sum(each) for each in whole.split(PIECE)] if len(whole) > PIECE else [_weighted_sum(whole)]
        sums.setdefault(storage.device, []).append(parts[0] if len(parts) == 1 else _weighted_sum(torch.stack(parts)))
    found = {device: iter(torch.stack(of_device).tolist()) for device, of_device in sums.items()}
    return [next(found[storage.device]) for storage in storages]


def _weighted_sum(numbers: torch.Tensor) -> torch.Tensor:
    """Return a sum of at most PIECE integers, each times a number of its place."""
    weights, room = _weights(numbers.device, numbers.dtype)
    products = torch.mul(numbers, weights[: len(numbers)], out=room[: len(numbers)])
    return (products.view(torch.int64) if products.nbytes % 8 == 0 else products).sum()


@cache
def _weights(device: torch.device, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return PIECE odd numbers, and room for their products with numbers of a type: new room each time costs more."""
    drawn = torch.randint(-(2**31), 2**31, (PIECE,), generator=torch.Generator().manual_seed(0), device="cpu")
    of = torch.promote_types(dtype, torch.int32)
    return (drawn | 1).to(device, torch.int32), torch.empty(PIECE, dtype=of, device=device)


def _state(module: nn.Module) -> Any:
    """Return what a module holds beside parameters and buffers, to be compared with what it holds later."""
    state: list[Any] = [tuple(module._parameters), tuple(module._buffers)]
    for name, value in vars(module).items():
        is_empty = type(value) in CONTAINERS and not value  # as are most of PyTorch's own
        if not is_empty and name not in ("_parameters", "_buffers"):
            state += name, _plain(value)
    return state


def _plain(value: Any, depth: int = 0) -> Any:
    """Return plain data that differ if the value does: numbers and texts themselves, other objects by identity.

    No code of the user's runs. Containers are compared down to those in those that a module holds.
    """
    kind = type(value)
    if kind in (NoneType, bool, int, float, complex, str, bytes):
        return kind, value
    if isinstance(value, torch.Tensor):
        return id(value), 0 if value.is_inference() else value._version
    if kind not in CONTAINERS or depth > DEEPEST:
        return id(value)
    if len(value) > LONGEST:
        return id(value), len(value)
    if kind in (set, frozenset):
        return kind, frozenset(map(id, value))
    if isinstance(value, dict):
        return kind, tuple((_plain(key, DEEPEST), _plain(item, depth + 1)) for key, item in value.items())
    return kind, tuple(_plain(item, depth + 1) for item in value)


# --- a process ----------------------------------------------------------------------------------------------------
class ProcessState:
    """The state of a process that trains trial after trial.

    `begin` comes before each trial, `found_in` between its model and its first step, `end` after it.
    """

    def __init__(self, modules: Iterable[str] = ()) -> None:
        """Take the names of the user's modules. What importing them sets stays."""
        self._modules = tuple(modules)
        self._settings: Settings | None = None  # None: no trial has begun
        self._imported: set[str] = set()
        self._set_by: dict[str, set[str]] = {}  # code → names of settings that it had set before its first step
        self._remains = Remains()

    @property
    def is_used(self) -> bool:
        """Whether a trial has begun."""
        return self._settings is not None

    def begin(self) -> str:
        """Put the settings back to how they stood after the user's modules were imported, here before the first trial.

        Return why that is not as in a fresh process; "": it is. A module that can't be imported is left to the trial
        that needs it.
        """
        if self._settings is None:
            define_missing_operators()  # a user's module may import torchvision
            for name in self._modules:
                with contextlib.suppress(Exception, SystemExit):
                    importlib.import_module(name)
            self._settings, self._imported = Settings(ALL), set(sys.modules)
            return ""
        changed = [name for name in self._settings.put_back() if name in COMPUTING]
        late = [name for name in sys.modules.keys() - self._imported if _is_own(name)]
        self._imported |= sys.modules.keys()
        if changed and late:
            return f"importing {min(late)} may have set {changed[0]}, and only an earlier trial imported it"
        return ""

    def found_in(self, model: nn.Module, code: str = "") -> str:
        """Return which part of a new trial's model an earlier trial has changed, or what it alone has set; "": nothing.

        code: names and arguments of what the trial calls. Trials of the same code set the same, unless it does so once.
        """
        assert self._settings is not None, "no trial has begun"
        own = self._settings.changed().keys() & COMPUTING.keys()
        unlike = own ^ self._set_by.setdefault(code, own)
        if unlike:
            return f"the code sets {min(unlike)} once, in the first trial of a process"
        found = self._remains.found_in(model)
        if not found:
            self._remains.note(model)
        return found

    def end(self, model: nn.Module) -> None:
        """Note the end of the training of a model in which nothing was found."""
        self._remains.note_end(model)


def _is_own(module: str) -> bool:
    """Return whether a module is the user's: of no installed library, and not of this package."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if not file or module.partition(".")[0] == "scalestudy":
        return False
    return not is_installed(Path(file))
