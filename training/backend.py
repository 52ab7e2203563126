"""Which backend sums the gradients of some workers. The driver asks too, so this file loads no torch."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU as its driver names it.

    uuid: the same in every process that sees it; a MIG slice has its own. pci: the address in its machine, which the
    slices of one GPU share. Neither depends on CUDA_VISIBLE_DEVICES.
    """

    uuid: str
    pci: str


def backend_of(gpus: Sequence[Collection[str]]) -> str:
    """`nccl` if every worker has a GPU that no other one has, else `gloo`: NCCL refuses two ranks on one GPU.

    gpus: by rank, all names of the worker's GPU; none for a worker on a CPU. Equal names mean the same GPU.
    """
    shared = any(set(mine) & set(others) for mine, others in itertools.combinations(gpus, 2))
    return "nccl" if all(gpus) and not shared else "gloo"
