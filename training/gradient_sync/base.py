"""What a gradient strategy is to the training loop, and the flat buffer that several strategies send.

In each step the loop
1. calls `step_starts`;
2. runs forward and backward of `module`, times `factor`, on the shard's micro-batches, all but the last inside
   `accumulating()`;
3. calls `synchronise`, then `divide_by_weight`. Now every `.grad` is the gradient of the mean loss over the global
   batch, with the same bits on every rank (if the strategy is `exact`);
4. calls `check_finite`, clips and updates, unless that found something;
5. calls `step_ends`.

A user's strategy is a subclass, named as package.module:callable and called as callable(shard_loss, worker, options) on
every rank. Its `synchronise` turns each rank's `.grad` into the sum over the ranks and adds to `bytes_sent`. If
`measures_local` is set, it calls `measure_local` before it sends anything. No method reads a tensor in every step: on a
GPU that waits for the device. Start from
`scalestudy.training.gradient_sync.explicit.FlatSync`, the shortest that is fast.

Shapes: n elements of all tensors together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn.utils import get_total_norm

from scalestudy.training.config import LOCAL_STEPS, POWERSGD_RANK
from scalestudy.training.distributed import Worker
from scalestudy.training.exceptions import InputError
from scalestudy.training.task import ShardLoss, wrong_weight


@dataclass(frozen=True)
class SyncOptions:
    """What a strategy may need to know beyond model and worker."""

    total_steps: int = 1  # updates of the whole training
    powersgd_rank: int = POWERSGD_RANK  # rank of the compressed gradients
    local_steps: int = LOCAL_STEPS  # between two averages of local_sgd
    seed: int = 0  # of the training


@dataclass(frozen=True)
class StepPlan:
    """One step, as this worker sees it."""

    shard: int  # b_i, this worker's examples; may be 0
    batch: int  # B, all workers' examples
    is_last: bool = False  # an evaluation follows
    first: int = 0  # position, in the epoch's permutation, of the first of this worker's examples


class GradientSync:
    """Base of all strategies, and the strategy of a single worker, whose gradient is the sum already."""

    exact: ClassVar[bool] = True  # whether `.grad` is the batch's gradient, up to rounding, and replicas stay equal
    replicated: ClassVar[bool] = True  # whether parameters and optimizer stay equal on all ranks
    needs_rehearsal: ClassVar[bool] = False  # whether a resumed training must run one backward before `load_state`

    def __init__(self, shard_loss: ShardLoss, worker: Worker, options: SyncOptions | None = None) -> None:
        self.module: nn.Module = shard_loss  # call this in place of the ShardLoss
        self.worker = worker
        self.options = options or SyncOptions()
        self.parameters = shard_loss.summed_parameters()
        self.weight = shard_loss.weight  # its gradient divides the others; None: `factor` has divided already
        self.told: torch.Tensor | None = None  # the weights' sum, up to the step that is not finite
        self._one = torch.ones((), dtype=torch.float32, device=worker.device)
        self.bytes_sent = 0  # by this rank in all; an allreduce of n bytes counts as 2 (k - 1) / k · n
        self.measures_local = False  # set by a hook: whether the next step measures `local_sq_norm`
        self.local_sq_norm: torch.Tensor | None = None  # |g_i|² of this worker's gradient as its loss scaled it

    def factor(self, plan: StepPlan) -> float:
        """Return the factor of this worker's loss sum before backward: each example weighs 1/B (batches.py)."""
        return 1.0 / plan.batch

    def local_factor(self, plan: StepPlan) -> float:
        """Return the factor from this worker's gradient, as its loss scaled it, to its shard's mean (b_i above 0)."""
        return 1.0 / (plan.shard * self.factor(plan))

    def step_starts(self, plan: StepPlan) -> None:
        """Prepare a step. The loop calls it before the first forward."""

    def accumulating(self) -> AbstractContextManager[object]:
        """Return the context of forward and backward of every micro-batch except the step's last."""
        return nullcontext()

    def synchronise(self) -> None:
        """Make every `.grad` the sum over the workers, if backward did not. Called after the last backward."""

    def divide_by_weight(self) -> None:
        """Turn gradients of a sum of losses into gradients of the mean, for a task whose weights no plan knows.

        Called after `synchronise`; does not wait for the device. Gradients become NaN where the weights of the batch
        sum to 0 or less, or where one is not finite.
        """
        if self.weight is not None and self.weight.grad is not None:
            weight, not_finite = self.weight.grad
            self._divide(weight.where((weight > 0) & (not_finite == 0), torch.nan))

    def _divide(self, weight: torch.Tensor) -> None:
        gradients = [each.grad for each in self.parameters if each.grad is not None and each is not self.weight]
        torch._foreach_div_(gradients, weight)

    def check_finite(self, found: torch.Tensor) -> None:
        """Set `found` to 1 if an element of a gradient is not finite. It is 0 before, or 1 from an earlier step.

        A float32 scalar on the device, which is not waited for. It is equal on all ranks whenever the strategy is
        `at_rest`, since NaN on one rank is NaN in every sum.
        """
        if self.weight is not None and self.weight.grad is not None:
            self.told = self._told_until(found, self.weight.grad)
        self._find(found)

    def _find(self, found: torch.Tensor) -> None:
        gradients = [each.grad for each in self.parameters if each.grad is not None]
        real = [torch.view_as_real(each) if each.is_complex() else each for each in gradients]
        if rounded := [each for each in real if each.dtype is torch.bfloat16]:  # PyTorch's check has no such kernel
            largest = torch.stack(torch._foreach_norm(rounded, math.inf)).float()
            torch._amp_foreach_non_finite_check_and_unscale_([largest], found, self._one)
            real = [each for each in real if each.dtype is not torch.bfloat16]
        torch._amp_foreach_non_finite_check_and_unscale_(real, found, self._one)

    def _told_until(self, found: torch.Tensor, told: torch.Tensor) -> torch.Tensor:
        return told.clone() if self.told is None else torch.where(found > 0, self.told, told)

    def wrong_weight(self) -> InputError | None:
        """Return what is wrong with the weights of the step that was not finite; None: it is not the weights."""
        return None if self.told is None else wrong_weight(self.told)

    def step_ends(self) -> None:
        """End a step. The loop calls it after the update."""

    @property
    def at_rest(self) -> bool:
        """Whether all ranks hold equal parameters now, so that a checkpoint may be taken."""
        return True

    def state(self) -> dict[str, Any]:
        """Return this rank's part of a checkpoint: tensors, numbers and strings in dicts and lists."""
        return {}

    def load_state(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Resume from the `state` of all ranks of a checkpoint, by rank; the world size may be another one."""

    def details(self) -> dict[str, Any]:
        """Return plain data for the trial's details, at its end."""
        return {}

    def measure_local(self) -> None:
        """Set `local_sq_norm` from the gradients as they are now, if the step is measured."""
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        self.local_sq_norm = get_total_norm(gradients).square() if self.measures_local else None

    def count_allreduce(self, bytes_reduced: float) -> None:
        """Add one allreduce to `bytes_sent`: what a ring of k workers sends, as nccl-tests count too."""
        workers = self.worker.world_size
        self.bytes_sent += round(2 * (workers - 1) / workers * bytes_reduced)


def size_in_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the size of the tensors' elements, in bytes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class FlatBuffer:
    """`memory` (at least n,) and in it a view for each tensor of a list, with its shape and memory order.

    Gradients are copied in, and after the sum the views become `.grad`: one copy. Rejected: `.grad` that stay views, to
    which backward adds. They must be zeroed and added to, where backward would hand over its own tensors, and
    `zero_grad(set_to_none=True)` would undo them.
    """

    def __init__(self, like: Sequence[torch.Tensor], *, multiple_of: int = 1) -> None:
        """Make it for tensors `like` these, of one dtype and device. Zeros pad it to a multiple of `multiple_of`."""
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
        """Copy the tensors into the views; None gives zeros."""
        pairs = list(zip(self.views, tensors, strict=True))
        for view in (view for view, tensor in pairs if tensor is None):
            view.zero_()
        given = [(view, tensor) for view, tensor in pairs if tensor is not None]
        if given:
            torch._foreach_copy_([view for view, _ in given], [tensor for _, tensor in given])

    def copy_out(self, tensors: Sequence[torch.Tensor]) -> None:
        """Copy the views into the tensors."""
        torch._foreach_copy_(list(tensors), self.views)


def by_dtype(tensors: Sequence[torch.Tensor]) -> list[list[int]]:
    """Return the tensors' positions, grouped by dtype, in the order in which dtypes first appear."""
    groups: dict[torch.dtype, list[int]] = {}
    for position, tensor in enumerate(tensors):
        groups.setdefault(tensor.dtype, []).append(position)
    return list(groups.values())
