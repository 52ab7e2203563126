"""Stage 5, training loop: strategies on PyTorch's DistributedDataParallel.

Annotations are not postponed here: PyTorch compares those of a communication hook with the types themselves.
"""

from contextlib import AbstractContextManager
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from training.distributed import Worker
from training.gradient_sync.base import GradientSync, StepPlan, SyncOptions, size_in_bytes
from training.shard_loss import ShardLoss


class DistributedDataParallelSync(GradientSync):
    """PyTorch's DistributedDataParallel: buckets of gradients, averaged by allreduce while backward still runs.

    It averages over k workers, hence the factor k. `gradient_as_bucket_view` saves a copy of all gradients. Buffers
    are not broadcast at each forward (a collective a step that only batch normalisation would use): the loop
    broadcasts them before evaluating. Not `static_graph`: a worker whose shard is empty in some steps (ShardLoss)
    has another graph in those. Not `find_unused_parameters`: it walks the graph in every step; a model that leaves
    parameters out gets DistributedDataParallel's own error.

    `local_sq_norm` is measured by hooks that stand, in steps that ask for it alone, between a gradient's accumulation
    and its way into a bucket. Rejected: a communication hook in Python, which can only be there in every step.
    """

    needs_rehearsal = True

    def __init__(self, shard_loss: ShardLoss, worker: Worker, options: SyncOptions | None = None) -> None:
        super().__init__(shard_loss, worker, options)
        self.ddp = DistributedDataParallel(
            shard_loss,
            device_ids=[worker.device] if worker.device.type == "cuda" else None,
            forward_sync_buffers=False,
            gradient_as_bucket_view=True,
            bucket_cap_mb=self._bucket_mebibytes(),
        )
        self.module = self.ddp
        self._norms: dict[int, torch.Tensor] = {}  # by the parameter's position, of the step that is measured
        self._handles: list[RemovableHandle] = []

    def factor(self, plan: StepPlan) -> float:
        """The workers' number is what DistributedDataParallel divides by."""
        return self.worker.world_size / plan.batch

    def step_starts(self, plan: StepPlan) -> None:
        """Put the hooks there if the step is measured."""
        if self.measures_local:
            self._handles = [
                parameter.register_post_accumulate_grad_hook(partial(self._measure, position))
                for position, parameter in enumerate(self.parameters)
            ]

    def accumulating(self) -> AbstractContextManager[object]:
        """Without communication."""
        return self.ddp.no_sync()

    def synchronise(self) -> None:
        """Backward has summed already."""
        self.count_allreduce(self._bytes_reduced())
        self.local_sq_norm = torch.stack(list(self._norms.values())).square().sum() if self._norms else None
        self._norms.clear()
        while self._handles:
            self._handles.pop().remove()

    def _measure(self, position: int, parameter: torch.Tensor) -> None:
        """After each micro-batch; the last one's stays, that of the whole shard."""
        if parameter.grad is not None:
            self._norms[position] = torch.linalg.vector_norm(parameter.grad)

    def _bucket_mebibytes(self) -> int | None:
        """How large a bucket may be; None: PyTorch's choice."""
        return None

    def _bytes_reduced(self) -> float:
        return size_in_bytes(self.parameters)


class Bf16Sync(DistributedDataParallelSync):
    """DistributedDataParallel that sends gradients as bfloat16, by PyTorch's hook: half of float32's bytes.

    Each addend is rounded to 8 bits of mantissa before it is summed, and the sum is in bfloat16 too. The sum's
    gradients are the same on all ranks, and only approximately those of the batch. gloo carries bfloat16 too.
    """

    exact = False

    def __init__(self, shard_loss: ShardLoss, worker: Worker, options: SyncOptions | None = None) -> None:
        super().__init__(shard_loss, worker, options)
        self.ddp.register_comm_hook(None, _compress)

    def _bytes_reduced(self) -> float:
        return sum(parameter.numel() for parameter in self.parameters) * torch.bfloat16.itemsize


def _compress(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """PyTorch's hook by another name: by its own, DistributedDataParallel refuses it wherever there is no NCCL."""
    return bf16_compress_hook(group, bucket)
