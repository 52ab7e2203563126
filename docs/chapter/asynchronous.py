"""When does an operation begin, and who waits for its end?

The book's "Asynchronous Computation": python docs/chapter/asynchronous.py [--device cpu] [--quick]

Python, the front end, hands operations over; a back end carries them out. On a GPU the back end is a stream. On a CPU
PyTorch has none: an operation has ended when its call returns. What is asynchronous there is a thread of your own, and
a collective.
"""

import contextlib
import io
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from lesson import begin, milliseconds, show
from torch.utils.benchmark import Timer

from scalestudy.training.distributed import Worker, on_ranks

Operation = Callable[[], object]
HELD_CYCLES = 1_000_000_000  # of a GPU's clock, half a second or more


class Eager:
    """PyTorch as it is: a stream on a GPU, no queue on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self.name, self.device = f"eager on {device}", device

    def hand_over(self, operation: Operation) -> None:
        operation()

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def hold(self) -> Operation:
        torch.cuda._sleep(HELD_CYCLES)  # a kernel that only waits, in front of what follows
        return lambda: None

    def mark(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, first: Any, last: Any) -> float:
        return first.elapsed_time(last) / 1e3


class Thread:
    """A back end on the CPU: one thread and the queue to it."""

    name, device = "a queue to one thread", torch.device("cpu")

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(1)
        self.wait()

    def hand_over(self, operation: Operation) -> None:
        self.pool.submit(operation)

    def wait(self) -> None:
        self.mark().result()

    def hold(self) -> Operation:
        released = threading.Event()
        self.hand_over(released.wait)
        return released.set

    def mark(self) -> Future[float]:
        return self.pool.submit(time.perf_counter)

    def seconds(self, first: Future[float], last: Future[float]) -> float:
        return last.result() - first.result()


BackEnd = Eager | Thread


def queued_and_finished(back_end: BackEnd, operation: Operation, repeats: int) -> tuple[float, float, float]:
    """Time ten operations: milliseconds until all are handed over, until all are done, and the quotient. Medians."""
    passes = []
    for _ in range(repeats + 1):
        back_end.wait()
        started = time.perf_counter()
        for _ in range(10):
            back_end.hand_over(operation)
        queued = time.perf_counter() - started
        back_end.wait()
        passes.append((time.perf_counter() - started, queued))
    finished, queued = sorted(passes[1:])[repeats // 2]  # the first pass warms up
    return milliseconds(queued), milliseconds(finished), queued / finished


def loop(back_end: BackEnd, operation: Operation, count: int, waits_each_time: bool) -> None:
    """Hand `count` operations over, with a wait after each or one at the end."""
    for _ in range(count):
        back_end.hand_over(operation)
        if waits_each_time:
            back_end.wait()
    back_end.wait()


def costs(back_end: BackEnd, operation: Operation, count: int) -> tuple[float, float, float]:
    """Measure the book's t1 (hand one over), t2 (carry it out) and t3 (the answer comes back), in seconds.

    The back end is held while operations are handed over, so that neither side waits for the other.
    """
    loop(back_end, operation, 10, True)
    release, first = back_end.hold(), back_end.mark()
    started = time.perf_counter()
    for _ in range(count):
        back_end.hand_over(operation)
    t1 = (time.perf_counter() - started) / count
    last = back_end.mark()
    release()
    back_end.wait()
    t2 = back_end.seconds(first, last) / count
    trips = []
    for _ in range(count):
        started = time.perf_counter()
        loop(back_end, operation, 1, False)
        trips.append(time.perf_counter() - started)
    return t1, t2, max(statistics.median(trips) - t1 - t2, 0.0)


def loops_and_formula(back_end: BackEnd, name: str, operation: Operation, count: int) -> list[list[object]]:
    """Compare both loops with what t1, t2 and t3 say of them: n·(t1 + t2 + t3), and the book's t1 + n·t2 + t3.

    The book's formula holds where the back end is the slower side. In general the slower side counts:
    max(t1 + n·t2, n·t1 + t2) + t3.
    """
    t1, t2, t3 = costs(back_end, operation, min(count, 500))  # a GPU's queue takes some thousand
    names = {"loop": loop, "back_end": back_end, "operation": operation, "count": count}
    each, once = (
        Timer(f"loop(back_end, operation, count, {each_time})", globals=names).timeit(3).median
        for each_time in (True, False)
    )
    general = max(t1 + count * t2, count * t1 + t2) + t3
    rows = [(each, count * (t1 + t2 + t3), "-"), (once, t1 + count * t2 + t3, milliseconds(general))]
    return [
        [name, waiting, milliseconds(measured), milliseconds(book), more]
        for waiting, (measured, book, more) in zip(("after each", "once"), rows, strict=True)
    ]


def print_first(x: torch.Tensor) -> None:
    """Print a number, to nowhere."""
    with contextlib.redirect_stdout(io.StringIO()):
        print(x[0, 0])


CALLS: dict[str, Callable[[torch.Tensor], object]] = {
    "print(x[0, 0])": print_first,
    "x[0, 0].item()": lambda x: x[0, 0].item(),
    "x.cpu().numpy()": lambda x: x.cpu().numpy(),
    "if x[0, 0] > 0": lambda x: bool(x[0, 0] > 0),
    "x.to('cpu', non_blocking=True)": lambda x: x.to("cpu", non_blocking=True),
    "x + 1": lambda x: x + 1,
    "x.shape": lambda x: x.shape,
}


def waits(call: Callable[[torch.Tensor], object], product: Callable[[], torch.Tensor], eager: Eager) -> str:
    """Say whether a call on the last of ten products waits for them: in which span did most of the time pass?"""
    call(product())
    eager.wait()
    started = time.perf_counter()
    result = [product() for _ in range(10)][-1]
    queued = time.perf_counter()
    call(result)
    called = time.perf_counter()
    eager.wait()
    done = time.perf_counter()
    if queued - started > done - queued:
        return "there is nothing to wait for"
    return "yes" if called - queued > done - called else "no"


def reduce(worker: Worker, numbers: int) -> tuple[float, float, bool]:
    """Sum ones over the ranks: milliseconds until the call returns, until the sum is there, and whether it is right."""
    for _ in range(3):  # the last time counts
        tensor = torch.ones(numbers)
        dist.barrier()
        started = time.perf_counter()
        work = dist.all_reduce(tensor, async_op=True)
        queued = time.perf_counter() - started
        work.wait()  # a tensor that is read before may hold numbers that are not summed yet
        finished = time.perf_counter() - started
    return milliseconds(queued), milliseconds(finished), bool((tensor == worker.world_size).all())


def main() -> None:
    """Print the book's comparisons."""
    device, quick = begin(__doc__)
    size, repeats, count = (300, 3, 100) if quick else (1000, 5, 1000)
    array = np.random.default_rng(0).standard_normal((size, size), dtype=np.float32)
    matrix = torch.from_numpy(array)
    on_device, small = matrix.to(device), torch.ones(1, 1, device=device)
    eager, thread = Eager(device), Thread()
    rows: list[list[object]] = [
        ["NumPy", *queued_and_finished(Eager(torch.device("cpu")), lambda: np.dot(array, array), repeats)],
        [eager.name, *queued_and_finished(eager, lambda: torch.mm(on_device, on_device), repeats)],
        [thread.name, *queued_and_finished(thread, lambda: torch.mm(matrix, matrix), repeats)],
    ]
    numbers = 2**14 if quick else 2**22
    ranks = on_ranks(2, reduce, numbers)
    queued, finished, is_right = max(ranks)
    rows.append([f"all_reduce(async_op=True), {numbers / 2**18:g} MiB, 2 ranks", queued, finished, queued / finished])
    header = ("how", "queued (ms)", "finished (ms)", "queued ÷ finished")
    show(f"Ten products of {size} × {size} matrices, and one sum over gloo", header, rows)
    print("the sum is right" if is_right else "THE SUM IS WRONG")

    answers = [(name, waits(call, lambda: torch.mm(on_device, on_device), eager)) for name, call in CALLS.items()]
    show(f"Which calls on a result wait on {device}?", ("call", "waits?"), answers)

    back_end = eager if device.type == "cuda" else thread
    rows = loops_and_formula(back_end, "1 × 1 product", lambda: torch.mm(small, small), count)
    rows += loops_and_formula(back_end, "an empty call", lambda: None, count) if back_end is thread else []
    header = (
        "operation",
        "waiting",
        "measured (ms)",
        "by the book's formula (ms)",
        "max(t1 + n·t2, n·t1 + t2) + t3 (ms)",
    )
    show(f"{back_end.name}: loops over n = {count} operations", header, rows)


if __name__ == "__main__":
    main()
