"""Stage 5, training loop: `bench allreduce` – how fast real ranks sum, by the size of the message.

Algorithm and bus bandwidth as in nccl-tests' PERFORMANCE.md: algbw = bytes ÷ seconds; for all_reduce over k ranks
busbw = algbw · 2(k - 1)/k.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from training.distributed import Worker, synchronise_device
from training.execution.experiment import Cell, Table
from training.execution.local_ranks import on_ranks
from training.execution.measuring import milliseconds

WORLD_SIZES = (2, 4)
MESSAGE_BYTES = tuple(4**power for power in range(5, 13))  # 1 KiB … 16 MiB
QUICK_BYTES = (4**5, 4**8)
FLOAT_BYTES = 4
MEGABYTE = 1e6


@dataclass(frozen=True)
class Bandwidth:
    """One message size over so many ranks."""

    backend: str
    world_size: int
    message_bytes: int
    seconds: float  # of one all_reduce, on the slowest rank

    @property
    def algorithm(self) -> float:
        """Bytes a second as the caller sees them."""
        return self.message_bytes / self.seconds

    @property
    def bus(self) -> float:
        """Bytes a second that each rank of a ring sends, 2(k - 1)/k of the algorithm's."""
        return self.algorithm * 2 * (self.world_size - 1) / self.world_size


def measure_bandwidth(device: torch.device, quick: bool) -> list[Bandwidth]:
    """Gloo on the CPU with 2 and (unless `quick`) 4 ranks; with two or more GPUs NCCL as well, on 2, 4, … of them."""
    sizes, repeats = (QUICK_BYTES, 3) if quick else (MESSAGE_BYTES, 15)
    settings = [("gloo", world_size) for world_size in (WORLD_SIZES[:1] if quick else WORLD_SIZES)]
    gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    settings += [("nccl", world_size) for world_size in range(2, gpus + 1, 2)]
    found = []
    for backend, world_size in settings:
        ranks = on_ranks(world_size, time_sums, sizes, repeats, backend=backend)
        found += [
            Bandwidth(backend, world_size, size, max(rank[number] for rank in ranks))
            for number, size in enumerate(sizes)
        ]
    return found


def time_sums(worker: Worker, sizes: Sequence[int], repeats: int) -> list[float]:
    """On each rank: median seconds of an all_reduce for each message size in bytes, after one of warm-up.

    Raises RuntimeError if a sum is wrong.
    """
    return [_time_size(worker, size, repeats) for size in sizes]


def _time_size(worker: Worker, size: int, repeats: int) -> float:
    tensor = torch.empty(size // FLOAT_BYTES, device=worker.device)
    times = []
    for _ in range(repeats + 1):
        tensor.fill_(worker.rank + 1.0)
        synchronise_device(worker.device)
        dist.barrier()
        started = time.perf_counter()
        dist.all_reduce(tensor)
        synchronise_device(worker.device)
        times.append(time.perf_counter() - started)
    expected = worker.world_size * (worker.world_size + 1) / 2
    if not bool((tensor == expected).all()):
        raise RuntimeError(f"all_reduce of 1 … {worker.world_size} gave {tensor.unique().tolist()}, not {expected}")
    return statistics.median(times[1:])


def bandwidth_table(found: Sequence[Bandwidth]) -> Table:
    """A row a message size and number of ranks."""
    rows: list[tuple[Cell, ...]] = [
        (
            *(each.backend, each.world_size, each.message_bytes / 1024, milliseconds(each.seconds)),
            *(each.algorithm / MEGABYTE, each.bus / MEGABYTE),
        )
        for each in found
    ]
    header = ("backend", "ranks", "message (KiB)", "time (ms)", "algorithm bandwidth (MB/s)", "bus bandwidth (MB/s)")
    return Table("all_reduce over real ranks, by the size of the message", header, tuple(rows))


def bandwidth_metrics(found: Sequence[Bandwidth]) -> dict[str, float]:
    """The largest message's, of each backend and number of ranks."""
    last = {(each.backend, each.world_size): each for each in found}
    metrics = {}
    for (backend, world_size), each in last.items():
        metrics[f"{backend}_{world_size}_algorithm_bytes_per_second"] = each.algorithm
        metrics[f"{backend}_{world_size}_bus_bytes_per_second"] = each.bus
    return metrics
