"""`bench compile`: what does compiling a model save, what does it cost, and what does tracing make of Python?

The book's "Compilers and Interpreters" in three parts. First `fancy_func`, as a function that runs and as text that is
compiled when all of it is known. Then models, with torch.compile in the place of the book's hybrid blocks: inputs
(N, 1, 28, 28), outputs (N, 10). Last what tracing does, in tracing.py.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
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

QUESTION = "What does compiling a model save, what does it cost, and how does tracing treat Python code?"
CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
MODELS_AND_BATCHES = {"mlp": 64, "lenet": 64, "resnet18": 16}
QUICK_MODELS = {"lenet": 8}
ARGUMENTS = (1, 2, 3, 4)  # of fancy_func
CALLS = 1000  # of each way to run fancy_func


def run(device: torch.device, *, quick: bool = False) -> Experiment:
    """Runs program text, models, tracing. Compiles anew, in a cache folder of its own; on two cores about a minute."""
    models = QUICK_MODELS if quick else MODELS_AND_BATCHES
    traced, traces = tracing_table()
    tables = [program_table()]
    metrics: dict[str, float] = {}
    for name, trace in traces.items():
        word = "_".join(re.findall(r"[^\W_]+", name.lower()))
        metrics[f"breaks_{word}_count"] = float(trace.breaks)
    with fresh_cache(), quiet_compiler():
        problem, start = start_compiler(device)
        repeats = 3 if quick else 21
        found = {name: compare(name, batch, device, repeats) for name, batch in models.items() if not problem}
    notes = [
        "Tracing: print, .item() and an `if` or `for` on data break torch.compile's graph; the call still does what "
        "the eager one does, in pieces. fullgraph=True refuses what it can't have in one graph.",
        "An `if` on shapes and a `for` of fixed length are resolved while tracing and are not in the graph. An "
        "exported program has no print: it ran once, while tracing.",
    ]
    if problem:
        notes.append(f"Models were not compiled: nothing can be compiled here ({problem}); install a C++ compiler.")
    else:
        table, of_models = model_table(found, start)
        tables.append(table)
        metrics |= {"compiler_start_seconds": start, **of_models}
        never = ", ".join(name for name, each in found.items() if each.calls_to_pay is None)
        if never:
            notes.append(f"Compiling does not pay for {never} on this machine: a compiled call is not shorter.")
        notes.append(
            "Memory: most bytes that a call holds beyond parameters and input. `calls to pay`: calls until compiling "
            "has saved the time it took; -: never."
        )
    return Experiment("compile", QUESTION, (*tables, traced), tuple(notes), metrics)


def program_table() -> Table:
    """Shows result and time of each way to run the book's fancy_func."""
    whole = compile(evoke_text(), "<program>", "exec")
    folded = compile(folded_text(), "<program>", "exec")
    ways: dict[str, tuple[Callable[[], Any], CodeType | None]] = {
        f"imperative: fancy_func{ARGUMENTS}": (lambda: fancy_func(*ARGUMENTS), None),
        "text: compile and exec each time": (lambda: run_program(evoke_text()), None),
        "text: compiled once, exec": (lambda: run_program(whole), whole),
        "folded text: compiled once, exec": (lambda: run_program(folded), folded),
    }
    rows: list[tuple[Cell, ...]] = []
    for name, (way, code) in ways.items():
        result = way()
        started = time.perf_counter()
        for _ in range(CALLS):
            way()
        seconds = (time.perf_counter() - started) / CALLS
        constants = [value for value in code.co_consts if isinstance(value, int | tuple)] if code else []
        rows.append((name, result, microseconds(seconds), ", ".join(map(str, constants)) or None))
    header = ("program", "result", "a run (µs)", "numbers in the compiled code")
    return Table("A program from a string (fancy_func of Dive into Deep Learning, chapter 13)", header, tuple(rows))


def add(a: int, b: int) -> int:
    """Adds two numbers: the imperative program's only operation."""
    return a + b


def fancy_func(a: int, b: int, c: int, d: int) -> int:
    """Computes (a + b) + (c + d), one call after the other."""
    e = add(a, b)
    f = add(c, d)
    return add(e, f)


def evoke_text() -> str:
    """Returns the whole program as text; it leaves its result in `result`."""
    return (
        "def add(a, b):\n    return a + b\n"
        "def fancy_func(a, b, c, d):\n    e = add(a, b)\n    f = add(c, d)\n    return add(e, f)\n"
        f"result = fancy_func{ARGUMENTS}\n"
    )


def folded_text() -> str:
    """Returns what a compiler that sees the whole program may make of it: no calls, no variables."""
    a, b, c, d = ARGUMENTS
    return f"result = ({a} + {b}) + ({c} + {d})\n"


def run_program(program: str | CodeType) -> Any:
    """Runs a program and returns its `result`; a text is compiled first."""
    code = compile(program, "<program>", "exec") if isinstance(program, str) else program
    names: dict[str, Any] = {}
    exec(code, names)
    return names["result"]


@contextlib.contextmanager
def fresh_cache() -> Iterator[None]:
    """Gives the compiler an empty cache. Its time is then that of compiling, whatever was compiled here before."""
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
    """Compiles something trivial; returns (why nothing can be compiled here, or None; the seconds it took)."""
    started = time.perf_counter()
    try:
        torch.compile(lambda x: x + 1)(torch.ones(8, device=device))
    except Exception as error:  # whatever a missing tool makes the compiler raise
        return first_line(error), 0.0
    return None, time.perf_counter() - started


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


def compare(name: str, batch: int, device: torch.device, repeats: int) -> Compiled:
    """Runs a model in evaluation mode, without gradients, eager and compiled, on the same input."""
    seed_parameters(0)
    model = build_model(name, (10, 1), {}).eval().to(device)
    inputs = torch.randn(batch, 1, 28, 28, generator=torch.Generator().manual_seed(0)).to(device)
    compiled = torch.compile(model)
    with torch.inference_mode():
        expected = model(inputs)
        started = time.perf_counter()
        found = compiled(inputs)
        synchronise_device(device)
        compile_seconds = time.perf_counter() - started
        ways: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"eager": model, "compiled": compiled}
        calls = {way: functools.partial(called, inputs) for way, called in ways.items()}
        seconds = median_seconds(calls, device, repeats)
        memory = {way: peak_bytes(call, device) for way, call in calls.items()}
    return Compiled(
        batch=batch,
        compile_seconds=compile_seconds,
        eager_seconds=seconds["eager"],
        compiled_seconds=seconds["compiled"],
        eager_bytes=memory["eager"],
        compiled_bytes=memory["compiled"],
        difference=(found - expected).abs().max().item(),
    )


def model_table(found: Mapping[str, Compiled], start: float) -> tuple[Table, dict[str, float]]:
    """Shows the book's table, a row a model, after a compiler that took `start` seconds; returns the metrics too."""
    rows: list[tuple[Cell, ...]] = []
    metrics: dict[str, float] = {}
    for name, each in found.items():
        rows.append(
            (
                name,
                each.batch,
                milliseconds(each.eager_seconds),
                milliseconds(each.compiled_seconds),
                each.eager_seconds / each.compiled_seconds,
                each.compile_seconds,
                each.calls_to_pay,
                each.eager_bytes / MEBIBYTE,
                each.compiled_bytes / MEBIBYTE,
                each.difference,
            )
        )
        metrics[f"{name}_eager_seconds"] = each.eager_seconds
        metrics[f"{name}_compiled_seconds"] = each.compiled_seconds
        metrics[f"{name}_compile_seconds"] = each.compile_seconds
        metrics[f"{name}_eager_peak_bytes"] = float(each.eager_bytes)
        metrics[f"{name}_compiled_peak_bytes"] = float(each.compiled_bytes)
        metrics[f"{name}_output_difference"] = each.difference
    header = (
        *("model", "batch", "eager (ms)", "compiled (ms)", "eager ÷ compiled", "compiling (s)", "calls to pay"),
        *("eager memory (MiB)", "compiled memory (MiB)", "max difference"),
    )
    title = f"A call of the model without gradients; the compiler's own start took {start:.3g} s"
    return Table(title, header, tuple(rows)), metrics
