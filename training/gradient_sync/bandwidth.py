"""How fast the ranks of this machine sum, by the size of the message.

Bandwidths as nccl-tests' PERFORMANCE.md defines them: algbw = bytes ÷ seconds; for all_reduce over k ranks busbw =
algbw · 2(k - 1)/k.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from scalestudy.training.distributed import Worker, on_ranks, synchronise_device

WORLD_SIZES = (2, 4)  # of gloo
MESSAGE_BYTES = tuple(4**power for power in range(5, 13))  # 1 KiB … 16 MiB
QUICK_BYTES = (4**5, 4**8)
FLOAT_BYTES = 4


@dataclass(frozen=True)
class Bandwidth:
    """The speed of one all_reduce, by message size and number of ranks."""

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
    """Measure gloo on the CPU with 2 and (unless `quick`) 4 ranks. With two GPUs or more, NCCL on 2, 4, … of them."""
    sizes, repeats = (QUICK_BYTES, 3) if quick else (MESSAGE_BYTES, 15)
    settings = [("gloo", world_size) for world_size in (WORLD_SIZES[:1] if quick else WORLD_SIZES)]
    gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    settings += [("nccl", world_size) for world_size in range(2, gpus + 1, 2)]
    found: list[Bandwidth] = []
    for backend, world_size in settings:
        ranks = on_ranks(world_size, time_sums, sizes, repeats, backend=backend)
        slowest = [max(times) for times in zip(*ranks, strict=True)]
        found += [Bandwidth(backend, world_size, size, seconds) for size, seconds in zip(sizes, slowest, strict=True)]
    return found


def time_sums(worker: Worker, sizes: Sequence[int], repeats: int) -> list[float]:
    """Measure on each rank the median seconds of an all_reduce, for each message size in bytes, after one warm-up.

    Raises RuntimeError if a sum is wrong.
    """
    medians: list[float] = []
    for size in sizes:
        tensor = torch.empty(size // FLOAT_BYTES, device=worker.device)
        times: list[float] = []
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
        medians.append(statistics.median(times[1:]))
    return medians
