"""Stage 5, training loop: exact evaluation over all workers, each counting over its own part of the test set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from training.batches import even_weights, shard_bounds
from training.data.loading import TrainingData
from training.distributed import Worker
from training.losses import NamedMetric
from training.shard_loss import ShardLoss


@dataclass(frozen=True)
class Counts:
    """What one worker counted; counts of all workers are summed, so no example counts twice."""

    loss_sum: float
    metric_sum: float
    samples: int


@torch.inference_mode()
def evaluate(
    shard_loss: ShardLoss,
    metric: NamedMetric,
    data: TrainingData,
    worker: Worker,
    weights: Sequence[float] | None = None,
) -> Counts:
    """Loss and metric, summed over this worker's contiguous part of the test set; the part may be empty.

    `weights`: each worker's share of the test set; None: even. The model is in evaluation mode meanwhile, so that an
    example's outputs do not depend on the others of its batch, and afterwards in training mode.
    """
    start, stop = shard_bounds(data.test_samples, weights or even_weights(worker.world_size), worker.rank)
    losses, values = torch.zeros(2, dtype=torch.float64, device=worker.device)
    shard_loss.model.eval()
    for inputs, targets in data.test_batches(start, stop):
        outputs = shard_loss.predict(inputs)
        losses += shard_loss.loss(outputs, targets).sum(dtype=torch.float64)
        values += metric.function(outputs, targets).sum(dtype=torch.float64)
    shard_loss.model.train()
    return Counts(loss_sum=losses.item(), metric_sum=values.item(), samples=stop - start)
