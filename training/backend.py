"""Which machine a worker is on, which GPU it has, and which backend sums the workers' gradients.

The driver asks too, so this file loads no torch.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU as its driver names it. Neither name depends on CUDA_VISIBLE_DEVICES."""

    uuid: str  # the same in every process that sees it; each MIG slice has another
    pci: str  # the address in its machine, which the slices of one GPU share

    def names(self, machine: str) -> set[str]:
        """Return its names among all machines. NCCL takes two workers for one GPU if they share a name."""
        return {self.uuid, f"{machine} {self.pci}"}


def machine() -> str:
    """Return the name of this machine: the boot id of its kernel, or its host name where that can't be read.

    A host name does not identify a machine: two may be called `localhost`, and each container on one has another name.
    """
    try:
        return BOOT_ID.read_text("ascii").strip() or socket.gethostname()
    except OSError:  # not Linux, or hidden
        return socket.gethostname()


def backend_of(gpus: Sequence[Collection[str]]) -> str:
    """Return `nccl` if every worker has a GPU that no other one has, else `gloo`: NCCL refuses two ranks on one GPU.

    gpus: by rank, all names of the worker's GPU; none for a worker on a CPU. Equal names mean the same GPU.
    """
    return "nccl" if all(gpus) and shared_gpu(gpus) is None else "gloo"


def shared_gpu(gpus: Sequence[Collection[str]]) -> tuple[int, int] | None:
    """Return the first two ranks that have the same GPU; None if there are none. gpus: as for `backend_of`."""
    pairs = itertools.combinations(enumerate(gpus), 2)
    return next(((one, other) for (one, mine), (other, theirs) in pairs if set(mine) & set(theirs)), None)
