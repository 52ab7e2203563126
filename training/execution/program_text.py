"""Stage 5, training loop: `bench compile` – a program run step by step, and the same program made from its text.

The book's first example in "Compilers and Interpreters": `add` and `fancy_func` as functions that run, and as functions
that only return the program's text, which is compiled and run when all of it is known.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import CodeType
from typing import Any

from training.execution.experiment import Cell, Table
from training.execution.measuring import microseconds

ARGUMENTS = (1, 2, 3, 4)
CALLS = 1000


def add(a: int, b: int) -> int:
    """The imperative program's only operation."""
    return a + b


def fancy_func(a: int, b: int, c: int, d: int) -> int:
    """(a + b) + (c + d), one call after the other."""
    e = add(a, b)
    f = add(c, d)
    return add(e, f)


def add_text() -> str:
    """The text of `add`."""
    return "def add(a, b):\n    return a + b\n"


def fancy_func_text() -> str:
    """The text of `fancy_func`."""
    return "def fancy_func(a, b, c, d):\n    e = add(a, b)\n    f = add(c, d)\n    return add(e, f)\n"


def evoke_text() -> str:
    """The whole program, which leaves its result in `result`."""
    return f"{add_text()}{fancy_func_text()}result = fancy_func{ARGUMENTS}\n"


def folded_text() -> str:
    """What a compiler that sees the whole program may make of it: no calls, no variables."""
    a, b, c, d = ARGUMENTS
    return f"result = ({a} + {b}) + ({c} + {d})\n"


def run_program(program: str | CodeType) -> Any:
    """The `result` that a program leaves; a text is compiled first."""
    code = compile(program, "<program>", "exec") if isinstance(program, str) else program
    names: dict[str, Any] = {}
    exec(code, names)
    return names["result"]


def program_table() -> Table:
    """Result and time of each way of running the program."""
    whole = compile(evoke_text(), "<program>", "exec")
    folded = compile(folded_text(), "<program>", "exec")
    ways: dict[str, Callable[[], Any]] = {
        "imperative: fancy_func(1, 2, 3, 4)": lambda: fancy_func(*ARGUMENTS),
        "text: compile and exec each time": lambda: run_program(evoke_text()),
        "text: compiled once, exec": lambda: run_program(whole),
        "folded text: compiled once, exec": lambda: run_program(folded),
    }
    constants = {"folded text: compiled once, exec": _constants(folded), "text: compiled once, exec": _constants(whole)}
    rows: list[tuple[Cell, ...]] = [
        (name, way(), microseconds(_seconds_a_call(way)), constants.get(name)) for name, way in ways.items()
    ]
    header = ("program", "result", "a run (µs)", "numbers in the compiled code")
    return Table("A program from a string (the book's fancy_func)", header, tuple(rows))


def _constants(code: CodeType) -> str:
    return ", ".join(str(value) for value in code.co_consts if isinstance(value, int | tuple))


def _seconds_a_call(way: Callable[[], Any]) -> float:
    started = time.perf_counter()
    for _ in range(CALLS):
        way()
    return (time.perf_counter() - started) / CALLS
