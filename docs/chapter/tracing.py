"""What does tracing make of print, .item(), `if` and `for`?

The book's hybrid networks, of which such lines disappear: python docs/chapter/tracing.py

Each function runs eagerly, by torch.compile with and without fullgraph=True, and by torch.export. It is traced on one
input and compared on another, of another sign and another sum.
"""

import contextlib
import io
import logging
from collections.abc import Callable

import torch
from lesson import begin, show

Function = Callable[[torch.Tensor], torch.Tensor]
TRACED, OTHER = [1.0, 2.0, 3.0], [-1.0, -2.0, -4.0]


def prints(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    print("in the middle")
    return y + 1


def takes_item(x: torch.Tensor) -> torch.Tensor:
    return x * x.sum().item()


def branches_on_data(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.sum() > 0 else -x


def branches_on_shape(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.shape[0] > 2 else -x


def loops_fixed(x: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = x * 2
    return x


def loops_on_data(x: torch.Tensor) -> torch.Tensor:
    for _ in range(int(x.abs().sum())):
        x = x * 2
    return x


CASES: dict[str, Function] = {
    "print": prints,
    ".item()": takes_item,
    "if x.sum() > 0": branches_on_data,
    "if x.shape[0] > 2": branches_on_shape,
    "for: 3 rounds": loops_fixed,
    "for: rounds by data": loops_on_data,
}


class Wrapped(torch.nn.Module):
    """A function as a module: torch.export takes nothing else."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.forward = function


def outcome(function: Function, trace: Callable[[], Function]) -> str:
    """Trace, call on the other input, and compare with the eager function: its result, and the lines it prints."""
    torch.compiler.reset()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            traced = trace()
            with contextlib.redirect_stdout(io.StringIO()) as found:
                result = traced(torch.tensor(OTHER))
        except Exception as error:  # whatever the tracer raises is the outcome
            return f"refused ({type(error).__name__})"
        with contextlib.redirect_stdout(io.StringIO()) as expected:
            same = torch.equal(result, function(torch.tensor(OTHER)))
    if not same:
        return "another result"
    return "same" if found.getvalue() == expected.getvalue() else "same result, prints nothing"


def main() -> None:
    """Trace each case by torch.compile (backend `eager`: tracing alone), with fullgraph=True, and by torch.export."""
    begin(__doc__)
    logging.disable(logging.CRITICAL)  # the tracers' own messages
    rows = []
    for name, function in CASES.items():

        def compiled(full: bool, function: Function = function) -> Function:
            traced = torch.compile(function, backend="eager", fullgraph=full)
            traced(torch.tensor(TRACED))
            return traced

        def exported(function: Function = function) -> Function:
            return torch.export.export(Wrapped(function), (torch.tensor(TRACED),)).module()

        torch.compiler.reset()
        with contextlib.redirect_stdout(io.StringIO()):
            breaks = torch._dynamo.explain(function)(torch.tensor(TRACED)).graph_break_count
        ways = (lambda: compiled(False), lambda: compiled(True), exported)
        rows.append((name, breaks, *(outcome(function, way) for way in ways)))
    header = ("in the function", "graph breaks", "torch.compile", "fullgraph=True", "torch.export")
    show("What tracing does; results on an input that was not traced", header, rows)


if __name__ == "__main__":
    main()
