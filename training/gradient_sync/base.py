"""The strategy's interface and a flat buffer.

The contract, step by step. The loop calls `step_starts`; runs forward and backward of `module`, times `factor`, on the
shard's micro-batches, all but the last inside `accumulating()`; calls `synchronise`, after which every `.grad` is, with
the same bits on every rank, the gradient of the mean loss over the global batch (unless the strategy is not `exact`);
asks `agrees_finite`; clips and updates; calls `step_ends`.

A strategy of a user's own is a subclass, named as package.module:callable and called as callable(shard_loss, worker,
options) on every rank. It has at least a `synchronise` that turns each rank's `.grad` into the sum over the ranks,
adds to `bytes_sent` and, if `measures_local` is set, calls `measure_local` before anything is sent. Start from
`scalestudy.training.gradient_sync.explicit.FlatSync`, the shortest that is fast.

Shapes: n elements of all tensors together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn.utils import get_total_norm

from scalestudy.training.distributed import Worker
from scalestudy.training.losses import ShardLoss


@dataclass(frozen=True)
class SyncOptions:
    """What a strategy may want to know of the training beyond model and worker."""

    total_steps: int = 1  # updates of the whole training
    powersgd_rank: int = 2  # of the compressed gradients
    local_steps: int = 8  # between two averages of local_sgd
    seed: int = 0  # of the training


@dataclass(frozen=True)
class StepPlan:
    """One step, as this worker sees it."""

    shard: int  # b_i, this worker's examples; may be 0
    batch: int  # B, those of all workers
    is_last: bool = False  # of the epoch: an evaluation follows
    first: int = 0  # position, in the epoch's permutation, of the first of this worker's examples


class GradientSync:
    """Base of all strategies, and the strategy of a single worker: the local gradient is the sum already."""

    exact: ClassVar[bool] = True  # whether `.grad` is the batch's gradient, but for rounding, and replicas stay equal
    replicated: ClassVar[bool] = True  # whether parameters and optimizer stay equal on all ranks
    needs_rehearsal: ClassVar[bool] = False  # whether a resumed training must run one backward before `load_state`

    def __init__(self, shard_loss: ShardLoss, worker: Worker, options: SyncOptions | None = None) -> None:
        self.module: nn.Module = shard_loss  # call this in place of the ShardLoss
        self.worker = worker
        self.options = options or SyncOptions()
        self.parameters = shard_loss.trained_parameters()
        self.bytes_sent = 0  # by this rank since it was made; an allreduce of n bytes counts as 2 (k - 1) / k · n
        self.measures_local = False  # set by the loop: whether the coming step measures `local_sq_norm`
        self.local_sq_norm: torch.Tensor | None = None  # |g_i|² of this worker's gradient as its loss scaled it

    def factor(self, plan: StepPlan) -> float:
        """What the loss sum of this worker's shard is multiplied by before backward."""
        return 1.0 / plan.batch

    def local_factor(self, plan: StepPlan) -> float:
        """What turns this worker's gradient, as its loss scaled it, into its shard's mean gradient (b_i above 0)."""
        return 1.0 / (plan.shard * self.factor(plan))

    def step_starts(self, plan: StepPlan) -> None:
        """Before the step's first forward."""

    def accumulating(self) -> AbstractContextManager[object]:
        """Around forward and backward of every micro-batch but the step's last."""
        return nullcontext()

    def synchronise(self) -> None:
        """Right after the last backward: make every `.grad` the sum over the workers (nothing if backward did it)."""

    def agrees_finite(self, norm: torch.Tensor) -> bool:
        """Whether all ranks may update; the same answer on every rank. `norm`: L2 norm of this rank's gradients."""
        return bool(norm.isfinite().item())

    def step_ends(self) -> None:
        """The parameters are updated."""

    @property
    def at_rest(self) -> bool:
        """Whether all ranks hold the same parameters now, so that a checkpoint may be taken."""
        return True

    def state(self) -> dict[str, Any]:
        """This rank's part of a checkpoint: tensors, numbers, strings, in dicts and lists."""
        return {}

    def load_state(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Go on from the `state` of all ranks of a checkpoint, by rank; their number may differ from this world's."""

    def details(self) -> dict[str, Any]:
        """What is worth telling at the end, plain data."""
        return {}

    def measure_local(self) -> None:
        """Set `local_sq_norm` from the gradients as they are now, if the step asks for it."""
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        self.local_sq_norm = get_total_norm(gradients).square() if self.measures_local else None

    def count_allreduce(self, bytes_reduced: float) -> None:
        """Add one allreduce to `bytes_sent`, by what a ring of k workers sends: nccl-tests count bandwidth so too."""
        workers = self.worker.world_size
        self.bytes_sent += round(2 * (workers - 1) / workers * bytes_reduced)


def size_in_bytes(tensors: Sequence[torch.Tensor]) -> int:
    """The tensors' elements, in bytes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class FlatBuffer:
    """`memory` (at least n,) and, in it, a view for each tensor of a list, of its shape and order in memory.

    Gradients are copied in and the views bound to `.grad` after the sum: one copy. Rejected: `.grad` that stay views,
    into which backward adds. They have to be zeroed, and added to, in place of backward handing its own tensors over,
    and `zero_grad(set_to_none=True)` would undo them.
    """

    def __init__(self, like: Sequence[torch.Tensor], *, multiple_of: int = 1) -> None:
        """`like`: tensors of one dtype and device; `multiple_of`: `memory`'s length is one, padded with zeros."""
        length = sum(tensor.numel() for tensor in like)
        padded = -(-length // multiple_of) * multiple_of
        self.memory = torch.zeros(padded, dtype=like[0].dtype, device=like[0].device)
        self.views: list[torch.Tensor] = []
        offset = 0
        for tensor in like:
            strides = torch.empty_like(tensor, device="meta").stride()  # dense, channels_last kept
            self.views.append(self.memory.as_strided(tensor.shape, strides, offset))
            offset += tensor.numel()

    def copy_in(self, tensors: Sequence[torch.Tensor | None]) -> None:
        """The tensors' values into the views; zeros for None."""
        pairs = list(zip(self.views, tensors, strict=True))
        for view in (view for view, tensor in pairs if tensor is None):
            view.zero_()
        given = [(view, tensor) for view, tensor in pairs if tensor is not None]
        if given:
            torch._foreach_copy_([view for view, _ in given], [tensor for _, tensor in given])

    def copy_out(self, tensors: Sequence[torch.Tensor]) -> None:
        """The views' values into the tensors."""
        torch._foreach_copy_(list(tensors), self.views)


def by_dtype(tensors: Sequence[torch.Tensor]) -> list[list[int]]:
    """The positions of the tensors, those of one dtype together, in the order in which dtypes first appear."""
    groups: dict[torch.dtype, list[int]] = {}
    for position, tensor in enumerate(tensors):
        groups.setdefault(tensor.dtype, []).append(position)
    return list(groups.values())
