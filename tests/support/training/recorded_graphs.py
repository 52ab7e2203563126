"""In place of CUDA's graphs, on the CPU: operations are recorded, undone, and repeated on the same memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from scalestudy.training.loop import step_graph

WAITS = ("_local_scalar_dense", "nonzero")
Result = TypeVar("Result")


class Recording(TorchDispatchMode):
    """What a function does to tensors. As on a GPU, an operation that would wait for the device is refused."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, list[torch.Tensor]]] = []
        self.before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # storage -> a tensor of it, its values
        self.made: set[int] = set()  # storages that began in the recording
        self.held: list[Any] = []  # so that no storage's number is used twice

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function.overloadpacket.__name__ in WAITS:
            raise RuntimeError("operation not permitted when stream is capturing")
        written = [
            each
            for argument, value in zip(function._schema.arguments, args, strict=False)
            if argument.alias_info is not None and argument.alias_info.is_write
            for each in tree_leaves(value)
            if isinstance(each, torch.Tensor)
        ]
        for tensor in written:
            self._keep(tensor)
        result = function(*args, **kwargs)
        outputs = [each for each in tree_leaves(result) if isinstance(each, torch.Tensor)]
        aliases = any(returned.alias_info is not None for returned in function._schema.returns)
        fresh = [] if aliases else outputs
        self.made.update(each.untyped_storage()._cdata for each in fresh)
        self.held.append((args, kwargs, result))
        if fresh or written:
            self.calls.append((function, args, kwargs, fresh))
        return result

    def _keep(self, tensor: torch.Tensor) -> None:
        key = tensor.untyped_storage()._cdata
        if key not in self.made and key not in self.before:
            whole = tensor.detach().as_strided((tensor.untyped_storage().nbytes() // tensor.itemsize,), (1,), 0)
            self.before[key] = (whole, whole.clone())

    def undo(self) -> None:
        """Give what existed before the values that it had, and what was made none: a capture computes nothing."""
        for _, _, _, fresh in self.calls:
            for tensor in fresh:
                if tensor.is_floating_point():
                    tensor.fill_(math.nan)
        for tensor, values in self.before.values():
            tensor.copy_(values)

    def replay(self) -> None:
        """The same operations on the same memory."""
        with torch.no_grad():
            for function, args, kwargs, fresh in self.calls:
                result = function(*args, **kwargs)
                if function.namespace == "c10d":
                    result[-1].wait()
                outputs = [each for each in tree_leaves(result) if isinstance(each, torch.Tensor)]
                for kept, new in zip(fresh, outputs, strict=False):
                    kept.copy_(new)


def recorded(function: Callable[[], Result]) -> tuple[Callable[[], None], Result]:
    """As `step_graph.capture`."""
    recording, generator = Recording(), torch.get_rng_state()
    try:
        with recording:
            result = function()
    except RuntimeError:
        raise RuntimeError("CUDA error: operation failed due to a previous error during capture")  # noqa: B904  as CUDA
    finally:
        with torch.no_grad():
            recording.undo()
        torch.set_rng_state(generator)
    return recording.replay, result


@contextmanager
def graphs_on_the_cpu() -> Iterator[None]:
    """Let trainings on the CPU have graphs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_graph, "has_graphs", lambda device: True)
        patch.setattr(step_graph, "capture", recorded)
        yield
