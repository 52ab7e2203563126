"""Stage 5, training loop: PowerSGD, gradients sent as products of two thin matrices.

Shapes: a parameter's gradient as a matrix, m × n; P, m × r; Q, n × r; r the rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from training.distributed import Worker
from training.gradient_sync.base import SyncOptions, size_in_bytes
from training.gradient_sync.ddp import DistributedDataParallelSync
from training.shard_loss import ShardLoss

FEWEST_EXACT_STEPS = 2  # PyTorch's own least: DistributedDataParallel orders its buckets anew after the first step
EXACT_SHARE = 10  # one step in so many, from the training's start, is not compressed
EPSILON = 1e-8  # keeps a column of zeros, a dead layer's say, from being divided by its norm


class PowerSGDSync(DistributedDataParallelSync):
    """DistributedDataParallel with PyTorch's PowerSGD hook (Vogels et al. 2019, arXiv 1905.13727).

    The first max(2, 10 %) steps are plain allreduces. Then each gradient matrix is sent as P and Q where that is less
    than half of it; what P·Qᵀ misses is this rank's error, added to its next gradient. That memory, Q and the hook's
    generator go into a checkpoint as plain tensors and numbers. Errors are kept by bucket, and a resumed training has
    the buckets of an uninterrupted one only after a first backward: `needs_rehearsal`. The rehearsal is a plain
    allreduce, because a new state counts from 0, and `load_state` sets the count. At another world size each rank
    takes the mean error, which leaves the mean over ranks, all that the sum ever sees of it, as it was.

    Under gloo there is one bucket: the hook starts the allreduces of P and Q from callbacks, and gloo's threads run
    those of several buckets in an order that differs from rank to rank, which ends the process. So nothing overlaps
    there.

    Raises ValueError for CPU workers beside a GPU, where PyTorch's hook synchronises the CPU as if it were CUDA, and
    for parameters of several number formats under gloo, which would be as many buckets.
    """

    exact = False

    def __init__(self, shard_loss: ShardLoss, worker: Worker, options: SyncOptions | None = None) -> None:
        _check(shard_loss, worker)
        super().__init__(shard_loss, worker, options)
        self.compression = PowerSGDState(
            process_group=None,
            matrix_approximation_rank=self.options.powersgd_rank,
            start_powerSGD_iter=max(FEWEST_EXACT_STEPS, self.options.total_steps // EXACT_SHARE),
            orthogonalization_epsilon=EPSILON,
            random_seed=self.options.seed % 2**32,
        )
        self._elements_before = 0  # sent compressed, up to the last step
        self.ddp.register_comm_hook(self.compression, powerSGD_hook)

    def state(self) -> dict[str, Any]:
        """Counts, error memory by bucket, P and Q, and the hook's generator."""
        own = self.compression
        _, words, position, has_gauss, gauss = own.rng.get_state()
        return {
            "steps": own.iter,
            "elements": [own.total_numel_before_compression, own.total_numel_after_compression],
            "errors": _as_list(own.error_dict),
            "p": _as_list(own.p_memory_dict),
            "q": _as_list(own.q_memory_dict),
            "generator": [
                torch.from_numpy(np.asarray(words, dtype=np.int64)),
                int(position),
                int(has_gauss),
                float(gauss),
            ],
        }

    def load_state(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Go on from every rank's `state`; from a single worker's, which has none, compression starts anew."""
        if not states[0]:
            return
        same_world = len(states) == self.worker.world_size
        mine = states[self.worker.rank] if same_world else states[0]
        errors = mine["errors"] if same_world else [torch.stack(each).mean(0) for each in _by_bucket(states)]
        own = self.compression
        own.iter = mine["steps"]
        own.total_numel_before_compression, own.total_numel_after_compression = mine["elements"]
        self._elements_before = own.total_numel_after_compression
        own.error_dict, own.p_memory_dict, own.q_memory_dict = (
            {bucket: tensor.to(self.worker.device, copy=True) for bucket, tensor in enumerate(tensors)}
            for tensors in (errors, mine["p"], mine["q"])
        )
        words, *rest = mine["generator"]
        own.rng.set_state(("MT19937", words.numpy().astype(np.uint32), *rest))

    def details(self) -> dict[str, Any]:
        """How many steps were compressed, and what remained of their gradients' bytes."""
        before, after = self.compression.total_numel_before_compression, self.compression.total_numel_after_compression
        compressed = max(self.compression.iter - self.compression.start_powerSGD_iter, 0)
        return {"powersgd_compressed_steps": compressed, "powersgd_sent_share": after / before if before else 1.0}

    def _bucket_mebibytes(self) -> int | None:
        return size_in_bytes(self.parameters) // 2**20 + 1 if dist.get_backend() == "gloo" else None

    def _bytes_reduced(self) -> float:
        """P, Q and what is not worth compressing; or the whole gradients, in the first steps."""
        elements = self.compression.total_numel_after_compression
        sent, self._elements_before = elements - self._elements_before, elements
        return sent * self.parameters[0].element_size() if sent else size_in_bytes(self.parameters)


def _check(shard_loss: ShardLoss, worker: Worker) -> None:
    if worker.device.type == "cpu" and torch.cuda.is_available():
        raise ValueError("gradient_sync: powersgd can't run on a CPU while PyTorch sees a GPU; set "
                         "CUDA_VISIBLE_DEVICES to nothing, or choose another strategy")  # fmt: skip
    formats = {str(parameter.dtype) for parameter in shard_loss.trained_parameters()}
    if dist.get_backend() == "gloo" and len(formats) > 1:
        raise ValueError(f"gradient_sync: powersgd under gloo needs parameters of one number format, not of "
                         f"{', '.join(sorted(formats))}; choose another strategy")  # fmt: skip


def _as_list(by_bucket: Mapping[int, torch.Tensor]) -> list[torch.Tensor]:
    return [by_bucket[bucket].clone() for bucket in sorted(by_bucket)]


def _by_bucket(states: Sequence[Mapping[str, Any]]) -> list[list[torch.Tensor]]:
    return [list(errors) for errors in zip(*(state["errors"] for state in states), strict=True)]
