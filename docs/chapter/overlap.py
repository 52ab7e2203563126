"""How much of one operation's time is hidden behind another's?

The book's "Parallel Computation and Communication": python docs/chapter/overlap.py [--device cpu] [--quick]

Three pairs: two devices, computing and copying, computing and communicating. Without a GPU a device is a process with
one thread, a copy is one in memory by a second thread, and communication is an all_reduce between two gloo ranks.
"""

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch
import torch.distributed as dist
from lesson import begin, milliseconds, show
from torch.utils.benchmark import Timer

from scalestudy.training.distributed import Worker, on_ranks

Work = Callable[[], object]
Seconds = list[float]  # of the first thing alone, the second alone, both in turn, both at once


class Sizes(NamedTuple):
    """How much work each side has."""

    matrix: int  # matrices are (matrix, matrix)
    times: int  # products, and copies
    numbers: int  # of one copy, and of the all_reduce
    repeats: int


FULL, CUDA, QUICK = Sizes(512, 20, 2**22, 9), Sizes(4000, 50, 2**22, 9), Sizes(64, 4, 2**16, 3)


def computation(device: torch.device, sizes: Sizes) -> Callable[[], torch.Tensor]:
    """Return a function that multiplies a chain of matrices."""
    torch.manual_seed(0)
    matrix = (torch.randn(sizes.matrix, sizes.matrix) / sizes.matrix**0.5).to(device)

    def compute() -> torch.Tensor:
        result = matrix
        for _ in range(sizes.times):
            result = torch.mm(matrix, result)
        return result

    return compute


def finished(*works: Work) -> Work:
    """Return a function that starts all of them and waits for the GPUs, if there are any."""

    def run() -> None:
        for work in works:
            work()
        for number in range(torch.cuda.device_count()):
            torch.cuda.synchronize(number)

    return run


def measure(first: Work, second: Work, at_once: Work, repeats: int) -> Seconds:
    """Time the four orders in this process."""
    one, other = finished(first), finished(second)
    orders = {"first": one, "second": other, "in turn": lambda: (one(), other()), "at once": finished(at_once)}
    return [Timer("run()", globals={"run": run}).timeit(repeats).median for run in orders.values()]


def copies(device: torch.device, sizes: Sizes) -> Seconds:
    """Compute here, and copy by a second thread; on a GPU from pinned memory on a side stream."""
    compute, source = computation(device, sizes), torch.randn(sizes.numbers)
    target = torch.empty(sizes.numbers, device=device)
    if device.type == "cuda":
        side, pinned = torch.cuda.Stream(), source.pin_memory()

        def copy() -> None:
            with torch.cuda.stream(side):
                for _ in range(sizes.times):
                    target.copy_(pinned, non_blocking=True)

        return measure(compute, copy, lambda: (copy(), compute()), sizes.repeats)

    def copy_here() -> None:
        for _ in range(sizes.times):
            target.copy_(source)

    def at_once() -> None:
        copied = thread.submit(copy_here)
        compute()
        copied.result()

    with ThreadPoolExecutor(1) as thread:
        return measure(compute, copy_here, at_once, sizes.repeats)


def two_gpus(sizes: Sizes) -> Seconds:
    """Compute on two GPUs, or on one and the CPU: what is queued on the first runs while the second is given work."""
    has_two = torch.cuda.device_count() > 1
    first = computation(torch.device("cuda", 0), sizes)
    second = computation(torch.device("cuda", 1), sizes) if has_two else computation(torch.device("cpu"), FULL)
    return measure(first, second, lambda: (first(), second()), sizes.repeats)


def on_each_rank(worker: Worker, sizes: Sizes) -> tuple[Seconds, Seconds, bool]:
    """On two ranks: each computes in turn and at once; computing in turn with an all_reduce, and at once.

    Returns the seconds of both, and whether products and sums are right.
    """
    compute, tensor = computation(worker.device, sizes), torch.ones(sizes.numbers)
    expected, is_right = compute(), True

    def turn(*ranks: int) -> None:
        if worker.rank in ranks:
            compute()
        dist.barrier()

    def reduce() -> None:
        tensor.fill_(1.0)
        dist.all_reduce(tensor)

    def at_once() -> None:
        nonlocal is_right
        tensor.fill_(1.0)
        work = dist.all_reduce(tensor, async_op=True)
        found = compute()
        work.wait()
        is_right &= torch.equal(found, expected) and bool((tensor == worker.world_size).all())

    devices = [lambda: turn(0), lambda: turn(1), lambda: (turn(0), turn(1)), lambda: turn(0, 1)]
    communication = [compute, reduce, lambda: (compute(), reduce()), at_once]
    return median_rounds(devices, sizes.repeats), median_rounds(communication, sizes.repeats), is_right


def median_rounds(works: list[Work], repeats: int) -> Seconds:
    """Take the median over rounds in which all ranks begin each work together; the first round warms up."""
    rounds: list[Seconds] = []
    for _ in range(repeats + 1):
        rounds.append([])
        for work in works:
            dist.barrier()
            started = time.perf_counter()
            work()
            rounds[-1].append(time.perf_counter() - started)
    return [statistics.median(times) for times in zip(*rounds[1:], strict=True)]


def row(what: str, seconds: Seconds) -> tuple[object, ...]:
    """Return a pair's row. Hidden is the share of the shorter thing's time: 1 all of it, below 0 a loss."""
    first, second, in_turn, at_once = seconds
    return (what, *map(milliseconds, seconds), (in_turn - at_once) / min(first, second))


def main() -> None:
    """Measure the three pairs."""
    device, quick = begin(__doc__)
    sizes = QUICK if quick else FULL
    on_device = CUDA if device.type == "cuda" and not quick else sizes
    torch.set_num_threads(1)
    ranks = on_ranks(2, on_each_rank, sizes)
    processes, communication = (
        [max(times) for times in zip(*(rank[part] for rank in ranks), strict=True)] for part in (0, 1)
    )
    devices = row("products in two processes", processes)
    if device.type == "cuda":
        devices = row("products on two GPUs, or on one and the CPU", two_gpus(on_device))
    rows = [
        devices,
        row("products, and copies", copies(device, on_device)),
        row(f"products, and an all_reduce of {sizes.numbers / 2**18:g} MiB over gloo", communication),
    ]
    header = ("two things", "first (ms)", "second (ms)", "in turn (ms)", "at once (ms)", "hidden")
    show("Each alone, one after the other, both at once", header, rows)
    print("products and sums are right" if all(rank[2] for rank in ranks) else "PRODUCTS OR SUMS ARE WRONG")
    print("hidden: (in turn - at once) ÷ the shorter; above 1 something else disturbed the machine: run it again")


if __name__ == "__main__":
    main()
