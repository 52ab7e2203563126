"""AdaScale inside the training loop: its gain in each step, its limits, and where it is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from scalestudy.training.config import OptimizerConfig, TrainConfig
from scalestudy.training.data import Splits
from scalestudy.training.data.builtin import linear_truth
from scalestudy.training.distributed import Worker
from scalestudy.training.gradient_sync.explicit import FlatSync
from scalestudy.training.loop.hooks import Hook
from scalestudy.training.loop.learning_rate import gain
from scalestudy.training.loop.noise_scale import AdaScale, NoiseScale, with_required
from scalestudy.training.loop.train import train
from scalestudy.training.loop.trial import Trial
from tests.support.gloo import GlooPool
from tests.support.training.helpers import ALONE, make_config, run_training, same_bits

SCALE = 4.0  # 32 examples a batch, 8 at the base


def adascale(**changes: Any) -> TrainConfig:
    """A training with S = 4 over two epochs of seven whole batches and one of 16."""
    values: dict[str, Any] = {
        "lr_rule": "adascale",
        "base_batch_size": 8,
        "data_args": {"train_samples": 240, "test_samples": 16},
        "epochs": 2,
        "learning_rate": 0.05,
    }
    return make_config(**(values | changes))


@dataclass
class Steps(Hook):
    """What the steps of a training had."""

    gains: list[float]
    rates: list[float]
    progress: float = 0.0

    def step_ends(self, trial: Trial, step: int) -> None:
        self.gains.append(trial.rate.gain)
        self.rates.append(trial.optimizer.param_groups[0]["lr"])
        self.progress = trial.rate.progress


def steps_of(worker: Worker, config: TrainConfig, *hooks: Hook) -> Steps:
    """The steps of a training."""
    steps = Steps([], [])
    result = train(config, worker, hooks=[*hooks, steps])
    assert result.status == "finished"
    assert [record.replica_max_diff for record in result.records] == [0.0] * config.epochs
    assert all(record.grad_trace_cov is not None for record in result.records)
    return steps


def run(ranks: GlooPool, world_size: int, config: TrainConfig) -> list[Steps]:
    """The steps on each rank."""
    return ranks.run(world_size, steps_of, config) if world_size > 1 else [steps_of(ALONE, config)]


@pytest.mark.parametrize(
    ("world_size", "changes"),
    [
        (1, {}),
        (1, {"accumulation": 2, "model_args": {"hidden": [16], "batch_norm": True}}),
        (2, {"optimizer": OptimizerConfig(momentum=0.9)}),
        (2, {"shards": (3.0, 1.0), "gradient_sync": "flat"}),
        (2, {"shards": (1.0, 0.0)}),
        (4, {"gradient_sync": "ring"}),
    ],
)
def test_each_steps_gain_lies_between_one_and_the_scale_on_all_ranks(
    ranks: GlooPool, world_size: int, changes: dict[str, Any]
) -> None:
    all_steps = run(ranks, world_size, adascale(**changes))
    for steps in all_steps:
        assert len(steps.gains) == 16
        assert all(1 <= each <= SCALE for each in steps.gains)
        assert len(set(steps.gains)) > 8  # early averages may lie at an end of the range
        assert steps.gains[6::8] == steps.gains[7::8]  # an epoch's last, smaller batch keeps the gain before it
        assert steps.rates == [0.05 * each for each in steps.gains]
        assert steps.progress == pytest.approx(sum(steps.gains))
        assert steps.gains == all_steps[0].gains  # to the bit


def test_below_the_base_batch_size_the_gain_is_below_one() -> None:
    steps = steps_of(ALONE, adascale(base_batch_size=128))
    assert all(0.25 < each < 1 for each in steps.gains)


class SilentSync(FlatSync):
    """A user's strategy that does not know of local norms."""

    def measure_local(self) -> None:
        pass


class RoundedSync(FlatSync):
    """A user's strategy that only approximates the sum."""

    exact = False


def equal_examples(root: str | None) -> Splits:
    """240 times the same example: gradients without any noise."""
    inputs, targets = torch.ones(240, 1, 28, 28), torch.zeros(240, dtype=torch.int64)
    return Splits(inputs, targets, inputs[:8], targets[:8], num_classes=2)


class AtTheBest(Hook):
    """Puts a linear regression where the true gradient is zero."""

    def train_starts(self, trial: Trial) -> None:
        truth = linear_truth(features=8, noise=1.0)
        linear = next(module for module in trial.model.modules() if isinstance(module, nn.Linear))
        with torch.no_grad():
            linear.weight.copy_(truth.weights)
            linear.bias.fill_(truth.bias)


def linear(**changes: Any) -> TrainConfig:
    """Linear regression at a rate that leaves it where it is."""
    values = {
        "model": "linear_regression",
        "model_args": {},
        "loss": "mse",
        "metric": "mse",
        "learning_rate": 1e-12,
        "data": "synthetic_linear",
        "data_args": {"train_samples": 12_800, "test_samples": 8, "features": 8, "noise": 1.0},
    }
    return adascale(**(values | changes))


def test_without_noise_the_gain_is_one() -> None:
    steps = steps_of(ALONE, adascale(data=f"{__name__}:equal_examples", data_args={}, learning_rate=1e-6))
    assert steps.gains == pytest.approx([1.0] * 16, abs=1e-4)


def test_with_nothing_but_noise_the_gain_is_the_scale() -> None:
    steps = steps_of(ALONE, linear(epochs=1), AtTheBest())
    assert sum(steps.gains[200:]) / 200 == pytest.approx(SCALE, rel=0.05)


def test_the_gain_is_that_of_the_averaged_estimates(ranks: GlooPool) -> None:
    """With S = 4 the averages remember some 250 steps, so that after one epoch of 100 they are nearly its means."""
    for worker_steps in ranks.run(
        2, gain_and_record, linear(epochs=1, data_args={"train_samples": 3200, "test_samples": 8, "features": 8})
    ):
        last, sq_norm, trace_cov = worker_steps
        assert last == pytest.approx(gain(sq_norm, trace_cov, 8, SCALE), rel=0.02)


def gain_and_record(worker: Worker, config: TrainConfig) -> tuple[float, float | None, float | None]:
    """The last step's gain, and what the epoch's record says of the noise."""
    steps = Steps([], [])
    record = train(config, worker, hooks=[steps]).records[-1]
    return steps.gains[-1], record.grad_sq_norm, record.grad_trace_cov


def test_at_the_base_batch_size_adascale_trains_as_no_rule_does() -> None:
    plain = run_training(ALONE, adascale(lr_rule="none", base_batch_size=32))
    scaled = run_training(ALONE, adascale(base_batch_size=32))
    assert same_bits(plain["state"], scaled["state"])


def test_adascale_moves_the_model_further_than_no_rule() -> None:
    plain, scaled = run_training(ALONE, adascale(lr_rule="none")), run_training(ALONE, adascale())
    assert scaled["curve"][-1][0] < plain["curve"][-1][0]


def test_the_hook_is_added_where_the_rule_needs_it() -> None:
    ours, measuring = Hook(), NoiseScale()
    assert with_required(adascale(lr_rule="none"), [ours, measuring]) == (ours, measuring)
    assert with_required(adascale(base_batch_size=32), [measuring]) == (measuring,)
    first, added = with_required(adascale(), [ours, measuring])
    assert first is ours
    assert isinstance(added, AdaScale)
    assert with_required(adascale(), [added, ours]) == (added, ours)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"model_args": {"hidden": [16], "batch_norm": True}}, "halves, which batch normalisation would see; train"),
        ({"batch_size": 1}, "batch_size 1 has none; choose a larger batch"),
    ],
)
def test_what_one_worker_can_not_measure_is_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=f"^lr_rule: adascale .*{text}"):
        train(adascale(**changes), ALONE)


def test_an_approximate_sum_is_refused_on_every_rank(ranks: GlooPool) -> None:
    with pytest.raises(
        RuntimeError,
        match=r"(?s)rank 0:.*which tests.+:RoundedSync only approximates; choose.*rank 1:.*choose",
    ):
        ranks.run(2, steps_of, adascale(gradient_sync="tests.unit.training.loop.test_adascale:RoundedSync"))
    with pytest.raises(ValueError, match="does not go with gradient_sync bf16: adascale needs the exact gradient of"):
        adascale(gradient_sync="bf16")


def test_a_strategy_that_does_not_measure_is_refused_on_every_rank(ranks: GlooPool) -> None:
    config = adascale(gradient_sync="tests.unit.training.loop.test_adascale:SilentSync")
    with pytest.raises(RuntimeError, match=r"(?s)rank 0:.*SilentSync does not measure local_sq_norm.*rank 1:.*choose"):
        ranks.run(2, steps_of, config)
