"""Stage 5, training loop: the devices of `python -m training`, and the processes that it starts for them itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def has_to_become_many(devices: Sequence[str] | None) -> bool:
    """Whether this process is alone and several devices are asked for."""
    return devices is not None and len(devices) > 1 and os.environ.get("WORLD_SIZE", "1") == "1"


def become_many(workers: int, arguments: Sequence[str]) -> int:
    """Run the same command in so many processes of one torchrun of their own; its exit status."""
    ours = ("MASTER_", "TORCHELASTIC_", "TORCH_NCCL_", "GROUP_", "LOCAL_", "ROLE_")
    names = ("RANK", "WORLD_SIZE")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(ours) and key not in names}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(workers)]
    return subprocess.run([*command, "-m", "training", *arguments], env=environment, check=False).returncode


def choose_device(kind: str, devices: Sequence[str] | None) -> tuple[torch.device, str]:
    """This worker's device and the group's backend: nccl if all devices are GPUs, else gloo.

    `kind` (auto, cpu, cuda) holds for all workers alike; `devices` names one a worker, by rank. Raises ValueError.
    """
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
