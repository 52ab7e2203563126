"""Stage 5, training loop: `bench overlap` – two things at once: two devices, computation and copies, communication.

The book's "Parallel Computation and Communication". On a machine without GPUs a device is a process with one thread, a
copy is one from memory to memory by a second thread, and communication is an all_reduce between two gloo ranks.
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

QUESTION = "How much of one thing's time is hidden behind another's?"
ORDERS = ("first", "second", "in turn", "at once")


@dataclass(frozen=True)
class Sizes:
    """How much there is to do on one side and on the other."""

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
    """Seconds of two things, alone, in turn and at once."""

    what: str
    word: str  # in the metrics' names
    seconds: dict[str, float]  # ORDERS -> seconds
    moved_bytes: int | None = None  # by the second thing

    @property
    def hidden(self) -> float:
        """Which share of the shorter thing's time is gone when both run at once: 1 all of it, below 0 a loss."""
        saved = self.seconds["in turn"] - self.seconds["at once"]
        return saved / min(self.seconds["first"], self.seconds["second"])


def run(device: torch.device, *, quick: bool = False) -> Experiment:
    """Two devices, computation with a copy, computation with communication; on a CPU some 15 s."""
    sizes = QUICK if quick else FULL
    on_device = sizes if quick or device.type == "cpu" else CUDA
    ranks = on_ranks(2, on_each_rank, sizes)
    seconds = {word: {order: max(rank[word][order] for rank in ranks) for order in ORDERS} for word in ranks[0]}
    found = [
        two_cuda_devices_or_one_and_cpu(on_device, sizes) if device.type == "cuda" else two_processes(seconds),
        copies_by_stream(device, on_device) if device.type == "cuda" else copies_by_thread(sizes),
        communication(seconds, sizes),
    ]
    rows = tuple(_row(each) for each in found)
    header = ("first, second", *(f"{order} (ms)" for order in ORDERS), "hidden share", "moved (MiB)")
    metrics = {
        f"{each.word}_{order.replace(' ', '_')}_seconds": each.seconds[order] for each in found for order in ORDERS
    }
    metrics |= {f"{each.word}_hidden_ratio": each.hidden for each in found}
    tables = (Table("Two things: each alone, one after the other, both at once", header, rows),)
    return Experiment("overlap", QUESTION, tables, _notes(device), metrics)


def _row(found: Overlap) -> tuple[Cell, ...]:
    first, second, in_turn, at_once = (milliseconds(found.seconds[order]) for order in ORDERS)
    moved = None if found.moved_bytes is None else found.moved_bytes / MEBIBYTE
    return (found.what, first, second, in_turn, at_once, found.hidden, moved)


def _notes(device: torch.device) -> tuple[str, ...]:
    shared = (
        "`hidden share`: (in turn - at once) ÷ the shorter of the two. 1: the shorter one costs nothing; 0: nothing "
        "gained; below 0: they hinder each other; above 1: something else disturbed the machine, run it again.",
        f"all_reduce over gloo is work of this machine's {usable_cores()} cores: two ranks that compute use two of "
        "them, and what gloo's threads copy and add they take from these. Only waiting can be hidden for nothing.",
    )
    if device.type == "cuda":
        return (
            "Copies to the device overlap only from pinned memory, with non_blocking=True, on a stream other than the "
            "computation's.",
            *shared,
        )
    return (
        "No GPU is used: a `device` here is a process with one thread, and the copy is one of memory to memory by a "
        "second thread, without a copy engine; both compete for cores and for memory bandwidth.",
        *shared,
    )


def computation(device: torch.device, sizes: Sizes) -> Callable[[], torch.Tensor]:
    """A chain of matrix products; gives the last."""
    generator = torch.Generator().manual_seed(0)
    matrix = (torch.randn(sizes.size, sizes.size, generator=generator) / sizes.size**0.5).to(device)

    def compute() -> torch.Tensor:
        result = matrix
        for _ in range(sizes.products):
            result = torch.mm(matrix, result)
        return result

    return compute


def on_each_rank(worker: Worker, sizes: Sizes) -> dict[str, dict[str, float]]:
    """What two ranks measure, by the word in the metrics' names."""
    return {"two_devices": compute_by_turns(worker, sizes), "communication": compute_and_reduce(worker, sizes)}


def two_processes(seconds: dict[str, dict[str, float]]) -> Overlap:
    """Two CPU processes of one thread."""
    return Overlap("products in process 0, products in process 1", "two_devices", seconds["two_devices"])


def compute_by_turns(worker: Worker, sizes: Sizes) -> dict[str, float]:
    """On each of two ranks: seconds, barrier to barrier, of rank 0 alone, of rank 1 alone, in turn, and at once."""
    compute = computation(worker.device, sizes)
    steps: dict[str, Sequence[Sequence[int]]] = {
        "first": [[0]],
        "second": [[1]],
        "in turn": [[0], [1]],
        "at once": [[0, 1]],
    }
    calls: dict[str, Callable[[], object]] = {
        order: functools.partial(_take_turns, worker, compute, turns) for order, turns in steps.items()
    }
    return _median_rounds(calls, sizes.repeats)


def _take_turns(worker: Worker, compute: Callable[[], object], turns: Sequence[Sequence[int]]) -> None:
    for ranks in turns:
        if worker.rank in ranks:
            compute()
        dist.barrier()


def two_cuda_devices_or_one_and_cpu(on_device: Sizes, sizes: Sizes) -> Overlap:
    """Two CUDA devices where there are two, else one and the CPU; operations are queued on both, then waited for."""
    first = torch.device("cuda", 0)
    second = torch.device("cuda", 1) if torch.cuda.device_count() > 1 else torch.device("cpu")
    works = (computation(first, on_device), computation(second, on_device if second.type == "cuda" else sizes))
    seconds = _median_orders(functools.partial(_finish, works[0], first), functools.partial(_finish, works[1], second),
                             functools.partial(_both, works, (first, second)), first, sizes.repeats)  # fmt: skip
    return Overlap(f"products on {first}, products on {second}", "two_devices", seconds)


def _both(works: Sequence[Callable[[], object]], devices: Sequence[torch.device]) -> None:
    for work in works:
        work()
    for device in devices:
        synchronise_device(device)


def _finish(work: Callable[[], object], device: torch.device) -> None:
    work()
    synchronise_device(device)


def copies_by_thread(sizes: Sizes) -> Overlap:
    """Products in this thread, copies in another, each operation with one thread."""
    compute = computation(torch.device("cpu"), sizes)
    source = torch.randn(sizes.copied, generator=torch.Generator().manual_seed(1))
    target = torch.empty_like(source)

    def copy() -> None:
        for _ in range(sizes.copies):
            target.copy_(source)

    def both() -> None:
        copied = pool.submit(copy)
        compute()
        copied.result()

    with intra_op_threads(1), ThreadPoolExecutor(1) as pool:
        seconds = _median_orders(compute, copy, both, source.device, sizes.repeats)
    _check_equal(target, source)
    return Overlap("products, copies in memory by a second thread", "copies", seconds, sizes.copies * sizes.copied * 4)


def copies_by_stream(device: torch.device, sizes: Sizes) -> Overlap:
    """Products on the current stream, copies from pinned memory on another."""
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

    def both() -> None:
        copy()
        compute()

    alone = [functools.partial(_finish, work, device) for work in (compute, copy)]
    seconds = _median_orders(alone[0], alone[1], both, device, sizes.repeats)
    _check_equal(target.cpu(), source)
    return Overlap("products, copies of pinned memory to the device on a side stream", "copies", seconds,
                   sizes.copies * sizes.copied * 4)  # fmt: skip


def _check_equal(found: torch.Tensor, expected: torch.Tensor) -> None:
    if not torch.equal(found, expected):
        raise RuntimeError("the overlapped copy is not what was copied")


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


def communication(seconds: dict[str, dict[str, float]], sizes: Sizes) -> Overlap:
    """Products and an all_reduce on two gloo ranks."""
    what = "products, all_reduce (2 gloo ranks)"
    return Overlap(what, "communication", seconds["communication"], sizes.reduced * 4)


def compute_and_reduce(worker: Worker, sizes: Sizes) -> dict[str, float]:
    """On each rank: seconds of the products, of an all_reduce, of both in turn, and of the products meanwhile.

    Raises RuntimeError if the sum or the products come out otherwise when both run at once.
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
    """Medians of rounds, as measuring.median_seconds takes them, with all ranks beginning each call together."""
    rounds: list[dict[str, float]] = []
    for _ in range(repeats + 1):
        rounds.append({})
        for name, function in functions.items():
            dist.barrier()
            started = time.perf_counter()
            function()
            rounds[-1][name] = time.perf_counter() - started
    return {name: statistics.median(times[name] for times in rounds[1:]) for name in functions}
