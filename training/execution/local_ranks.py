"""Stage 5, training loop: a few ranks on this machine, each a spawned process, for one function."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from training.distributed import Worker, start_process_group, stop_process_group

TIMEOUT_SECONDS = 120.0


def on_ranks(world_size: int, function: Callable[..., Any], *arguments: Any, backend: str = "gloo") -> list[Any]:
    """The values of function(worker, *arguments) on ranks 0 … world_size - 1, which share a process group.

    The function must be importable by name. A rank has one thread; under `nccl` it has the CUDA device of its number,
    else the CPU. Raises what the lowest failing rank raised, BrokenProcessPool if a rank died.
    """
    with (
        tempfile.TemporaryDirectory(prefix="ranks-") as folder,
        ProcessPoolExecutor(world_size, mp_context=get_context("spawn")) as pool,
    ):
        meeting = (world_size, f"file://{Path(folder) / 'store'}", backend)
        futures = [pool.submit(_serve, function, rank, meeting, arguments) for rank in range(world_size)]
        return [future.result() for future in futures]


def _serve(function: Callable[..., Any], rank: int, meeting: tuple[int, str, str], arguments: tuple[Any, ...]) -> Any:
    """One rank's part. Each blocks until all have met, so that a process of the pool never takes two."""
    world_size, store, backend = meeting
    torch.set_num_threads(1)
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    start_process_group(rank, world_size, init_method=store, backend=backend, timeout_seconds=TIMEOUT_SECONDS)
    try:
        return function(Worker(rank, world_size, device), *arguments)
    finally:
        stop_process_group()
