"""Stage 5, training loop: the devices of `python -m training`, and the processes that it starts for them itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


_FROM_TORCHRUN = ("MASTER_", "TORCHELASTIC_", "GROUP_", "LOCAL_", "ROLE_")  # what names of its variables begin with


def has_to_become_many(devices: Sequence[str] | None) -> bool:
    """Whether this process is alone and several devices are asked for."""
    return devices is not None and len(devices) > 1 and os.environ.get("WORLD_SIZE", "1") == "1"


def become_many(workers: int, arguments: Sequence[str]) -> int:
    """Run the same command in so many processes, as torchrun does on one machine; the exit status of what failed."""
    import logging
    import uuid

    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # the workers say what is wrong
    for name in [key for key in os.environ if key.startswith(_FROM_TORCHRUN) or key in ("RANK", "WORLD_SIZE")]:
        del os.environ[name]
    settings = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=workers,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
    )
    try:
        elastic_launch(settings, sys.executable)("-m", "training", *arguments)
    except ChildFailedError as error:
        return max(failure.exitcode if failure.exitcode > 0 else 1 for failure in error.failures.values())
    return 0


def choose_device(kind: str, devices: Sequence[str] | None) -> tuple[torch.device, str]:
    """This worker's device and the group's backend: nccl if all devices are GPUs, else gloo.

    `kind` (auto, cpu, cuda) holds for all workers alike; `devices` names one a worker, by rank. Raises ValueError.
    """
    if devices is not None and kind != "auto":
        raise ValueError(
            f"device: {kind} and devices {','.join(devices)} say the same thing twice; give one of the two"
        )
    if devices is not None:
        return _listed_device(devices)
    import torch

    if kind not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device: {kind!r} is not known; choose auto, cpu or cuda")
    if kind == "cpu" or (kind == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu"), "gloo"
    return _cuda(int(os.environ.get("LOCAL_RANK", "0"))), "nccl"


def _listed_device(devices: Sequence[str]) -> tuple[torch.device, str]:
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if len(devices) != world_size:
        raise ValueError(f"devices: {','.join(devices)} names {len(devices)}, but there are {world_size} workers; name "
                         "one a worker")  # fmt: skip
    chosen = [_parse(name) for name in devices]
    all_cuda = all(device.type == "cuda" for device in chosen)
    distinct = len(set(chosen)) == len(chosen)
    mine = chosen[rank]
    return _cuda(mine.index or 0) if mine.type == "cuda" else mine, "nccl" if all_cuda and distinct else "gloo"


def _parse(name: str) -> torch.device:
    import torch

    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ValueError(f"devices: {name!r} is not a device; write cpu, cuda or cuda:1")
    return torch.device("cpu") if device.type == "cpu" else torch.device("cuda", device.index or 0)


def _cuda(index: int) -> torch.device:
    import torch

    count = torch.cuda.device_count()
    if index >= count:
        raise ValueError(f"device: no CUDA device {index} among {count}; start fewer workers, or choose cpu")
    torch.cuda.set_device(index)
    return torch.device("cuda", index)
