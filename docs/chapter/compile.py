"""What does compiling a model save, and what does it cost?

The book's "Compilers and Interpreters": python docs/chapter/compile.py [--device cpu] [--quick]

First a program as text, which can be compiled once all of it is known. Then the networks of the studies, with
torch.compile in the place of the book's hybrid blocks. With --quick a model is traced, not compiled to machine code.
"""

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator

import torch
from lesson import begin, milliseconds, show
from torch.utils.benchmark import Timer

from scalestudy.training.models import build_model

PROGRAM = """
def add(a, b):
    return a + b
def fancy_func(a, b, c, d):
    e = add(a, b)
    f = add(c, d)
    return add(e, f)
result = fancy_func(1, 2, 3, 4)
"""
FOLDED = "result = (1 + 2) + (3 + 4)"  # what a compiler that sees the whole program may make of it


def time_programs() -> None:
    """Run the book's fancy_func from its text."""
    whole, folded = compile(PROGRAM, "<program>", "exec"), compile(FOLDED, "<program>", "exec")
    ways = {
        "compiled each time": "exec(compile(PROGRAM, '<program>', 'exec'), names)",
        "compiled once": "exec(whole, names)",
        "compiled once, constants folded": "exec(folded, names)",
    }
    rows = []
    for name, way in ways.items():
        names: dict[str, int] = {}
        timer = Timer(way, globals={"PROGRAM": PROGRAM, "whole": whole, "folded": folded, "names": names})
        rows.append((name, 1e6 * timer.timeit(1000).median, names["result"]))
    show("fancy_func(1, 2, 3, 4) as text", ("program", "a run (µs)", "result"), rows)


@contextlib.contextmanager
def fresh_cache() -> Iterator[None]:
    """Give the compiler an empty cache, so that its time is the time to compile."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        yield


def compare(name: str, batch: int, device: torch.device, backend: str) -> list[object]:
    """Time a call of a model without gradients, eager and compiled, on one input of (batch, 1, 28, 28)."""
    torch.manual_seed(0)
    model = build_model(name, (10, 1), {}).eval().to(device)
    inputs = torch.randn(batch, 1, 28, 28, device=device)
    compiled = torch.compile(model, backend=backend)
    with torch.inference_mode():
        expected = model(inputs)
        started = time.perf_counter()
        difference = (compiled(inputs) - expected).abs().max().item()  # .item() waits for the device
        compiling = time.perf_counter() - started
        threads = torch.get_num_threads()
        eager_s, compiled_s = (
            Timer("f(x)", globals={"f": f, "x": inputs}, num_threads=threads).blocked_autorange(min_run_time=0.5).median
            for f in (model, compiled)
        )
    saved = eager_s - compiled_s
    pays = compiling / saved if saved > 0 else "never"
    return [
        name,
        batch,
        milliseconds(eager_s),
        milliseconds(compiled_s),
        eager_s / compiled_s,
        compiling,
        pays,
        difference,
    ]


def compare_models(device: torch.device, quick: bool) -> None:
    """Compare the networks, after a trivial function that takes the compiler's own start on itself."""
    backend, batches = ("eager", {"lenet": 8}) if quick else ("inductor", {"mlp": 64, "lenet": 64, "resnet18": 16})
    with fresh_cache():
        started = time.perf_counter()
        try:
            torch.compile(lambda x: x + 1, backend=backend)(torch.ones(8, device=device))
        except Exception as error:  # whatever a missing tool makes the compiler raise
            reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
            print(f"\nModels were not compiled: nothing can be compiled here ({reason}); install a C++ compiler.")
            return
        start = time.perf_counter() - started
        rows = [compare(name, batch, device, backend) for name, batch in batches.items()]
    header = (
        "model",
        "batch",
        "eager (ms)",
        "compiled (ms)",
        "gain",
        "compiling (s)",
        "calls to pay",
        "max difference",
    )
    show(f"A call without gradients, by the backend {backend}; its own start took {start:.3g} s", header, rows)


def main() -> None:
    """Show both."""
    device, quick = begin(__doc__)
    time_programs()
    compare_models(device, quick)


if __name__ == "__main__":
    main()
