"""Three ways from an operation to its device: at once, through a thread's queue, through a CUDA stream.

Words of the book's "Asynchronous Computation": the front end (Python) hands operations over; the back end carries them
out. t1 is the time to hand one over, t2 the time to carry it out, t3 the time for the answer to come back.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch

from scalestudy.training.chapter.measuring import MEBIBYTE, Alive, Cell, Table, milliseconds

Operation = Callable[[], object]

HOLDS = (1, 4, 16, 64)  # large products that hold a stream: more are tried until they outlast the front end
BALLAST_SIZE = 8192  # those products are of BALLAST_SIZE × BALLAST_SIZE matrices


def do_nothing() -> None:
    """The least that can be handed over."""


class Queue(Protocol):
    """A back end, as its front end sees it."""

    name: str
    device: torch.device  # where the operations run

    def queue(self, operation: Operation) -> None:
        """Hands an operation over; returns when the front end may go on."""

    def wait(self) -> None:
        """Returns when everything that was handed over has been carried out."""


class HeldQueue(Queue, Protocol):
    """A queue whose back end can be held back, so that its time can be told from the front end's."""

    def hold(self, strength: int) -> Operation:
        """Keeps the back end busy; returns the function that lets it go on."""

    def mark(self) -> Any:
        """Returns a point on the back end's time line, behind what was handed over so far."""

    def seconds_between(self, earlier: Any, later: Any) -> float:
        """Returns the seconds from one mark to another. The back end must have passed both."""

    def has_passed(self, mark: Any) -> bool:
        """Says whether the back end has come to the mark."""

    def wait_for(self, mark: Any) -> None:
        """Returns when the back end has come to the mark; later operations may be outstanding."""


class EagerQueue:
    """No queue: what PyTorch does on a CPU. The operation has finished when the call returns."""

    name = "eager on the CPU"
    device = torch.device("cpu")

    def queue(self, operation: Operation) -> None:
        """Carries the operation out."""
        operation()

    def wait(self) -> None:
        """Returns at once: nothing can be outstanding."""


class ThreadQueue:
    """One thread on the CPU as back end. The book's framework has one built in; PyTorch leaves it to you."""

    name = "a queue to one thread, CPU"
    device = torch.device("cpu")

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._last: Future[Any] = self._pool.submit(do_nothing)
        self._last.result()

    def queue(self, operation: Operation) -> None:
        """Puts the operation into the thread's queue."""
        self._last = self._pool.submit(operation)

    def wait(self) -> None:
        """Waits for the last operation; raises its error."""
        self._last.result()

    def hold(self, strength: int) -> Operation:
        """Makes the thread wait until it is released, whatever the strength."""
        released = threading.Event()
        self.queue(released.wait)
        return released.set

    def mark(self) -> Future[float]:
        """Queues a reading of the clock."""
        future = self._pool.submit(time.perf_counter)
        self._last = future
        return future

    def seconds_between(self, earlier: Future[float], later: Future[float]) -> float:
        """Subtracts the two readings."""
        return later.result() - earlier.result()

    def has_passed(self, mark: Future[float]) -> bool:
        """Says whether the thread has read the clock."""
        return mark.done()

    def wait_for(self, mark: Future[float]) -> None:
        """Waits until the thread has read the clock."""
        mark.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()


class BusyFrontEnd(ThreadQueue):
    """The same thread behind a front end that prepares something for each operation. This makes t1 the larger time."""

    name = "the same behind a busy front end"

    def __init__(self, preparation: Operation) -> None:
        super().__init__()
        self._preparation = preparation

    def queue(self, operation: Operation) -> None:
        """Prepares, then hands over."""
        self._preparation()
        super().queue(operation)


class StreamQueue:
    """The current stream of a CUDA device, where eager PyTorch is asynchronous."""

    def __init__(self, device: torch.device) -> None:
        self.name = f"eager on {device}"
        self.device = device
        self._ballast = torch.zeros(BALLAST_SIZE, BALLAST_SIZE, device=device)

    def queue(self, operation: Operation) -> None:
        """Calls the operation: PyTorch launches its kernels and returns."""
        operation()

    def wait(self) -> None:
        """Synchronises the device."""
        torch.cuda.synchronize(self.device)

    def hold(self, strength: int) -> Operation:
        """Queues large products in front of what follows. They end by themselves, so the release does nothing."""
        for _ in range(strength):
            torch.mm(self._ballast, self._ballast)
        return do_nothing

    def mark(self) -> torch.cuda.Event:
        """Records an event on the stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds_between(self, earlier: torch.cuda.Event, later: torch.cuda.Event) -> float:
        """Returns the seconds by the device's clock."""
        return earlier.elapsed_time(later) / 1000

    def has_passed(self, mark: torch.cuda.Event) -> bool:
        """Says whether the event has occurred."""
        return mark.query()

    def wait_for(self, mark: torch.cuda.Event) -> None:
        """Waits for the event."""
        mark.synchronize()


@dataclass(frozen=True)
class OperationCosts:
    """Seconds of one operation: t1, t2 and t3 of the book's "Improving Computation"."""

    hand_over: float  # t1
    carry_out: float  # t2
    answer: float  # t3

    def waiting_each_time(self, operations: int) -> float:
        """Seconds of n operations when the front end waits after each: n·(t1 + t2 + t3)."""
        return operations * (self.hand_over + self.carry_out + self.answer)

    def books_formula(self, operations: int) -> float:
        """Seconds with one wait at the end, by the book: t1 + n·t2 + t3."""
        return self.hand_over + operations * self.carry_out + self.answer

    def waiting_once(self, operations: int) -> float:
        """Seconds with one wait at the end: max(t1 + n·t2, n·t1 + t2) + t3.

        Each operation passes two stations. The slower station is never idle; the other adds its time once.
        """
        back_end_is_slower = self.hand_over + operations * self.carry_out
        front_end_is_slower = operations * self.hand_over + self.carry_out
        return max(back_end_is_slower, front_end_is_slower) + self.answer

    def books_condition(self, operations: int) -> bool:
        """Says whether n·t2 > (n - 1)·t1. If not, the book's formula ends before the last operation is handed over."""
        return operations * self.carry_out > (operations - 1) * self.hand_over


def operation_costs(queue: HeldQueue, operation: Operation, count: int, repeats: int) -> OperationCosts:
    """Measures t1, t2 and t3 as medians of `repeats` passes over `count` operations.

    For t1 and t2 the operations are handed over while the back end is held. Neither side then waits for the other or
    takes the interpreter from it. t3 is the round trip of a single operation on an idle back end, less t1 and t2.
    """
    passes: list[tuple[float, float]] = []
    for _ in range(repeats):
        for strength in HOLDS:
            queue.wait()
            release = queue.hold(strength)
            first = queue.mark()
            started = time.perf_counter()
            for _ in range(count):
                queue.queue(operation)
            handed_over = time.perf_counter() - started
            was_held = not queue.has_passed(first)
            last = queue.mark()
            release()
            queue.wait()
            if was_held:  # else the hold was too short to hand everything over: take a stronger one
                break
        passes.append((handed_over / count, queue.seconds_between(first, last) / count))
    hand_over, carry_out = (statistics.median(column) for column in zip(*passes, strict=True))
    trips: list[float] = []
    for _ in range(max(count, repeats)):
        started = time.perf_counter()
        queue.queue(operation)
        queue.wait()
        trips.append(time.perf_counter() - started)
    return OperationCosts(hand_over, carry_out, max(statistics.median(trips) - hand_over - carry_out, 0.0))


@dataclass(frozen=True)
class Lead:
    """How many batches the front end may be ahead of the back end when it makes the next."""

    key: str  # in the metrics' names
    waiting: str  # in the table
    batches: int | None  # None: any number


LEADS = (
    Lead("each", "after each batch", 0),
    Lead("two", "for the batch two before", 2),
    Lead("once", "once, at the end", None),
)


@dataclass(frozen=True)
class Batches:
    """What is fed to the back end."""

    count: int
    rows: int
    columns: int  # a batch is (rows, columns) of float32

    @property
    def bytes_each(self) -> int:
        """Bytes of one batch."""
        return self.rows * self.columns * 4


def memory_table(queues: Sequence[HeldQueue], batches: Batches) -> tuple[Table, dict[str, float]]:
    """Measures time and memory of feeding batches; returns the table, and the first queue's peaks as metrics."""
    rows: list[tuple[Cell, ...]] = []
    metrics: dict[str, float] = {}
    for queue in queues:
        feed = _feed_stream if isinstance(queue, StreamQueue) else _feed
        for lead in LEADS:
            seconds, batch_bytes, device_bytes = feed(_Follower(queue, lead.batches), batches)
            in_mib = None if device_bytes is None else device_bytes / MEBIBYTE
            rows.append((queue.name, lead.waiting, milliseconds(seconds), batch_bytes / MEBIBYTE, in_mib))
            metrics.setdefault(f"memory_waiting_{lead.key}_bytes", float(batch_bytes))
    title = f"Memory: {batches.count} batches of {batches.bytes_each / MEBIBYTE:g} MiB, made while the back end works"
    header = ("how", "waiting", "time (ms)", "host memory of batches, peak (MiB)", "device memory, peak (MiB)")
    return Table(title, header, tuple(rows)), metrics


class _Follower:
    """Keeps the front end at most `lead` batches ahead of the back end."""

    def __init__(self, queue: HeldQueue, lead: int | None) -> None:
        self.queue = queue
        self._lead = lead
        self._marks: deque[Any] = deque()

    def handed_over(self) -> None:
        """Waits for the batch that is `lead` before the last one. Call it after each batch."""
        if self._lead is None:
            return
        self._marks.append(self.queue.mark())
        if len(self._marks) > self._lead:
            self.queue.wait_for(self._marks.popleft())


def _feed(follower: _Follower, batches: Batches) -> tuple[float, int, int | None]:
    """Returns (seconds, peak bytes of the batches in the host's memory, peak bytes on the device or None)."""
    queue = follower.queue
    weights = torch.randn(batches.columns, batches.columns)
    alive = Alive()
    started = time.perf_counter()
    for number in range(batches.count):
        batch = alive.watch(torch.full((batches.rows, batches.columns), float(number)))
        queue.queue(lambda batch=batch: torch.mm(batch, weights).sum())  # type: ignore[misc]
        del batch
        follower.handed_over()
    queue.wait()
    return time.perf_counter() - started, alive.peak, None


def _feed_stream(follower: _Follower, batches: Batches) -> tuple[float, int, int]:
    """Feeds a stream through pinned memory and asynchronous copies; PyTorch's allocators count the bytes."""
    queue, device = follower.queue, follower.queue.device
    weights = torch.randn(batches.columns, batches.columns, device=device)
    queue.wait()
    torch.cuda.reset_peak_memory_stats(device)
    torch.cuda.reset_peak_host_memory_stats()
    before, before_host = torch.cuda.memory_allocated(device), _pinned_bytes("current")
    started = time.perf_counter()
    for number in range(batches.count):
        batch = torch.full((batches.rows, batches.columns), float(number), pin_memory=True)
        on_device = batch.to(device, non_blocking=True)
        for _ in range(50):  # so that the device is the slower side
            on_device = torch.mm(on_device, weights)
        follower.handed_over()
    queue.wait()
    seconds = time.perf_counter() - started
    return seconds, _pinned_bytes("peak") - before_host, torch.cuda.max_memory_allocated(device) - before


def _pinned_bytes(kind: str) -> int:
    return int(torch.cuda.host_memory_stats().get(f"active_bytes.{kind}", 0))
