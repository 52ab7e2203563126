"""A fake of PyTorch's code generator: it counts graphs, and runs each as it is, without a C++ compiler."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch


class FakeInductor:
    """Stands where `torch.compile` hands a traced graph to Inductor."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.graphs = 0  # compiled in all
        self.for_any_size = 0  # of them, with a dimension that may vary
        self._graphs: weakref.WeakSet[torch.fx.GraphModule] = weakref.WeakSet()
        self.options: list[Mapping[str, Any]] = []  # of Inductor, for each graph
        monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", self._compile)
        torch.compiler.reset()  # nothing that was compiled by the real one is used again

    def kept(self) -> int:
        """How many of them the process still holds."""
        gc.collect()
        return len(self._graphs)

    def _compile(
        self, graph: torch.fx.GraphModule, inputs: Sequence[Any], *, config_patches: Mapping[str, Any], **_: object
    ) -> Callable[..., Any]:
        self.graphs += 1
        self.for_any_size += any(isinstance(each, torch.SymInt) for each in inputs)
        self._graphs.add(graph)
        self.options.append(config_patches)
        return graph.forward
