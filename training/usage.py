"""Stage 6, records: what a worker's process takes of its machine while it trains."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from training.memory import peak_memory_bytes


@dataclass(frozen=True)
class Usage:
    """Of a stretch of time: mean cores busy, bytes resident at its end, share of the GPU busy at its end (NaN: no GPU,
    no nvidia-ml-py, which `scalestudy[gpu]` brings, or none that tells)."""

    cpu_cores: float
    resident_bytes: float
    gpu_share: float


class UsageMeter:
    """Measures this process from one question to the next, evaluation and waiting included."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._has_nvml = device.type == "cuda"
        self._since = (time.perf_counter(), time.process_time())

    def since_last(self) -> Usage:
        """Since the last question, or since it was made."""
        (wall, cpu), now = self._since, (time.perf_counter(), time.process_time())
        self._since = now
        seconds = now[0] - wall
        cores = (now[1] - cpu) / seconds if seconds > 0 else math.nan
        return Usage(cores, resident_bytes(), self._gpu_share())

    def _gpu_share(self) -> float:
        """By NVML, over its last sample period (up to a second)."""
        if not self._has_nvml:
            return math.nan
        try:
            return torch.cuda.utilization(self._device) / 100
        except Exception:  # no nvidia-ml-py, no driver; NVML's own errors, as on a part of a GPU, have no other base
            self._has_nvml = False
            return math.nan


def resident_bytes() -> float:
    """Memory that this process holds now; where the system does not tell, the most that it has held."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return peak_memory_bytes(torch.device("cpu"))
    return pages * os.sysconf("SC_PAGE_SIZE")
