"""Stage 5, training loop: `bench async` – which calls wait for queued work, and what a collective does then."""

from __future__ import annotations

import contextlib
import io
import itertools
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from training.distributed import Worker, synchronise_device
from training.execution.experiment import Cell, Table
from training.execution.measuring import milliseconds

Work = Callable[[], torch.Tensor]
Call = Callable[[torch.Tensor], object]


def synchronising_calls(device: torch.device, work: Work, count: int) -> Table:
    """Each call on the result of `count` queued operations: did it wait for them? A warm-up goes before each."""
    rows: list[tuple[Cell, ...]] = []
    for name, call in _calls(device).items():
        call(work())
        spans = _time_call(device, work, count, call)
        rows.append((name, *map(milliseconds, spans), did_wait(*spans)))
    header = ("call on the result", "work handed over in (ms)", "the call (ms)", "left to do (ms)", "waits?")
    return Table(f"Which calls synchronise on {device.type}, each after {count} products", header, tuple(rows))


def _calls(device: torch.device) -> dict[str, Call]:
    """The calls that the book asks about, and some that are thought to wait and don't."""
    numpy: dict[str, Call] = (
        {"x.numpy()": lambda x: x.numpy()} if device.type == "cpu" else {"x.cpu().numpy()": lambda x: x.cpu().numpy()}
    )
    return {
        "print(x[0, 0])": _print_first,
        "x[0, 0].item()": lambda x: x[0, 0].item(),
        **numpy,
        "x.cpu()": lambda x: x.cpu(),
        "if x[0, 0] > 0": lambda x: bool(x[0, 0] > 0),
        "synchronize()": lambda x: synchronise_device(x.device),
        "x.to('cpu', non_blocking=True)": lambda x: x.to("cpu", non_blocking=True),
        "x + 1": lambda x: x + 1,
        "x.shape": lambda x: x.shape,
    }


def _print_first(x: torch.Tensor) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        print(x[0, 0])


def _time_call(device: torch.device, work: Work, count: int, call: Call) -> tuple[float, float, float]:
    """Seconds until the work is handed over, of the call, and until the device has nothing left to do."""
    synchronise_device(device)
    marks = [time.perf_counter()]
    results = [work() for _ in range(count)]
    marks.append(time.perf_counter())
    call(results[-1])
    marks.append(time.perf_counter())
    synchronise_device(device)
    marks.append(time.perf_counter())
    queued, called, left = (later - earlier for earlier, later in itertools.pairwise(marks))
    return queued, called, left


def did_wait(queued: float, called: float, left: float) -> str:
    """What the three spans, in one unit, say: in which of them did most of the work's time pass?"""
    if queued > called + left:
        return "nothing to wait for"
    return "yes" if called > left else "no"


def reduce_asynchronously(worker: Worker, numbers: int, repeats: int) -> dict[str, float]:
    """On each rank: seconds until all_reduce(async_op=True) returns, of a read then, of work.wait(), and of all.

    The median pass after one of warm-up. Raises RuntimeError if a sum is wrong.
    """
    passes = [_reduce_once(worker, numbers) for _ in range(repeats + 1)][1:]
    finished, queued, read, waited = sorted(passes)[len(passes) // 2]
    return {"queued": queued, "read": read, "waited": waited, "finished": finished}


def _reduce_once(worker: Worker, numbers: int) -> tuple[float, float, float, float]:
    tensor = torch.ones(numbers)
    dist.barrier()
    marks = [time.perf_counter()]
    work: Any = dist.all_reduce(tensor, async_op=True)
    marks.append(time.perf_counter())
    tensor[0].item()
    marks.append(time.perf_counter())
    work.wait()
    marks.append(time.perf_counter())
    if not bool((tensor == worker.world_size).all()):
        raise RuntimeError(f"all_reduce of ones over {worker.world_size} ranks gave {tensor.unique().tolist()}")
    queued, read, waited = (later - earlier for earlier, later in itertools.pairwise(marks))
    return marks[-1] - marks[0], queued, read, waited


def collective_table(spans: dict[str, float]) -> Table:
    """What each call of an asynchronous collective took, on the slower of two ranks."""
    rows = (
        ("work = all_reduce(x, async_op=True)", milliseconds(spans["queued"]), "no: a thread of gloo works on it"),
        ("x[0].item()", milliseconds(spans["read"]), "no: it may read what is not summed yet"),
        ("work.wait()", milliseconds(spans["waited"]), "yes"),
    )
    return Table("Asynchronous collectives on the CPU: 2 gloo ranks", ("call", "took (ms)", "waits?"), rows)
