"""Stage 5, training loop: `bench async` – the memory of queued batches, by how far the front end may run ahead."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from training.execution.experiment import Cell, Table
from training.execution.measuring import MEBIBYTE, Alive, milliseconds
from training.execution.queues import HeldQueue, StreamQueue


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
    """Time and memory of feeding batches, and the first queue's peaks as metrics."""
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
        """To be called after each batch: waits for the one that is `lead` before it."""
        if self._lead is None:
            return
        self._marks.append(self.queue.mark())
        if len(self._marks) > self._lead:
            self.queue.wait_for(self._marks.popleft())


def _feed(follower: _Follower, batches: Batches) -> tuple[float, int, int | None]:
    """(seconds, peak bytes of the batches in the host's memory, peak bytes on the device or None)."""
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
    """The same through pinned memory and asynchronous copies, counted by PyTorch's own allocators."""
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
