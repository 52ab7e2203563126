"""Models that break in a chosen step, on a chosen rank; trials name them as `tests.support.faulty_models:…`."""

import time

import torch
from torch import nn

from tests.support.user_models import linear, rank


class BreaksInStep(nn.Module):
    """Raises in the forward of one step (from 1) of its training, on one rank: an exception or out of memory."""

    def __init__(self, num_classes: int, in_channels: int, step: int, on_rank: int = 1, memory: bool = False) -> None:
        super().__init__()
        self.body = linear(num_classes, in_channels)
        self.step, self.on_rank, self.memory = step, on_rank, memory
        self.made = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.made += self.training
        if rank() == self.on_rank and self.made == self.step:
            raise (
                torch.OutOfMemoryError("no memory for this layer") if self.memory else ArithmeticError("it can't go on")
            )
        return self.body(inputs)


class EatsMemory(nn.Module):
    """Takes so much memory, bit by bit, in the second step of its training, on one rank, and keeps it."""

    def __init__(self, num_classes: int, in_channels: int, megabytes: int, on_rank: int = 1) -> None:
        super().__init__()
        self.body = linear(num_classes, in_channels)
        self.megabytes, self.on_rank = megabytes, on_rank
        self.made = 0
        self.eaten: list[torch.Tensor] = []

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.made += self.training
        if rank() == self.on_rank and self.made == 2 and not self.eaten:
            for _ in range(self.megabytes // 64):
                self.eaten.append(torch.ones(64 * 2**20, dtype=torch.uint8))
                time.sleep(0.02)
        return self.body(inputs)
