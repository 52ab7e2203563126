"""`bench overlap`: how much of one thing's time is hidden behind another's?

The book's "Parallel Computation and Communication" in three pairs: two devices, computation and copies, computation and
communication. Without a GPU a device is a process with one thread, a copy is one in memory by a second thread, and
communication is an all_reduce between two gloo ranks.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from scalestudy.training.chapter.measuring import (
    MEBIBYTE,
    Cell,
    Experiment,
    Table,
    intra_op_threads,
    median_seconds,
    milliseconds,
    usable_cores,
)
from scalestudy.training.distributed import Worker, on_ranks, synchronise_device

QUESTION = "How much of one operation's time is hidden behind another's?"
ORDERS = ("first", "second", "in turn", "at once")


@dataclass(frozen=True)
class Sizes:
    """How much work each side has."""

    size: int  # matrices are size × size
    products: int  # of the computation
    copied: int  # numbers of one copy
    copies: int
    reduced: int  # numbers of the all_reduce
    repeats: int


FULL = Sizes(512, 20, 4 * MEBIBYTE, 20, 4 * MEBIBYTE, 9)
CUDA = Sizes(4000, 50, 4 * MEBIBYTE, 50, 4 * MEBIBYTE, 9)
QUICK = Sizes(64, 4, MEBIBYTE // 16, 4, MEBIBYTE // 16, 3)


@dataclass(frozen=True)
class Overlap:
    """Seconds of two things: each alone, in turn, and at once."""

    what: str
    word: str  # in the metrics' names
    seconds: dict[str, float]  # ORDERS -> seconds
    moved_bytes: int | None = None  # by the second thing

    @property
    def hidden(self) -> float:
        """The share of the shorter thing's time that is saved when both run at once. 1: all of it; below 0: a loss."""
        saved = self.seconds["in turn"] - self.seconds["at once"]
        return saved / min(self.seconds["first"], self.seconds["second"])


def run(device: torch.device, *, quick: bool = False) -> Experiment:
    """Measures two devices, computation with a copy, and computation with communication; on a CPU some 15 s."""
    sizes = QUICK if quick else FULL
    on_device = sizes if quick or device.type == "cpu" else CUDA
    ranks = on_ranks(2, on_each_rank, sizes)
    seconds = {word: {order: max(rank[word][order] for rank in ranks) for order in ORDERS} for word in ranks[0]}
    if device.type == "cuda":
        devices, copies = two_cuda_devices_or_one_and_cpu(on_device, sizes), copies_by_stream(device, on_device)
    else:
        what = "products in process 0, products in process 1"
        devices, copies = Overlap(what, "two_devices", seconds["two_devices"]), copies_by_thread(sizes)
    what = "products, all_reduce (2 gloo ranks)"
    found = [devices, copies, Overlap(what, "communication", seconds["communication"], sizes.reduced * 4)]
    rows: list[tuple[Cell, ...]] = []
    metrics: dict[str, float] = {}
    for each in found:
        moved = None if each.moved_bytes is None else each.moved_bytes / MEBIBYTE
        rows.append((each.what, *(milliseconds(each.seconds[order]) for order in ORDERS), each.hidden, moved))
        metrics |= {f"{each.word}_{order.replace(' ', '_')}_seconds": each.seconds[order] for order in ORDERS}
    metrics |= {f"{each.word}_hidden_ratio": each.hidden for each in found}
    header = ("first, second", *(f"{order} (ms)" for order in ORDERS), "hidden share", "moved (MiB)")
    table = Table("Two things: each alone, one after the other, both at once", header, tuple(rows))
    if device.type == "cuda":
        on_this_device = (
            "Copies to the device overlap only from pinned memory, with non_blocking=True, on a stream other than the "
            "computation's."
        )
    else:
        on_this_device = (
            "No GPU is used: a `device` here is a process with one thread, and the copy is one of memory to memory by "
            "a second thread, without a copy engine; both compete for cores and for memory bandwidth."
        )
    notes = (
        on_this_device,
        "`hidden share`: (in turn - at once) ÷ the shorter of the two. 1: the shorter one costs nothing; 0: nothing "
        "gained; below 0: they hinder each other; above 1: something else disturbed the machine, run it again.",
        f"all_reduce over gloo is work of this machine's {usable_cores()} cores: two ranks that compute use two of "
        "them, and what gloo's threads copy and add they take from these. Only waiting can be hidden for nothing.",
    )
    return Experiment("overlap", QUESTION, (table,), notes, metrics)


def computation(device: torch.device, sizes: Sizes) -> Callable[[], torch.Tensor]:
    """Returns a function that multiplies a chain of matrices and gives the last product."""
    generator = torch.Generator().manual_seed(0)
    matrix = (torch.randn(sizes.size, sizes.size, generator=generator) / sizes.size**0.5).to(device)

    def compute() -> torch.Tensor:
        result = matrix
        for _ in range(sizes.products):
            result = torch.mm(matrix, result)
        return result

    return compute


def on_each_rank(worker: Worker, sizes: Sizes) -> dict[str, dict[str, float]]:
    """Measures what two ranks can, by the word in the metrics' names."""
    return {"two_devices": compute_by_turns(worker, sizes), "communication": compute_and_reduce(worker, sizes)}


def compute_by_turns(worker: Worker, sizes: Sizes) -> dict[str, float]:
    """Measures on each of two ranks the seconds, barrier to barrier, of rank 0, of rank 1, in turn, and at once."""
    compute = computation(worker.device, sizes)

    def take_turns(*turns: Sequence[int]) -> None:
        for ranks in turns:
            if worker.rank in ranks:
                compute()
            dist.barrier()

    calls: dict[str, Callable[[], object]] = {
        "first": lambda: take_turns([0]),
        "second": lambda: take_turns([1]),
        "in turn": lambda: take_turns([0], [1]),
        "at once": lambda: take_turns([0, 1]),
    }
    return _median_rounds(calls, sizes.repeats)


def compute_and_reduce(worker: Worker, sizes: Sizes) -> dict[str, float]:
    """Measures on each rank the seconds of the products, of an all_reduce, of both in turn, and of both at once.

    Raises RuntimeError if the sum or the products differ when both run at once.
    """
    compute = computation(worker.device, sizes)
    tensor = torch.ones(sizes.reduced)
    expected = compute()

    def reduce() -> None:
        tensor.fill_(1.0)
        dist.all_reduce(tensor)

    def in_turn() -> None:
        compute()
        reduce()

    def at_once() -> None:
        tensor.fill_(1.0)
        work: Any = dist.all_reduce(tensor, async_op=True)
        found = compute()
        work.wait()
        if not (torch.equal(found, expected) and bool((tensor == worker.world_size).all())):
            raise RuntimeError("results differ when computation and communication run at once")

    return _median_rounds({"first": compute, "second": reduce, "in turn": in_turn, "at once": at_once}, sizes.repeats)


def _median_rounds(functions: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Takes medians of rounds as measuring.median_seconds does, but lets all ranks begin each call together."""
    rounds: list[dict[str, float]] = []
    for _ in range(repeats + 1):
        rounds.append({})
        for name, function in functions.items():
            dist.barrier()
            started = time.perf_counter()
            function()
            rounds[-1][name] = time.perf_counter() - started
    return {name: statistics.median(times[name] for times in rounds[1:]) for name in functions}


def two_cuda_devices_or_one_and_cpu(on_device: Sizes, sizes: Sizes) -> Overlap:
    """Measures two CUDA devices, or one and the CPU. At once: operations are queued on both, then waited for."""
    first = torch.device("cuda", 0)
    second = torch.device("cuda", 1) if torch.cuda.device_count() > 1 else torch.device("cpu")
    on_first = computation(first, on_device)
    on_second = computation(second, on_device if second.type == "cuda" else sizes)

    def at_once() -> None:
        on_first()
        on_second()
        synchronise_device(first)
        synchronise_device(second)

    alone = (functools.partial(_finish, on_first, first), functools.partial(_finish, on_second, second))
    seconds = _median_orders(*alone, at_once, first, sizes.repeats)
    return Overlap(f"products on {first}, products on {second}", "two_devices", seconds)


def copies_by_thread(sizes: Sizes) -> Overlap:
    """Measures products in this thread and copies in another, each operation with one thread."""
    compute = computation(torch.device("cpu"), sizes)
    source = torch.randn(sizes.copied, generator=torch.Generator().manual_seed(1))
    target = torch.empty_like(source)

    def copy() -> None:
        for _ in range(sizes.copies):
            target.copy_(source)

    def at_once() -> None:
        copied = pool.submit(copy)
        compute()
        copied.result()

    with intra_op_threads(1), ThreadPoolExecutor(1) as pool:
        seconds = _median_orders(compute, copy, at_once, source.device, sizes.repeats)
    _check_equal(target, source)
    return Overlap("products, copies in memory by a second thread", "copies", seconds, sizes.copies * sizes.copied * 4)


def copies_by_stream(device: torch.device, sizes: Sizes) -> Overlap:
    """Measures products on the current stream and copies from pinned memory on another."""
    streams: Any = torch.get_device_module(device)
    compute = computation(device, sizes)
    source = torch.randn(sizes.copied, generator=torch.Generator().manual_seed(1))
    source = source.pin_memory() if device.type == "cuda" else source
    target = torch.empty(sizes.copied, device=device)
    side = streams.Stream()

    def copy() -> None:
        with streams.stream(side):
            for _ in range(sizes.copies):
                target.copy_(source, non_blocking=True)

    def at_once() -> None:
        copy()
        compute()

    alone = (functools.partial(_finish, compute, device), functools.partial(_finish, copy, device))
    seconds = _median_orders(*alone, at_once, device, sizes.repeats)
    _check_equal(target.cpu(), source)
    what = "products, copies of pinned memory to the device on a side stream"
    return Overlap(what, "copies", seconds, sizes.copies * sizes.copied * 4)


def _finish(work: Callable[[], object], device: torch.device) -> None:
    work()
    synchronise_device(device)


def _median_orders(
    first: Callable[[], object],
    second: Callable[[], object],
    at_once: Callable[[], object],
    device: torch.device,
    repeats: int,
) -> dict[str, float]:
    def in_turn() -> None:
        first()
        second()

    return median_seconds({"first": first, "second": second, "in turn": in_turn, "at once": at_once}, device, repeats)


def _check_equal(found: torch.Tensor, expected: torch.Tensor) -> None:
    if not torch.equal(found, expected):
        raise RuntimeError("the overlapped copy is not what was copied")
