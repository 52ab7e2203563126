"""Stage 5, training loop: how the gradients of all workers become one sum (METHODS.md section 1).

The contract. Each worker calls `module(inputs, targets)`, the loss summed over its shard (b_i examples, maybe none),
and runs backward with `loss_factor / B`, B the global batch. After `synchronise` every parameter's `.grad` is, with
the same bits on every rank, the gradient of the mean loss over the global batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from training.distributed import Worker, broadcast_from_first
from training.registry import GRADIENT_SYNCS, resolve

LossSum = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(outputs (N, K), targets (N,)) -> loss summed over the N examples, a scalar."""


def cross_entropy_sum(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Softmax cross-entropy of logits (N, K) and classes (N,), summed over the examples."""
    return F.cross_entropy(outputs, targets, reduction="sum")


LOSS_SUMS: dict[str, LossSum] = {"cross_entropy": cross_entropy_sum}


class ShardLoss(nn.Module):
    """The model with its loss, summed over a shard: the unit that a strategy may wrap.

    An empty shard gives a zero that depends on every parameter, so that its backward makes zero gradients everywhere,
    DistributedDataParallel's hooks included, and the worker takes part in every collective. Rejected: an empty batch
    through the model, which batch normalisation and some users' models refuse.
    """

    def __init__(self, model: nn.Module, loss_sum: LossSum) -> None:
        super().__init__()
        self.model = model
        self.loss_sum = loss_sum

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The scalar loss sum of inputs (N, C, …) and targets (N,); N may be 0."""
        if len(inputs):
            return self.loss_sum(self.model(inputs), targets)
        zeros = [(parameter * 0).sum() for parameter in self.trained_parameters()]
        return torch.stack(zeros).sum()

    def trained_parameters(self) -> list[nn.Parameter]:
        """The parameters that need gradients, in the model's order."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]


class GradientSync(Protocol):
    """A strategy; made anew for each trial."""

    module: nn.Module  # call this in place of the ShardLoss that the strategy was given
    loss_factor: float  # the loss sum is multiplied by loss_factor / B before backward

    def synchronise(self) -> None:
        """Right after backward: make every `.grad` the sum over the workers (nothing if backward did it)."""


class SingleWorkerSync:
    """World size 1: the local gradient is the sum already."""

    loss_factor = 1.0

    def __init__(self, shard_loss: ShardLoss) -> None:
        self.module: nn.Module = shard_loss

    def synchronise(self) -> None:
        """Nothing to do."""


class DistributedDataParallelSync:
    """PyTorch's DistributedDataParallel: buckets of gradients, averaged by allreduce while backward still runs.

    It averages over k workers, hence the factor k. `gradient_as_bucket_view` saves a copy of all gradients. Buffers
    are not broadcast at each forward (a collective a step that only batch normalisation would use): the loop
    broadcasts them before evaluating. Not `static_graph`: a worker whose shard is empty in some steps (ShardLoss)
    has another graph in those. Not `find_unused_parameters`: it walks the graph in every step; a model that leaves
    parameters out gets DistributedDataParallel's own error.
    """

    def __init__(self, shard_loss: ShardLoss, worker: Worker) -> None:
        self.loss_factor = float(worker.world_size)
        self.module: nn.Module = DistributedDataParallel(
            shard_loss,
            device_ids=[worker.device] if worker.device.type == "cuda" else None,
            forward_sync_buffers=False,
            gradient_as_bucket_view=True,
        )

    def synchronise(self) -> None:
        """Nothing to do: backward returns when all buckets are summed."""


class NaiveSync:
    """The book's allreduce, parameter by parameter: gather on rank 0, sum there, send the sum back.

    The sum is copied *into* each rank's gradient; the book's notebook rebinds a list entry instead, and its replicas
    never see the sum. A parameter without a gradient counts as zeros, so that all ranks make the same calls.
    """

    loss_factor = 1.0

    def __init__(self, shard_loss: ShardLoss, worker: Worker) -> None:
        self.module: nn.Module = shard_loss
        self._parameters = shard_loss.trained_parameters()
        self._worker = worker
        broadcast_from_first((*shard_loss.parameters(), *shard_loss.buffers()), worker)

    def synchronise(self) -> None:
        """One gather and one broadcast a parameter."""
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            self._sum_in_place(parameter.grad)

    def _sum_in_place(self, gradient: torch.Tensor) -> None:
        if self._worker.rank == 0:
            shards = [torch.empty_like(gradient) for _ in range(self._worker.world_size)]
            dist.gather(gradient, shards, dst=0)
            gradient.copy_(torch.stack(shards).sum(dim=0))
        else:
            dist.gather(gradient, dst=0)
        dist.broadcast(gradient, src=0)


def make_gradient_sync(name: str, shard_loss: ShardLoss, worker: Worker) -> GradientSync:
    """The strategy of that name for this trial; with one worker there is nothing to synchronise.

    Raises ValueError if the name is unknown.
    """
    strategy = resolve(name, GRADIENT_SYNCS)
    return SingleWorkerSync(shard_loss) if worker.world_size == 1 else strategy(shard_loss, worker)
