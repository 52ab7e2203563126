"""Gradients that PyTorch's DistributedDataParallel sums while backward runs: plain, as bfloat16, or by PowerSGD.

This file does not postpone annotations: PyTorch compares a communication hook's annotations with the types themselves.

Shapes: a parameter's gradient as a matrix, m × n; P, m × r; Q, n × r; r the rank.
"""

import inspect
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from scalestudy.training.distributed import Worker, replicate
from scalestudy.training.exceptions import InputError
from scalestudy.training.gradient_sync.base import GradientSync, StepPlan, SyncOptions, size_in_bytes
from scalestudy.training.task import ShardLoss

FEWEST_EXACT_STEPS = 2  # of PowerSGD, which PyTorch asks for: buckets are reordered after the first step
EXACT_SHARE = 10  # the first 1 / EXACT_SHARE of the training is not compressed
_SYNC = ("forward_sync_buffers", "broadcast_buffers")  # since PyTorch 2.13, and before, which a GPU machine may have
NO_FORWARD_SYNC: Mapping[str, Any] = {
    next(name for name in _SYNC if name in inspect.signature(DistributedDataParallel).parameters): False
}
EPSILON = 1e-8  # against a division by zero, the norm of a column of zeros (a dead layer)


class DistributedDataParallelSync(GradientSync):
    """PyTorch's DistributedDataParallel: buckets of gradients, averaged by allreduce while backward still runs.

    It averages over k workers, hence the factor k. `gradient_as_bucket_view` saves a copy of all gradients. Buffers are
    not broadcast at each forward, a collective that only batch normalisation would use: the loop broadcasts them before
    an evaluation. `static_graph` is off, since a worker with an empty shard (ShardLoss) has another graph in that step.
    `find_unused_parameters` is off, since it walks the graph in every step. For a parameter that a model leaves out
    DistributedDataParallel raises its own error.

    Hooks between a gradient's accumulation and its bucket measure `local_sq_norm`. They exist only in steps that are
    measured. Rejected: a communication hook in Python, which would run in every step.
    """

    needs_rehearsal = True

    def __init__(self, shard_loss: ShardLoss, worker: Worker, options: SyncOptions | None = None) -> None:
        super().__init__(shard_loss, worker, options)
        replicate(shard_loss, worker)
        self.ddp = DistributedDataParallel(
            shard_loss,
            device_ids=[worker.device] if worker.device.type == "cuda" else None,
            init_sync=False,  # it would send buffers whose form differs by rank
            **NO_FORWARD_SYNC,
            gradient_as_bucket_view=True,
            bucket_cap_mb=self._bucket_mebibytes(),
        )
        self.module = self.ddp
        self._norms: dict[int, torch.Tensor] = {}  # by the parameter's position, in a step that is measured
        self._handles: list[RemovableHandle] = []

    def factor(self, plan: StepPlan) -> float:
        """Multiply by the world size, by which DistributedDataParallel divides."""
        return self.worker.world_size / plan.batch

    def step_starts(self, plan: StepPlan) -> None:
        """Register the hooks if the step is measured."""
        if self.measures_local:
            self._handles = [
                parameter.register_post_accumulate_grad_hook(partial(self._measure, position))
                for position, parameter in enumerate(self.parameters)
            ]

    def accumulating(self) -> AbstractContextManager[object]:
        """Leave the communication out of backward."""
        return self.ddp.no_sync()

    def synchronise(self) -> None:
        """Count what backward has sent; it has summed already."""
        self.count_allreduce(self._bytes_reduced())
        self.local_sq_norm = torch.stack(list(self._norms.values())).square().sum() if self._norms else None
        self._norms.clear()
        while self._handles:
            self._handles.pop().remove()

    def _measure(self, position: int, parameter: torch.Tensor) -> None:
        """Keep a gradient's norm after each micro-batch. The last value stays: it is the whole shard's."""
        if parameter.grad is not None:
            self._norms[position] = torch.linalg.vector_norm(parameter.grad)

    def _bucket_mebibytes(self) -> int | None:
        """Return the largest bucket; None: PyTorch's choice."""
        return None

    def _bytes_reduced(self) -> float:
        return size_in_bytes(self.parameters)


class Bf16Sync(DistributedDataParallelSync):
    """DistributedDataParallel that sends gradients as bfloat16, by PyTorch's hook: half of float32's bytes.

    Each addend is rounded to 8 bits of mantissa before the sum, and the sum is in bfloat16 too. The gradients are equal
    on all ranks, and approximately the batch's. gloo carries bfloat16 too.
    """

    exact = False

    def __init__(self, shard_loss: ShardLoss, worker: Worker, options: SyncOptions | None = None) -> None:
        super().__init__(shard_loss, worker, options)
        self.ddp.register_comm_hook(None, _compress)

    def _bytes_reduced(self) -> float:
        return sum(parameter.numel() for parameter in self.parameters) * torch.bfloat16.itemsize


def _compress(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Call PyTorch's hook under another name. Under its own, DistributedDataParallel refuses it without NCCL."""
    return bf16_compress_hook(group, bucket)


class PowerSGDSync(DistributedDataParallelSync):
    """DistributedDataParallel with PyTorch's PowerSGD hook (Vogels et al. 2019, arXiv 1905.13727).

    The first max(2, 10 %) steps are plain allreduces. Then each gradient matrix is sent as P and Q if they are less
    than half of its size. What P·Qᵀ misses is this rank's error, added to its next gradient. Errors, Q and the hook's
    generator go into a checkpoint as plain tensors and numbers. Errors are kept by bucket, and a resumed training has
    the buckets of an uninterrupted one only after a first backward: `needs_rehearsal`. The rehearsal is a plain
    allreduce, because a new state counts from 0; `load_state` then sets the count. At another world size each rank
    takes the mean error. This keeps the mean over ranks, which is all that the sum sees.

    Under gloo there is one bucket, and nothing overlaps. The hook starts the allreduces of P and Q from callbacks. With
    several buckets, gloo's threads would run them in another order on each rank, which ends the process.

    Raises ValueError for CPU workers beside a GPU, where PyTorch's hook synchronises the CPU as if it were CUDA. Raises
    it for parameters of several number formats under gloo, since each format needs a separate bucket.
    """

    exact = False

    def __init__(self, shard_loss: ShardLoss, worker: Worker, options: SyncOptions | None = None) -> None:
        if worker.device.type == "cpu" and torch.cuda.is_available():
            raise InputError(
                "gradient_sync: powersgd can't run on a CPU while PyTorch sees a GPU",
                "set CUDA_VISIBLE_DEVICES to nothing, or choose another strategy",
            )
        formats = {str(parameter.dtype) for parameter in shard_loss.trained_parameters()}
        if dist.get_backend() == "gloo" and len(formats) > 1:
            raise InputError(
                "gradient_sync: powersgd under gloo needs parameters of one number format, not of "
                f"{', '.join(sorted(formats))}",
                "choose another strategy",
            )
        super().__init__(shard_loss, worker, options)
        self.compression = PowerSGDState(
            process_group=None,
            matrix_approximation_rank=self.options.powersgd_rank,
            start_powerSGD_iter=max(FEWEST_EXACT_STEPS, self.options.total_steps // EXACT_SHARE),
            orthogonalization_epsilon=EPSILON,
            random_seed=self.options.seed % 2**32,
        )
        self._elements_before = 0  # sent compressed, before this step
        self.ddp.register_comm_hook(self.compression, powerSGD_hook)

    def state(self) -> dict[str, Any]:
        """Return counts, errors by bucket, P and Q, and the hook's generator."""
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
        """Resume from every rank's `state`. A single worker's is empty: compression then starts anew."""
        if not states[0]:
            return
        same_world = len(states) == self.worker.world_size
        mine = states[self.worker.rank] if same_world else states[0]
        if same_world:
            errors = mine["errors"]
        else:
            by_bucket = zip(*(state["errors"] for state in states), strict=True)
            errors = [torch.stack(of_ranks).mean(0) for of_ranks in by_bucket]
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
        """Return the number of compressed steps, and the share of their gradients' bytes that was sent."""
        before, after = self.compression.total_numel_before_compression, self.compression.total_numel_after_compression
        compressed = max(self.compression.iter - self.compression.start_powerSGD_iter, 0)
        return {"powersgd_compressed_steps": compressed, "powersgd_sent_share": after / before if before else 1.0}

    def _bucket_mebibytes(self) -> int | None:
        return size_in_bytes(self.parameters) // 2**20 + 1 if dist.get_backend() == "gloo" else None

    def _bytes_reduced(self) -> float:
        """Count P, Q and what is not worth compressing; in the first steps the whole gradients."""
        elements = self.compression.total_numel_after_compression
        sent, self._elements_before = elements - self._elements_before, elements
        return sent * self.parameters[0].element_size() if sent else size_in_bytes(self.parameters)


def _as_list(by_bucket: Mapping[int, torch.Tensor]) -> list[torch.Tensor]:
    return [by_bucket[bucket].clone() for bucket in sorted(by_bucket)]
