"""Stage 5, training loop: exact evaluation over all workers, each counting over its own part of the test set."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from training.batches import even_weights, shard_bounds
from training.distributed import Worker
from training.gradient_sync import LossSum

EVALUATION_BATCH = 512  # examples at once, a bound for activation memory


@dataclass(frozen=True)
class Counts:
    """What one worker counted; counts of all workers are summed, so no example counts twice."""

    loss_sum: float
    hits: int
    samples: int


@torch.inference_mode()
def evaluate(
    model: nn.Module, loss_sum: LossSum, inputs: torch.Tensor, targets: torch.Tensor, worker: Worker
) -> Counts:
    """Loss and hits of this worker's contiguous part of inputs (m, C, …) and targets (m,); the part may be empty.

    The model is in evaluation mode meanwhile, and afterwards in training mode.
    """
    start, stop = shard_bounds(len(inputs), even_weights(worker.world_size), worker.rank)
    losses = torch.zeros((), dtype=torch.float64, device=worker.device)
    hits = torch.zeros((), dtype=torch.int64, device=worker.device)
    model.eval()
    for first in range(start, stop, EVALUATION_BATCH):
        part = slice(first, min(first + EVALUATION_BATCH, stop))
        outputs = model(inputs[part])
        losses += loss_sum(outputs, targets[part])
        hits += (outputs.argmax(dim=1) == targets[part]).sum()
    model.train()
    return Counts(loss_sum=losses.item(), hits=int(hits.item()), samples=stop - start)
