"""Stage 5, training loop: `bench async` – the memory of batches that are queued, with and without waiting for each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from training.execution.experiment import Cell, Table
from training.execution.measuring import MEBIBYTE, Alive, milliseconds
from training.execution.queues import Queue, StreamQueue


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


def memory_table(queues: Sequence[Queue], device: torch.device, batches: Batches) -> tuple[Table, dict[str, float]]:
    """Time and memory of feeding batches, and the first queue's peaks as metrics."""
    rows: list[tuple[Cell, ...]] = []
    metrics: dict[str, float] = {}
    for queue in queues:
        for each in (True, False):
            seconds, batch_bytes, device_bytes = _feed(queue, device, batches, each)
            waiting = "after each batch" if each else "once, at the end"
            in_mib = None if device_bytes is None else device_bytes / MEBIBYTE
            rows.append((queue.name, waiting, milliseconds(seconds), batch_bytes / MEBIBYTE, in_mib))
            metrics.setdefault(f"memory_waiting_{'each' if each else 'once'}_bytes", float(batch_bytes))
    title = f"Memory: {batches.count} batches of {batches.bytes_each / MEBIBYTE:g} MiB, made while the back end works"
    header = ("how", "waiting", "time (ms)", "host memory of batches, peak (MiB)", "device memory, peak (MiB)")
    return Table(title, header, tuple(rows)), metrics


def _feed(queue: Queue, device: torch.device, batches: Batches, each: bool) -> tuple[float, int, int | None]:
    """(seconds, peak bytes of the batches in the host's memory, peak bytes on the device or None)."""
    if isinstance(queue, StreamQueue):
        return _feed_stream(queue, device, batches, each)
    weights = torch.randn(batches.columns, batches.columns)
    alive = Alive()
    started = time.perf_counter()
    for number in range(batches.count):
        batch = alive.watch(torch.full((batches.rows, batches.columns), float(number)))
        queue.queue(lambda batch=batch: torch.mm(batch, weights).sum())  # type: ignore[misc]
        del batch
        if each:
            queue.wait()
    queue.wait()
    return time.perf_counter() - started, alive.peak, None


def _feed_stream(queue: Queue, device: torch.device, batches: Batches, each: bool) -> tuple[float, int, int]:
    """The same through pinned memory and asynchronous copies, counted by PyTorch's own allocators."""
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
        if each:
            queue.wait()
    queue.wait()
    seconds = time.perf_counter() - started
    return seconds, _pinned_bytes("peak") - before_host, torch.cuda.max_memory_allocated(device) - before


def _pinned_bytes(kind: str) -> int:
    return int(torch.cuda.host_memory_stats().get(f"active_bytes.{kind}", 0))
