"""What tracing makes of print, in-place operations, .item(), `if` and `for`: the second part of `bench compile`.

Each case runs eagerly, by torch.compile with and without fullgraph, and by torch.export. It is traced on one input and
compared on another.
"""

from __future__ import annotations

import contextlib
import io
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from scalestudy.training.chapter.measuring import Table, first_line, quiet_compiler

Function = Callable[[torch.Tensor], torch.Tensor]
TRACED = (1.0, 2.0, 3.0)  # the input that is traced: its sum, 6, is above 0
OTHER = (-1.0, -2.0, -4.0)  # the input that the outcome is compared on: another sign, another number of rounds
ERROR_CHARACTERS = 110


@dataclass(frozen=True)
class Outcome:
    """What a traced function did on the other input, against the eager one."""

    same: bool = False  # the result, and the argument afterwards
    printed: int = 0  # lines printed in the call
    expected: int = 0  # lines that the eager function prints
    error: str | None = None  # one line, of tracing or of the call

    @property
    def text(self) -> str:
        """The outcome in a table's cell."""
        if self.error is not None:
            return textwrap.shorten(self.error, ERROR_CHARACTERS, placeholder=" …")
        if not self.same:
            return "another result"
        return "same as eager" if self.printed == self.expected else f"same result, prints {self.printed} lines"


@dataclass(frozen=True)
class Trace:
    """What tracing made of one case."""

    graphs: int
    breaks: int
    compiled: Outcome
    full_graph: Outcome
    exported: Outcome


def tracing_table() -> tuple[Table, dict[str, Trace]]:
    """Traces every case by torch.compile (backend `eager`: tracing alone), with fullgraph=True, and by torch.export."""
    traces = {name: trace(function) for name, function in CASES.items()}
    rows = tuple(
        (name, each.graphs, each.breaks, each.compiled.text, each.full_graph.text, each.exported.text)
        for name, each in traces.items()
    )
    header = ("in the function", "graphs", "breaks", "torch.compile", "fullgraph=True", "torch.export")
    return Table("What tracing does; results on an input that was not traced", header, rows), traces


def trace(function: Function) -> Trace:
    """Counts the function's graphs and compares its traced forms. Forgets what the process has compiled before."""

    def compiled(full_graph: bool) -> Function:
        traced = torch.compile(function, backend="eager", fullgraph=full_graph)
        traced(torch.tensor(TRACED))
        return traced

    def exported() -> Function:
        return torch.export.export(_Wrapped(function), (torch.tensor(TRACED),)).module()

    with quiet_compiler(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        torch.compiler.reset()
        explained = torch._dynamo.explain(function)(torch.tensor(TRACED))
        outcomes = [_outcome(function, make) for make in (lambda: compiled(False), lambda: compiled(True), exported)]
        torch.compiler.reset()
    return Trace(explained.graph_count, explained.graph_break_count, *outcomes)


def _outcome(function: Function, make: Callable[[], Function]) -> Outcome:
    """Compares the function that `make` traces with the eager one; whatever the tracer raises is the outcome."""
    torch.compiler.reset()
    try:
        found, printed = _call(make())
    except Exception as error:
        return Outcome(error=first_line(error))
    expected, expected_lines = _call(function)
    return Outcome(found == expected, printed, expected_lines)


def _call(function: Function) -> tuple[Any, int]:
    """Returns ((result, argument afterwards), lines printed)."""
    argument, screen = torch.tensor(OTHER), io.StringIO()
    with contextlib.redirect_stdout(screen):
        result = function(argument)
    return (result.tolist(), argument.tolist()), len(screen.getvalue().splitlines())


class _Wrapped(nn.Module):
    """The function as a module: torch.export takes nothing else."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def prints(x: torch.Tensor) -> torch.Tensor:
    """Prints a line between two operations."""
    y = x * 2
    print("in the middle")
    return y + 1


def adds_in_place(x: torch.Tensor) -> torch.Tensor:
    """Changes its argument."""
    x += 1
    return x * 2


def takes_item(x: torch.Tensor) -> torch.Tensor:
    """Makes a Python number of a tensor."""
    return x * x.sum().item()


def branches_on_data(x: torch.Tensor) -> torch.Tensor:
    """Branches on what the tensor holds."""
    if x.sum() > 0:
        return x * 2
    return -x


def branches_on_shape(x: torch.Tensor) -> torch.Tensor:
    """Branches on the shape, which is known before the numbers are."""
    if x.shape[0] > 2:
        return x * 2
    return -x


def loops_fixed(x: torch.Tensor) -> torch.Tensor:
    """Loops a fixed number of rounds."""
    for _ in range(3):
        x = x * 2
    return x


def loops_on_data(x: torch.Tensor) -> torch.Tensor:
    """Loops for as many rounds as the tensor's numbers say."""
    for _ in range(int(x.abs().sum())):
        x = x * 2
    return x


CASES: dict[str, Function] = {
    "print": prints,
    "in-place: x += 1": adds_in_place,
    ".item()": takes_item,
    "if x.sum() > 0": branches_on_data,
    "if x.shape[0] > 2": branches_on_shape,
    "for: 3 rounds": loops_fixed,
    "for: rounds by data": loops_on_data,
}
