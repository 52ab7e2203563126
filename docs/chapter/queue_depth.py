"""How far may the front end run ahead of the back end?

The book's exercise on `wait` after each step, for the step two before, or once: python docs/chapter/queue_depth.py
[--device cpu] [--quick]

Python makes batches and hands them to a back end: a thread on the CPU, a stream on a GPU. Whatever is queued stays in
memory. Waiting too often leaves the back end idle; never waiting keeps every batch alive.
"""

import threading
import time
import weakref
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from lesson import begin, milliseconds, show

LEADS = {"after each batch": 0, "for the batch two before": 2, "once, at the end": None}
MEBIBYTE = 2**20


class Alive:
    """The bytes of the watched tensors that somebody holds, and their peak."""

    def __init__(self) -> None:
        self.lock, self.now, self.peak = threading.Lock(), 0, 0

    def watch(self, tensor: torch.Tensor) -> torch.Tensor:
        """Count the tensor until nobody holds it."""
        self.add(tensor.nbytes)
        weakref.finalize(tensor, self.add, -tensor.nbytes)
        return tensor

    def add(self, size: int) -> None:
        """Any thread may be the one that lets a tensor go."""
        with self.lock:
            self.now += size
            self.peak = max(self.peak, self.now)


def feed_thread(count: int, size: int, lead: int | None) -> tuple[float, int]:
    """Hand `count` batches of (size, size) to a thread; returns seconds, and the batches' peak bytes."""
    alive, weights = Alive(), torch.randn(size, size)
    outstanding: deque[Future[float]] = deque()
    with ThreadPoolExecutor(1) as thread:
        started = time.perf_counter()
        for number in range(count):
            batch = alive.watch(torch.full((size, size), float(number)))
            outstanding.append(thread.submit(lambda batch: torch.mm(batch, weights).sum().item(), batch))
            del batch
            if lead is not None and len(outstanding) > lead:
                outstanding.popleft().result()
        for each in outstanding:
            each.result()
        return time.perf_counter() - started, alive.peak


def feed_stream(count: int, size: int, lead: int | None) -> tuple[float, int]:
    """Do the same with a CUDA stream. The host's pinned memory is held until it has been copied to the device."""
    weights = torch.randn(size, size, device="cuda")
    outstanding: deque[torch.cuda.Event] = deque()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_host_memory_stats()
    before = int(torch.cuda.host_memory_stats().get("active_bytes.current", 0))
    started = time.perf_counter()
    for number in range(count):
        batch = torch.full((size, size), float(number), pin_memory=True).to("cuda", non_blocking=True)
        for _ in range(50):  # so that the device is the slower side
            batch = torch.mm(batch, weights)
        event = torch.cuda.Event()
        event.record()
        outstanding.append(event)
        if lead is not None and len(outstanding) > lead:
            outstanding.popleft().synchronize()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    return seconds, int(torch.cuda.host_memory_stats().get("active_bytes.peak", 0)) - before


def main() -> None:
    """Feed batches with each lead."""
    device, quick = begin(__doc__)
    count, size = (12, 512) if quick else (60, 1024)
    feed = feed_stream if device.type == "cuda" else feed_thread
    feed(2, size, None)  # warms up
    rows = []
    for waiting, lead in LEADS.items():
        seconds, peak = feed(count, size, lead)
        rows.append((waiting, milliseconds(seconds), peak / MEBIBYTE))
    title = f"{count} batches of {size * size * 4 / MEBIBYTE:g} MiB, made while the back end works"
    show(title, ("the front end waits", "time (ms)", "memory of batches, peak (MiB)"), rows)


if __name__ == "__main__":
    main()
