"""What a training picks by itself: the memory order and the shards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from scalestudy.training.config import TrainConfig
from scalestudy.training.distributed import Worker
from scalestudy.training.loop.probe import known_order
from scalestudy.training.loop.train import train
from tests.support.gloo import GlooPool
from tests.support.training.helpers import largest_difference, make_config, run_training
from tests.unit.training.loop.clock import Clock

HERE = "tests.unit.training.loop.test_probe"
CLOCK = Clock()  # of this process: a rank has its own


class PrefersNet(nn.Sequential):
    """Slow in one memory order."""

    def __init__(self, num_classes: int, in_channels: int, slow_order: str) -> None:
        super().__init__(nn.Flatten(), nn.Linear(784 * in_channels, num_classes))
        self.slow_order = slow_order

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        is_last = inputs.stride()[1] == 1
        if is_last == (self.slow_order == "channels_last"):
            CLOCK.now += 0.01
        return super().forward(inputs.contiguous())


@pytest.mark.parametrize(("slow", "picked"), [("channels_last", False), ("contiguous", True)])
def test_auto_picks_the_faster_memory_order_on_all_ranks(ranks: GlooPool, slow: str, picked: bool) -> None:
    config = make_config(
        model=f"{HERE}:PrefersNet",
        model_args={"slow_order": slow},
        data_args={"train_samples": 64, "test_samples": 16, "channels": 3},
        channels_last="auto",
    )
    assert ranks.run(2, details, config) == [{"channels_last": picked}] * 2


@pytest.mark.parametrize(
    ("precision", "on_gpus", "has_images", "known"),
    [
        ("bf16", True, True, True),
        ("tf32", True, True, True),
        ("fp32", True, True, None),
        ("bf16", True, False, False),
        ("fp32", True, False, False),
        ("bf16", False, True, None),
        ("fp32", False, False, None),
    ],
)
def test_where_the_memory_order_is_known_without_a_test(
    precision: str, on_gpus: bool, has_images: bool, known: bool | None
) -> None:
    assert known_order(precision, on_gpus=on_gpus, has_images=has_images) is known


def details(worker: Worker, config: TrainConfig) -> dict[str, Any]:
    """What the training says of itself, whose probe goes by `CLOCK`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scalestudy.training.loop.probe.time", CLOCK)
        return dict(train(config, worker).details)


def test_a_probe_leaves_no_trace(ranks: GlooPool) -> None:
    """Dropout draws random numbers in the probe; the training that follows does not see it."""
    dropout = make_config(model_args={"hidden": [16], "dropout": 0.5})
    (plain,) = ranks.run(1, run_training, dropout)
    (probed,) = ranks.run(
        1, run_training, make_config(model_args={"hidden": [16], "dropout": 0.5}, channels_last="auto")
    )
    assert largest_difference(plain["first_state"], probed["first_state"]) == 0
    assert largest_difference(plain["state"], probed["state"]) < 1e-6


class SlowSecond(nn.Sequential):
    """Rank 1 needs so many times longer an example."""

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(784 * in_channels, num_classes))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training:
            CLOCK.now += len(inputs) * (3e-4 if torch.distributed.get_rank() == 1 else 1e-4)
        return super().forward(inputs)


def test_speeds_become_shards(ranks: GlooPool) -> None:
    """A worker of a third of the speed gets a quarter of the batch."""
    config = make_config(model=f"{HERE}:SlowSecond", model_args={}, batch_size=64, shards="speed")
    assert ranks.run(2, details, config) == [{"shards": [0.75, 0.25]}] * 2
