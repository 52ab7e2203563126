"""Stage 5, training loop: how much memory a trial took."""

from __future__ import annotations

import resource
import sys

import torch


def start_memory_count(device: torch.device) -> None:
    """Let the trial start from a clean allocator: cached blocks freed, the peak forgotten (CUDA only)."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory_bytes(device: torch.device) -> int:
    """CUDA: most bytes allocated since start_memory_count. CPU: the process's largest resident set, ever."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux KiB
