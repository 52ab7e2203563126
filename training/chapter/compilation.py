"""`bench compile`: programs from text, models.

The book's first example in "Compilers and Interpreters": `add` and `fancy_func` as functions that run, and as functions
that only return the program's text, which is compiled and run when all of it is known.

The book's "Compilers and Interpreters", with torch.compile in the place of its hybrid blocks. Shapes: inputs
(N, 1, 28, 28), outputs (N, 10).
"""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch

from scalestudy.training.chapter.measuring import (
    MEBIBYTE,
    Cell,
    Experiment,
    Table,
    first_line,
    median_seconds,
    microseconds,
    milliseconds,
    peak_bytes,
    quiet_compiler,
)
from scalestudy.training.chapter.tracing import tracing_table
from scalestudy.training.distributed import synchronise_device
from scalestudy.training.models import build_model
from scalestudy.training.seeding import seed_parameters

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


QUESTION = "What does compiling a model save, what does it cost, and what does tracing make of Python?"
Model = Callable[[torch.Tensor], torch.Tensor]
CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
MODELS_AND_BATCHES = {"mlp": 64, "lenet": 64, "resnet18": 16}
QUICK_MODELS = {"lenet": 8}


@dataclass(frozen=True)
class Compiled:
    """One model, eager and compiled."""

    batch: int
    compile_seconds: float  # the first call
    eager_seconds: float  # a call
    compiled_seconds: float  # a call
    eager_bytes: int  # peak of a call beyond parameters and input
    compiled_bytes: int
    difference: float  # largest, of the outputs

    @property
    def calls_to_pay(self) -> float | None:
        """Calls after which compiling has saved what it took; None: it never does."""
        saved = self.eager_seconds - self.compiled_seconds
        return self.compile_seconds / saved if saved > 0 else None


def run(device: torch.device, *, quick: bool = False) -> Experiment:
    """Program text, models, tracing. Compiles anew, in a cache folder of its own; on two cores about a minute."""
    models = QUICK_MODELS if quick else MODELS_AND_BATCHES
    traced, traces = tracing_table()
    tables = [program_table()]
    metrics = {f"breaks_{_word(name)}_count": float(trace.breaks) for name, trace in traces.items()}
    with fresh_cache(), quiet_compiler():
        problem, start = start_compiler(device)
        repeats = 3 if quick else 21
        found = {name: compare(name, batch, device, repeats) for name, batch in models.items() if not problem}
    if not problem:
        tables.append(model_table(found, start))
        metrics |= {"compiler_start_seconds": start, **_metrics(found)}
    return Experiment("compile", QUESTION, (*tables, traced), _notes(found, problem), metrics)


@contextlib.contextmanager
def fresh_cache() -> Iterator[None]:
    """An empty cache for the compiler, so that its time is that of compiling, whatever was compiled here before."""
    before = os.environ.get(CACHE_VARIABLE)
    with tempfile.TemporaryDirectory(prefix="inductor-") as folder:
        os.environ[CACHE_VARIABLE] = folder
        torch.compiler.reset()
        try:
            yield
        finally:
            torch.compiler.reset()
            if before is None:
                del os.environ[CACHE_VARIABLE]
            else:
                os.environ[CACHE_VARIABLE] = before


def start_compiler(device: torch.device) -> tuple[str | None, float]:
    """(why nothing can be compiled here, or None; seconds of the first, trivial compilation)."""
    started = time.perf_counter()
    try:
        torch.compile(lambda x: x + 1)(torch.ones(8, device=device))
    except Exception as error:  # whatever a missing tool makes the compiler raise
        return first_line(error), 0.0
    return None, time.perf_counter() - started


def compare(name: str, batch: int, device: torch.device, repeats: int) -> Compiled:
    """The model in evaluation mode, without gradients, eager and compiled, on the same input."""
    seed_parameters(0)
    model = build_model(name, 10, 1, {}).eval().to(device)
    inputs = torch.randn(batch, 1, 28, 28, generator=torch.Generator().manual_seed(0)).to(device)
    compiled = torch.compile(model)
    with torch.inference_mode():
        expected = model(inputs)
        compile_seconds, found = _timed_call(compiled, inputs, device)
        ways: dict[str, Model] = {"eager": model, "compiled": compiled}
        calls = {way: functools.partial(called, inputs) for way, called in ways.items()}
        seconds = median_seconds(calls, device, repeats)
        memory = {way: peak_bytes(call, device) for way, call in calls.items()}
    difference = (found - expected).abs().max().item()
    return Compiled(batch, compile_seconds, seconds["eager"], seconds["compiled"], memory["eager"],
                    memory["compiled"], difference)  # fmt: skip


def _timed_call(model: Model, inputs: torch.Tensor, device: torch.device) -> tuple[float, torch.Tensor]:
    started = time.perf_counter()
    outputs = model(inputs)
    synchronise_device(device)
    return time.perf_counter() - started, outputs


def model_table(found: Mapping[str, Compiled], start: float) -> Table:
    """The book's table, for three models."""
    rows: list[tuple[Cell, ...]] = [
        (
            *(name, each.batch, milliseconds(each.eager_seconds), milliseconds(each.compiled_seconds)),
            *(each.eager_seconds / each.compiled_seconds, each.compile_seconds, each.calls_to_pay),
            *(each.eager_bytes / MEBIBYTE, each.compiled_bytes / MEBIBYTE, each.difference),
        )
        for name, each in found.items()
    ]
    header = ("model", "batch", "eager (ms)", "compiled (ms)", "eager ÷ compiled", "compiling (s)", "calls to pay",
              "eager memory (MiB)", "compiled memory (MiB)", "max difference")  # fmt: skip
    return Table(
        f"A call of the model without gradients; the compiler's own start took {start:.3g} s", header, tuple(rows)
    )


def _metrics(found: Mapping[str, Compiled]) -> dict[str, float]:
    return {
        f"{name}_{key}": float(value)
        for name, each in found.items()
        for key, value in {
            "eager_seconds": each.eager_seconds,
            "compiled_seconds": each.compiled_seconds,
            "compile_seconds": each.compile_seconds,
            "eager_peak_bytes": each.eager_bytes,
            "compiled_peak_bytes": each.compiled_bytes,
            "output_difference": each.difference,
        }.items()
    }


def _notes(found: Mapping[str, Compiled], problem: str | None) -> tuple[str, ...]:
    notes = [
        "Tracing: print, .item() and an `if` or `for` on data break torch.compile's graph; the call still does what "
        "the eager one does, in pieces. fullgraph=True refuses what it can't have in one graph.",
        "An `if` on shapes and a `for` of fixed length are gone from the graph: taken, and unrolled, while tracing. An "
        "exported program has no print: it ran once, while tracing.",
    ]
    if problem:
        notes.append(f"Models were not compiled: nothing can be compiled here ({problem}); install a C++ compiler.")
    never = [name for name, each in found.items() if each.calls_to_pay is None]
    if never:
        notes.append(f"Compiling does not pay for {', '.join(never)} on this machine: a compiled call is not shorter.")
    if found:
        notes.append("Memory: most bytes that a call holds beyond parameters and input. `calls to pay`: calls until "
                     "compiling has saved the time it took; -: never.")  # fmt: skip
    return tuple(notes)


def _word(name: str) -> str:
    return "_".join("".join(letter if letter.isalnum() else " " for letter in name.lower()).split())
