"""The gradient noise scale: exact small cases, a linear problem whose gradients are known, what the hook measures."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from torch import nn

from tests.support.gloo import GlooPool
from tests.training.helpers import ALONE, make_config
from training.batches import shard_bounds
from training.config import TrainConfig
from training.data.loading import load_splits
from training.data.synthetic import linear_truth
from training.distributed import Worker
from training.hooks import Hook
from training.loop import train
from training.noise_scale import AdaScale, NoiseScale, estimate_noise, first_half, noise_scale, with_required
from training.seeding import epoch_order
from training.trial import Trial

Measured = tuple[float | None, float | None]  # an epoch's |G|² and tr Σ
Gradients = NDArray[np.float64]  # (examples, parameters): one gradient an example


def test_the_estimate_of_even_shards() -> None:
    # N = 2, b = 3: |G|² = (2·5 - 8)/(2 - 1) = 2, tr Σ = 3·2·(8 - 5)/(2 - 1) = 18
    assert estimate_noise([7.0, 9.0], [3, 3], 5.0) == pytest.approx((2.0, 18.0))


def test_the_estimate_of_uneven_shards() -> None:
    # L = (6 + 10 + 2)/3 = 6, 1/h = (1/1 + 1/2 + 1/6)/3 = 5/9, B = 9: tr Σ = (6 - 2)/(5/9 - 1/9) = 9, |G|² = 2 - 9/9
    assert estimate_noise([6.0, 10.0, 2.0], [1, 2, 6], 2.0) == pytest.approx((1.0, 9.0))
    assert estimate_noise([6.0, 0.0, 10.0, 2.0], [1, 0, 2, 6], 2.0) == pytest.approx((1.0, 9.0))  # 0 examples


@pytest.mark.parametrize("sizes", [[4, 0], [0, 0], [1]])
def test_one_part_is_not_enough(sizes: list[int]) -> None:
    with pytest.raises(ValueError, match=r"part_sizes: .* fewer than two parts"):
        estimate_noise([1.0] * len(sizes), sizes, 1.0)


def test_the_noise_scale_is_the_ratio_of_means() -> None:
    assert noise_scale(0.5, 20.0) == 40.0
    assert noise_scale(0.0, 20.0) is None
    assert noise_scale(-0.1, 20.0) is None


def mean_estimate(batches: Sequence[Gradients], sizes: Sequence[int]) -> tuple[float, float]:
    """The mean of the estimates from batches that are split into parts of these sizes."""
    ends = np.cumsum(sizes)[:-1]
    found = []
    for batch in batches:
        parts = [part.mean(axis=0) for part in np.split(batch, ends)]
        whole = batch.mean(axis=0)
        found.append(estimate_noise([float(part @ part) for part in parts], sizes, float(whole @ whole)))
    return float(np.mean([each.sq_norm for each in found])), float(np.mean([each.trace_cov for each in found]))


populations = arrays(np.float64, (4, 2), elements=st.floats(-10, 10))
two_or_more_parts = st.sampled_from([(1, 1), (1, 2), (2, 1), (1, 1, 1), (1, 2, 1), (3, 1)])


@given(populations, two_or_more_parts)
def test_it_is_unbiased_over_all_batches_drawn_with_replacement(examples: Gradients, sizes: tuple[int, ...]) -> None:
    """|G|² and tr Σ of the population itself, from every batch that can be drawn."""
    batches = [examples[list(chosen)] for chosen in itertools.product(range(4), repeat=sum(sizes))]
    mean = examples.mean(axis=0)
    expected = float(mean @ mean), float(((examples - mean) ** 2).sum() / 4)
    assert mean_estimate(batches, sizes) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(populations, two_or_more_parts)
def test_it_is_unbiased_over_all_batches_of_an_epoch(examples: Gradients, sizes: tuple[int, ...]) -> None:
    """Without replacement tr Σ is the sample variance S² (over n - 1), and |G|² that of what the examples stand for."""
    batches = [examples[list(chosen)] for chosen in itertools.permutations(range(4), sum(sizes))]
    mean = examples.mean(axis=0)
    variance = float(((examples - mean) ** 2).sum() / 3)
    expected = float(mean @ mean) - variance / 4, variance
    assert mean_estimate(batches, sizes) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    ("sizes", "count"), [((5,), 1), ((3, 2), 1), ((2, 2, 1), 2), ((1, 1, 1, 1), 2), ((1, 1, 0, 0), 1), ((1, 0), 1)]
)
def test_first_half(sizes: tuple[int, ...], count: int) -> None:
    assert first_half(sizes) == count


# A linear problem: x ~ N(0, D), the error of an example r = u·x + c + e with e ~ N(0, s²), its loss r². The gradient
# is ±2r(x, 1), so with t = tr D, q = u·Du:
#   G = ±2(Du, c), and |G|² = 4(|Du|² + c²);
#   E r² = q + c² + s², and for a Gaussian E (u·x)²|x|² = q·t + 2|Du|², so E r²|x|² = (q + c² + s²)t + 2|Du|²;
#   tr Σ = 4(E r²|x|² + E r²) - |G|² = 4((q + c² + s²)(t + 1) + |Du|² - c²).
FEATURES, NOISE = 96, 1.0
DATA_ARGS = {"features": FEATURES, "noise": NOISE, "variances": [0.5] * 48 + [1.5] * 48, "test_samples": 1}


def known(weights: torch.Tensor, bias: float) -> tuple[float, float]:
    """|G|² and tr Σ of the linear problem for a model with these parameters."""
    truth = linear_truth(FEATURES, NOISE, DATA_ARGS["variances"])  # type: ignore[arg-type]
    u, c = weights - truth.weights, bias - truth.bias
    du = truth.variances * u
    error = (u @ du).item() + c**2 + truth.noise**2
    square = du.square().sum().item()
    return 4 * (square + c**2), 4 * (error * (truth.variances.sum().item() + 1) + square - c**2)


def run(ranks: GlooPool, world_size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """function(worker, *arguments) on each rank; alone in this process."""
    return ranks.run(world_size, function, *arguments) if world_size > 1 else [function(ALONE, *arguments)]


class Start(Hook):
    """Puts the model where a batch's noise is about as large as its gradient."""

    def train_starts(self, trial: Trial) -> None:
        truth = linear_truth(FEATURES, NOISE, DATA_ARGS["variances"])  # type: ignore[arg-type]
        linear = next(module for module in trial.model.modules() if isinstance(module, nn.Linear))
        with torch.no_grad():
            linear.weight.copy_(truth.weights * 0.4)
            linear.bias.fill_(truth.bias - 0.5)
        self.known = known(linear.weight.detach().flatten(), linear.bias.item())


def measure(worker: Worker, config: TrainConfig, *hooks: Hook) -> Measured:
    """|G|² and tr Σ in the record of a training's last epoch."""
    record = train(config, worker, hooks=[*hooks]).records[-1]
    return record.grad_sq_norm, record.grad_trace_cov


def measured_and_known(worker: Worker, changes: dict[str, Any]) -> tuple[Measured, tuple[float, float]]:
    """What the hook finds in some hundred steps that do not move the model, and the analytic values."""
    steps = {1: 500, 2: 400, 4: 200}[worker.world_size]
    config = make_config(
        **({"model": "linear_regression", "model_args": {}, "loss": "mse", "metric": "mse", "batch_size": 64,
            "data": "synthetic_linear", "data_args": {**DATA_ARGS, "train_samples": steps * 64},
            "learning_rate": 1e-12} | changes)
    )  # fmt: skip
    start = Start()
    return measure(worker, config, start, NoiseScale(interval=1)), start.known


@pytest.mark.parametrize(
    ("world_size", "changes"),
    [
        (1, {}), (1, {"batch_size": 63}), (1, {"accumulation": 3}),
        (2, {}), (2, {"shards": (3.0, 1.0)}), (2, {"shards": (1.0, 0.0)}), (2, {"gradient_sync": "flat"}),
        (4, {}), (4, {"shards": (4.0, 2.0, 1.0, 1.0)}),
    ],
)  # fmt: skip
def test_a_linear_problem_is_measured_within_five_percent(
    ranks: GlooPool, world_size: int, changes: dict[str, Any]
) -> None:
    for found, expected in run(ranks, world_size, measured_and_known, changes):
        assert found == pytest.approx(expected, rel=0.05)
