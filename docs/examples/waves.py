"""An iterable data set of your own: windows of noisy waves, and the value that follows each.

Name it in a spec as `model: waves:build`, `data: waves:load`, `loss: mse`, `metric: mse`, `metric_mode: min`, with
`train: {steps: 300}` and this file in the folder where you call `scalestudy`; see docs/tasks.md.
"""

import random
from collections.abc import Iterator

import torch
from torch import nn

from scalestudy.training.data import Splits

WINDOW = 16


class Waves(torch.utils.data.IterableDataset):
    """Draws by the global generators, which are seeded before each pass: every pass has other waves."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for _ in range(self.count):
            times = random.uniform(0, 6) + random.uniform(0.1, 0.5) * torch.arange(WINDOW + 1)
            wave = torch.sin(times) + 0.05 * torch.randn(WINDOW + 1)
            yield wave[:WINDOW], wave[WINDOW]


def load(root: str, windows: int = 2000, tests: int = 300) -> Splits:
    """A stream to train on, and one to test with. A single number is predicted, so K is 1."""
    return Splits.from_datasets(Waves(windows), Waves(tests), num_classes=1)


def build(num_classes: int, in_channels: int, width: int = 32) -> nn.Module:
    """Windows (N, 16) -> the next values (N, 1)."""
    return nn.Sequential(nn.Linear(in_channels, width), nn.Tanh(), nn.Linear(width, num_classes))
