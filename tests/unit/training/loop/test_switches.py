"""Speed switches: precision, memory order, accumulation; and what a training picks by itself. Compiling: tests/long."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import nn

from scalestudy.training.batches import micro_batch_sizes
from scalestudy.training.config import TrainConfig
from scalestudy.training.device import has_bfloat16, make_precision
from scalestudy.training.distributed import Worker
from scalestudy.training.loop.hooks import Hook
from scalestudy.training.loop.train import train
from scalestudy.training.loop.trial import Trial, start_trial
from tests.support.gloo import GlooPool
from tests.support.training.helpers import ALONE, largest_difference, make_config, run_training

HERE = "tests.unit.training.loop.test_switches"


BFLOAT16_EPSILON = 2**-8  # of its 8 significant bits


class Seen(Hook):
    """What a model's layers meet in the first step."""

    def __init__(self) -> None:
        self.micro_batches: list[tuple[int, ...]] = []
        self.calls: list[tuple[int, int]] = []

    def backward_ends(self, trial: Trial, step: int, micro_batch: int) -> None:
        self.calls.append((step, micro_batch))

    def step_ends(self, trial: Trial, step: int) -> None:
        self.micro_batches.append(trial.micro_batches)


def lenet(**changes: Any) -> TrainConfig:
    """Eight steps of LeNet."""
    return make_config(model="lenet", model_args={}, learning_rate=0.1, **changes)


@pytest.mark.skipif(not has_bfloat16(torch.device("cpu")), reason="this CPU has no bfloat16")
def test_bf16_computes_in_bfloat16_and_updates_in_float32() -> None:
    """One step's gradients are those of float32 to some of bfloat16's epsilons, and are not equal to them."""
    exact, rounded = (run_training(ALONE, lenet(batch_size=256, precision=name)) for name in ("fp32", "bf16"))
    moved = largest_difference(exact["first_state"], exact["state"])
    apart = largest_difference(exact["state"], rounded["state"])
    assert 0 < apart < 16 * BFLOAT16_EPSILON * moved
    assert {array.dtype.name for array in rounded["state"].values()} == {"float32"}


def test_bf16_is_refused_where_the_device_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer of an old CPU, which is all that can't be had here."""
    monkeypatch.setattr("scalestudy.training.device.has_bfloat16", lambda device: False)
    with pytest.raises(ValueError, match=r"precision: bf16 is not there on this device \(cpu\); choose fp32"):
        train(lenet(precision="bf16"), ALONE)
    with make_precision("fp32", ALONE.device)():
        assert not torch.is_autocast_enabled("cpu")


class LayoutNet(nn.Module):
    """Counts the images that come channels-last."""

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(in_channels, 4, 3)
        self.output = nn.Linear(4, num_classes)
        self.channels_last = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.channels_last += inputs.is_contiguous(memory_format=torch.channels_last)
        return self.output(self.convolution(inputs).mean(dim=(2, 3)))


@pytest.mark.parametrize("channels_last", [False, True])
def test_channels_last_reaches_images_and_weights(channels_last: bool) -> None:
    data = {"train_samples": 256, "test_samples": 64, "channels": 3}
    config = make_config(
        model=f"{HERE}:LayoutNet",
        model_args={},
        data_args=data,
        channels_last=channels_last,
    )
    result = train(config, ALONE)
    assert isinstance(result.model, LayoutNet)
    assert (result.model.channels_last > 8) is channels_last  # 8 steps and an evaluation
    assert result.model.convolution.weight.is_contiguous(memory_format=torch.channels_last) is channels_last
    assert "channels_last" not in result.details, "it was told, not picked"


def test_channels_last_trains_the_same_but_for_rounding() -> None:
    plain, last = (run_training(ALONE, lenet(channels_last=choice)) for choice in (False, True))
    assert largest_difference(plain["state"], last["state"]) < 1e-5
    assert largest_difference(plain["first_state"], last["first_state"]) == 0


class PrefersNet(nn.Sequential):
    """Slow in one memory order."""

    def __init__(self, num_classes: int, in_channels: int, slow_order: str) -> None:
        super().__init__(nn.Flatten(), nn.Linear(784 * in_channels, num_classes))
        self.slow_order = slow_order

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        is_last = inputs.stride()[1] == 1
        if is_last == (self.slow_order == "channels_last"):
            time.sleep(0.01)
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


def details(worker: Worker, config: TrainConfig) -> dict[str, Any]:
    """What the training says of itself."""
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
            time.sleep(len(inputs) * (3e-4 if torch.distributed.get_rank() == 1 else 1e-4))
        return super().forward(inputs)


def test_speeds_become_shards(ranks: GlooPool) -> None:
    """A worker of a third of the speed gets about a quarter of the batch."""
    config = make_config(model=f"{HERE}:SlowSecond", model_args={}, batch_size=64, shards="speed")
    (first, second) = ranks.run(2, details, config)
    assert first == second
    assert first["shards"] == pytest.approx([0.75, 0.25], abs=0.08)


@pytest.mark.parametrize(
    ("shard", "parts", "keep_empty", "sizes"),
    [
        (10, 3, False, (4, 3, 3)),
        (2, 3, False, (1, 1)),
        (0, 3, False, (0,)),
        (0, 3, True, (0, 0, 0)),
        (2, 3, True, (1, 1, 0)),
        (5, 1, False, (5,)),
    ],
)
def test_micro_batches(shard: int, parts: int, keep_empty: bool, sizes: tuple[int, ...]) -> None:
    assert micro_batch_sizes(shard, parts, keep_empty=keep_empty) == sizes


def test_accumulation_makes_micro_batches_and_the_same_update() -> None:
    seen = Seen()
    config = lenet(batch_size=100, accumulation=3, data_args={"train_samples": 202, "test_samples": 16})
    train(config, ALONE, hooks=[seen])
    assert seen.micro_batches == [(34, 33, 33), (34, 33, 33), (1, 1)]
    assert seen.calls == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1)]
    whole = run_training(ALONE, lenet(batch_size=100, data_args={"train_samples": 202, "test_samples": 16}))
    parts = run_training(ALONE, config)
    assert largest_difference(whole["state"], parts["state"]) < 1e-6
    assert whole["curve"][0][0] == pytest.approx(parts["curve"][0][0], rel=1e-6)


def test_the_rate_of_each_update_is_the_plans() -> None:
    """Linear from 0.1 at 64 to 0.2 at 128, over the first epoch of four steps; then half a cosine over four."""

    class Rates(Hook):
        def __init__(self) -> None:
            self.rates: list[float] = []

        def step_ends(self, trial: Trial, step: int) -> None:
            self.rates.append(trial.optimizer.param_groups[0]["lr"])

    rates = Rates()
    config = make_config(
        batch_size=64,
        learning_rate=0.1,
        lr_rule="linear",
        base_batch_size=32,
        warmup_epochs=1.0,
        schedule="cosine",
        epochs=2,
    )
    result = train(config, ALONE, hooks=[rates])
    rising = [0.1 + 0.1 * step / 4 for step in range(4)]
    falling = [0.2, 0.2 * (2 + 2**0.5) / 4, 0.1, 0.2 * (2 - 2**0.5) / 4]
    assert rates.rates == pytest.approx([*rising, *falling])
    assert [record.learning_rate for record in result.records] == pytest.approx([rising[-1], falling[-1]])


def test_the_record_tells_bytes_and_noise(ranks: GlooPool) -> None:
    from scalestudy.training.loop.noise_scale import NoiseScale

    trial = start_trial(make_config(), ALONE)
    size = sum(parameter.numel() for parameter in trial.parameters) * 4
    (record, _) = ranks.run(2, record_with_noise, make_config())
    alone = train(make_config(), ALONE, hooks=[NoiseScale()]).records[0]
    assert record["sync_bytes"] == 8 * size  # 2 · (2 - 1) / 2 · n a step
    assert alone.sync_bytes == 0
    assert record["grad_trace_cov"] > 0
    assert alone.grad_trace_cov is not None


def record_with_noise(worker: Worker, config: TrainConfig) -> dict[str, Any]:
    """The first epoch's record with the noise scale measured."""
    from scalestudy.training.loop.noise_scale import NoiseScale

    return train(config, worker, hooks=[NoiseScale()]).records[0].to_dict()
