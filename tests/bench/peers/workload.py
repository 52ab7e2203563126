"""What every way trains: LeNet, the digits, and which worker gets which examples when.

It is given to all, with nothing left to gain: the data lie in memory as tensors, and the initial parameters, the order
of examples and the shards are those of scalestudy. So it is not among the lines that a user writes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from scalestudy.training.batches import batch_bounds, even_weights, shard_bounds, steps_per_epoch
from scalestudy.training.data.builtin import load_digits
from scalestudy.training.data.splits import Splits
from scalestudy.training.models import LeNet
from scalestudy.training.seeding import epoch_order, seed_parameters

NOTES, STEP_SECONDS = "PEERS_NOTES", "PEERS_STEP_SECONDS"
"""Set by the bench where it kills workers: the folder of notes, and how long each training step sleeps."""


def digits() -> Splits:
    """1,437 + 360 images (n, 1, 28, 28)."""
    return load_digits(None)


def lenet(seed: int) -> nn.Module:
    """The model with the parameters of the seed."""
    seed_parameters(seed)
    return NotedLeNet(10, 1) if NOTES in os.environ else LeNet(10, 1)


def batches(data: Splits, batch_size: int, seed: int, epoch: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """This rank's part of every batch of an epoch (from 1); batch_size is that of all workers together."""
    rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    samples = len(data.train_inputs)
    order = epoch_order(samples, seed, epoch)
    for step in range(steps_per_epoch(samples, batch_size)):
        begin, end = batch_bounds(samples, batch_size, step)
        first, last = shard_bounds(end - begin, even_weights(size), rank)
        chosen = order[begin + first : begin + last]
        yield data.train_inputs[chosen], data.train_targets[chosen]


class NotedLeNet(LeNet):
    """Sleeps in every training step, and notes it: a file a seed and rank, a line (time, process) a step."""

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__(num_classes, in_channels)
        rank = dist.get_rank() if dist.is_initialized() else 0
        self.file = Path(os.environ[NOTES]) / f"{torch.initial_seed()}-{rank}"
        self.seconds = float(os.environ[STEP_SECONDS])

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training:
            with self.file.open("a", encoding="utf-8") as file:
                print(time.time(), os.getpid(), file=file)
            time.sleep(self.seconds)
        return super().forward(inputs)
