"""`bench async`: when does an operation begin, and who waits for its end?

The book's "Asynchronous Computation", with what PyTorch has. On CUDA each eager operation is queued on a stream. On a
CPU an eager operation has ended when its call returns; only collectives and threads of one's own are asynchronous.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from scalestudy.training.chapter.measuring import (
    MEBIBYTE,
    Cell,
    Experiment,
    Table,
    intra_op_threads,
    median_seconds,
    microseconds,
    milliseconds,
)
from scalestudy.training.chapter.queues import (
    Batches,
    BusyFrontEnd,
    EagerQueue,
    HeldQueue,
    Operation,
    OperationCosts,
    Queue,
    StreamQueue,
    ThreadQueue,
    do_nothing,
    memory_table,
    operation_costs,
)
from scalestudy.training.distributed import Worker, on_ranks, synchronise_device

QUESTION = "When does an operation begin, and who waits for its end?"
BOOKS_PRODUCTS = 10  # matrix products in the book's first table
LAUNCHES = 500  # CUDA's own launch queue is about twice as long; behind a full one t1 would be waiting

Work = Callable[[], torch.Tensor]
Call = Callable[[torch.Tensor], object]
Times = dict[str, tuple[float, float]]
"""Name -> seconds until the work was handed over, and until it was done."""

Spans = Mapping[tuple[str, str], tuple[float, float]]
"""(queue, operation) -> seconds waiting after each operation, and waiting once."""


@dataclass(frozen=True)
class Sizes:
    """How large the experiment is."""

    product: int  # the large matrices are product × product
    small_product: int  # those of the loops on the CPU
    loop: int  # operations in the loops
    reduced: int  # numbers in the all_reduce
    batches: Batches
    repeats: int


FULL = Sizes(1000, 96, 1000, 4 * MEBIBYTE, Batches(count=60, rows=1024, columns=1024), 5)
QUICK = Sizes(400, 64, 100, MEBIBYTE // 4, Batches(count=8, rows=256, columns=256), 2)


def run(device: torch.device, *, quick: bool = False) -> Experiment:
    """Measures queued against finished, loops, costs, synchronising calls, collectives, memory; on a CPU some 10 s."""
    sizes = QUICK if quick else FULL
    ranks = on_ranks(2, reduce_asynchronously, sizes.reduced, sizes.repeats)
    collective = {name: max(rank[name] for rank in ranks) for name in ranks[0]}
    streams: list[HeldQueue] = [StreamQueue(device)] if device.type == "cuda" else []
    with ThreadQueue() as thread:
        finished = queued_and_finished([*streams, EagerQueue(), thread], sizes)
        memory, peaks = memory_table([*streams, thread], sizes.batches)
    small = _product(torch.device("cpu"), sizes.small_product)
    # threads take over the number of intra-operator threads that holds when they start, so these queues are new
    with intra_op_threads(1), ThreadQueue() as thread, BusyFrontEnd(small) as busy:
        held: list[HeldQueue] = [*streams, thread, busy]
        loops = compare_loops([*held, EagerQueue()], sizes)
        costs = measure_costs(held, sizes)
    queue = held[0].name
    largest = [key for key in costs if key[0] == queue][-1]
    reduced = (collective["queued"], collective["finished"])
    metrics = {
        "queued_seconds": finished[queue][0],
        "finished_seconds": finished[queue][1],
        "allreduce_queued_seconds": reduced[0],
        "allreduce_finished_seconds": reduced[1],
        "loop_waiting_each_seconds": loops[largest][0],
        "loop_waiting_once_seconds": loops[largest][1],
        "t1_hand_over_seconds": costs[largest].hand_over,
        "t2_carry_out_seconds": costs[largest].carry_out,
        "t3_answer_seconds": costs[largest].answer,
        **peaks,
    }
    tables = (
        finished_table({**finished, "all_reduce(async_op=True), 2 gloo ranks": reduced}, sizes),
        loop_table(loops, sizes.loop),
        cost_table(costs, loops, sizes.loop),
        synchronising_calls(device, _product(device, sizes.product), BOOKS_PRODUCTS),
        collective_table(collective),
        memory,
    )
    return Experiment("async", QUESTION, tables, _notes(device, sizes.loop), metrics)


def _notes(device: torch.device, count: int) -> tuple[str, ...]:
    if device.type == "cuda":
        on_this_device = [
            "Eager operations on CUDA are queued on a stream and the call returns; a value that Python needs (print, "
            ".item(), .cpu(), bool) waits for the stream, and so does synchronize.",
            "PyTorch gives a freed block to the next operation of the same stream without waiting, so the device's "
            "memory need not grow with what is queued; pinned memory of the host is held until it has been copied.",
        ]
    else:
        on_this_device = [
            "Eager operations on a CPU are synchronous: the call returns when the result is there, so that print, "
            ".item(), .numpy(), .cpu() and synchronize have nothing to wait for, and a wait after each operation "
            "changes nothing.",
            "Asynchronous on a CPU are collectives with async_op=True (a thread of gloo works on them), DataLoader's "
            "workers, and what a program gives to threads of its own, as in the rows of the queue to one thread.",
            "That thread shares Python's interpreter with the front end, so t1 and t2 of small operations add up where "
            "the formula overlaps them. A queue that nobody waits for keeps all of its batches alive.",
        ]
    return (
        *on_this_device,
        f"The formula t1 + {count}·t2 + t3 assumes a back end that is always busy, so it holds only where "
        f"{count}·t2 > {count - 1}·t1: the front end takes {count}·t1 to hand {count} operations over, and the total "
        "can't be shorter than that. In general it is max(t1 + n·t2, n·t1 + t2) + t3: the slower side counts.",
        "After all_reduce(async_op=True) only work.wait() waits. A tensor that is read earlier may hold numbers that "
        "are not summed yet.",
    )


def queued_and_finished(queues: Sequence[Queue], sizes: Sizes) -> Times:
    """Measures seconds until ten products are handed over, and until they are done: NumPy, then each queue.

    The median pass counts, by the time to finish, after one pass of warm-up.
    """
    array = np.random.default_rng(0).standard_normal((sizes.product, sizes.product), dtype=np.float32)
    ways: dict[str, tuple[Queue, Operation]] = {"NumPy": (EagerQueue(), lambda: np.dot(array, array))}
    ways |= {queue.name: (queue, _product(queue.device, sizes.product)) for queue in queues}
    times: Times = {}
    for name, (queue, operation) in ways.items():
        passes: list[tuple[float, float]] = []
        for _ in range(sizes.repeats + 1):
            queue.wait()
            started = time.perf_counter()
            for _ in range(BOOKS_PRODUCTS):
                queue.queue(operation)
            queued = time.perf_counter() - started
            queue.wait()
            passes.append((time.perf_counter() - started, queued))
        finished, queued = sorted(passes[1:])[sizes.repeats // 2]
        times[name] = (queued, finished)
    return times


def finished_table(times: Times, sizes: Sizes) -> Table:
    """Shows the book's first table."""
    rows = tuple(
        (name, milliseconds(queued), milliseconds(done), queued / done) for name, (queued, done) in times.items()
    )
    title = (
        f"Queued and finished: {BOOKS_PRODUCTS} products of {sizes.product} × {sizes.product} matrices; "
        f"one all_reduce of {sizes.reduced * 4 / MEBIBYTE:g} MiB"
    )
    return Table(title, ("how", "queued (ms)", "finished (ms)", "queued ÷ finished"), rows)


def compare_loops(queues: Sequence[Queue], sizes: Sizes) -> Spans:
    """Measures loops with a wait after each operation, and with one wait at the end."""

    def loop(queue: Queue, operation: Operation, waits_each_time: bool) -> None:
        for _ in range(sizes.loop):
            queue.queue(operation)
            if waits_each_time:
                queue.wait()
        queue.wait()

    times = {}
    for queue in queues:
        for name, operation in _operations(queue, sizes).items():
            loops = {
                "each": functools.partial(loop, queue, operation, True),
                "once": functools.partial(loop, queue, operation, False),
            }
            medians = median_seconds(loops, queue.device, sizes.repeats)
            times[queue.name, name] = (medians["each"], medians["once"])
    return times


def loop_table(loops: Spans, count: int) -> Table:
    """Shows the synchronous and the asynchronous loop side by side."""
    rows = tuple((*key, milliseconds(each), milliseconds(once), each / once) for key, (each, once) in loops.items())
    header = ("how", "operation", "waiting after each (ms)", "waiting once (ms)", "each ÷ once")
    return Table(f"Loops over {count:,} operations, synchronous and asynchronous", header, rows)


def measure_costs(queues: Sequence[HeldQueue], sizes: Sizes) -> dict[tuple[str, str], OperationCosts]:
    """Measures t1, t2 and t3 of each operation in each queue."""
    return {
        (queue.name, name): operation_costs(queue, operation, min(sizes.loop, LAUNCHES), sizes.repeats)
        for queue in queues
        for name, operation in _operations(queue, sizes).items()
    }


def cost_table(costs: Mapping[tuple[str, str], OperationCosts], loops: Spans, count: int) -> Table:
    """Shows t1, t2, t3 and what they say of the loops, beside the loops' times."""
    rows: list[tuple[Cell, ...]] = []
    for key, cost in costs.items():
        each, once = loops[key]
        rows.append(
            (
                *key,
                microseconds(cost.hand_over),
                microseconds(cost.carry_out),
                microseconds(cost.answer),
                "yes" if cost.books_condition(count) else "no",
                milliseconds(cost.waiting_each_time(count)),
                milliseconds(each),
                milliseconds(cost.books_formula(count)),
                milliseconds(cost.waiting_once(count)),
                milliseconds(once),
            )
        )
    header = (
        *("how", "operation", "t1 (µs)", "t2 (µs)", "t3 (µs)", f"{count}·t2 > {count - 1}·t1"),
        *("each: n(t1+t2+t3) (ms)", "measured each (ms)"),
        *("once: t1+n·t2+t3 (ms)", "max(…)+t3 (ms)", "measured once (ms)"),
    )
    return Table(f"Costs of one operation, and what they say of the loops over n = {count:,}", header, tuple(rows))


def _operations(queue: Queue, sizes: Sizes) -> dict[str, Operation]:
    """Returns operations from too small for a queue to large; a device needs larger ones than a core."""
    large = sizes.product if isinstance(queue, StreamQueue) else sizes.small_product
    products: dict[str, Operation] = {f"{size} × {size} product": _product(queue.device, size) for size in (1, large)}
    return products if isinstance(queue, StreamQueue) else {"an empty call": do_nothing, **products}


def _product(device: torch.device, size: int) -> Work:
    """Returns a function that multiplies two size × size matrices on the device."""
    matrix = torch.randn(size, size, generator=torch.Generator().manual_seed(0)).to(device)
    return lambda: torch.mm(matrix, matrix)


def synchronising_calls(device: torch.device, work: Work, count: int) -> Table:
    """Asks of each call on the result of `count` queued operations: did it wait for them? A warm-up goes before each.

    The calls are those that the book asks about, and some that are thought to wait and don't.
    """

    def print_first(x: torch.Tensor) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            print(x[0, 0])

    numpy: dict[str, Call] = (
        {"x.numpy()": lambda x: x.numpy()} if device.type == "cpu" else {"x.cpu().numpy()": lambda x: x.cpu().numpy()}
    )
    calls: dict[str, Call] = {
        "print(x[0, 0])": print_first,
        "x[0, 0].item()": lambda x: x[0, 0].item(),
        **numpy,
        "x.cpu()": lambda x: x.cpu(),
        "if x[0, 0] > 0": lambda x: bool(x[0, 0] > 0),
        "synchronize()": lambda x: synchronise_device(x.device),
        "x.to('cpu', non_blocking=True)": lambda x: x.to("cpu", non_blocking=True),
        "x + 1": lambda x: x + 1,
        "x.shape": lambda x: x.shape,
    }
    rows: list[tuple[Cell, ...]] = []
    for name, call in calls.items():
        call(work())
        synchronise_device(device)
        marks = [time.perf_counter()]
        results = [work() for _ in range(count)]
        marks.append(time.perf_counter())
        call(results[-1])
        marks.append(time.perf_counter())
        synchronise_device(device)
        marks.append(time.perf_counter())
        queued, called, left = (later - earlier for earlier, later in itertools.pairwise(marks))
        spans = (milliseconds(queued), milliseconds(called), milliseconds(left))
        rows.append((name, *spans, did_wait(queued, called, left)))
    header = ("call on the result", "work handed over in (ms)", "the call (ms)", "left to do (ms)", "waits?")
    return Table(f"Which calls synchronise on {device.type}, each after {count} products", header, tuple(rows))


def did_wait(queued: float, called: float, left: float) -> str:
    """Says from three spans, in one unit, whether the call waited: in which span did most of the work's time pass?"""
    if queued > called + left:
        return "nothing to wait for"
    return "yes" if called > left else "no"


def reduce_asynchronously(worker: Worker, numbers: int, repeats: int) -> dict[str, float]:
    """Measures on each rank the seconds until all_reduce(async_op=True) returns, of a read, of work.wait(), and of all.

    The median pass counts, after one pass of warm-up. Raises RuntimeError if a sum is wrong.
    """
    passes: list[tuple[float, float, float, float]] = []
    for _ in range(repeats + 1):
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
        passes.append((marks[-1] - marks[0], queued, read, waited))
    finished, queued, read, waited = sorted(passes[1:])[repeats // 2]
    return {"queued": queued, "read": read, "waited": waited, "finished": finished}


def collective_table(spans: dict[str, float]) -> Table:
    """Shows what each call of an asynchronous collective took, on the slower of two ranks."""
    rows = (
        ("work = all_reduce(x, async_op=True)", milliseconds(spans["queued"]), "no: a thread of gloo works on it"),
        ("x[0].item()", milliseconds(spans["read"]), "no: it may read what is not summed yet"),
        ("work.wait()", milliseconds(spans["waited"]), "yes"),
    )
    return Table("Asynchronous collectives on the CPU: 2 gloo ranks", ("call", "took (ms)", "waits?"), rows)
