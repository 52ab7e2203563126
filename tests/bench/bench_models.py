"""Models whose training takes a time that is known, or none; the benches name them `tests.bench.bench_models:…`."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

NOTHING = {"train_samples": 2, "test_samples": 1, "image_size": 1}
"""Arguments of `synthetic` for a trial that does nothing."""


def one_number(num_classes: int, in_channels: int) -> nn.Module:
    """One pixel in, the classes out."""
    return nn.Sequential(nn.Flatten(), nn.Linear(in_channels, num_classes))


class Sleeps(nn.Module):
    """Sleeps in every training step, so that any number of workers share any number of cores.

    notes: a folder; each rank writes its process number there (`pid-0`), rank 0 the time of each step (`steps`).
    """

    def __init__(self, num_classes: int, in_channels: int, seconds: float = 0.05, notes: str = "") -> None:
        super().__init__()
        self.body = one_number(num_classes, in_channels)
        self.seconds, self.notes = seconds, Path(notes) if notes else None
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        if self.notes:
            (self.notes / f"pid-{self.rank}").write_text(str(os.getpid()), encoding="utf-8")

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training:
            self._note()
            time.sleep(self.seconds)
        return self.body(inputs)

    def _note(self) -> None:
        if self.notes and self.rank == 0:
            with (self.notes / "steps").open("a", encoding="utf-8") as file:
                print(time.time(), file=file)
