"""Exact evaluation over any number of workers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from scalestudy.training.data.loading import EVALUATION_BATCH, TrainingData
from scalestudy.training.data.reading import ResidentReader
from scalestudy.training.distributed import Worker
from scalestudy.training.loop.train import Counts, evaluate
from scalestudy.training.losses import ShardLoss, make_loss, make_metric
from tests.support.gloo import GlooPool
from tests.support.training.helpers import ALONE


def data_of(inputs: torch.Tensor, targets: torch.Tensor, num_classes: int) -> TrainingData:
    """A test set."""
    reader = ResidentReader(inputs, targets)
    return TrainingData(reader, reader, num_classes, in_channels=1, device=torch.device("cpu"))


class Batchy(nn.Sequential):
    """In training mode an example's outputs depend on all of its batch; its running statistics are not those at 0."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(), nn.Flatten(), nn.Linear(16, 10)
        )
        self.double()
        self(torch.rand(64, 1, 4, 4, dtype=torch.float64))


def evaluate_examples(worker: Worker, samples: int, weights: tuple[float, ...] | None = None) -> Counts:
    """This worker's counts over `samples` random examples."""
    torch.manual_seed(0)
    shard_loss = ShardLoss(Batchy(), make_loss("cross_entropy", 10))
    inputs, targets = torch.rand(samples, 1, 4, 4, dtype=torch.float64), torch.randint(10, (samples,))
    return evaluate(shard_loss, make_metric("accuracy"), data_of(inputs, targets, 10), worker, weights)


def assert_add_up(parts: list[Counts], samples: int) -> None:
    """The parts are a whole evaluation."""
    whole = evaluate_examples(ALONE, samples)
    assert whole.samples == samples
    assert sum(part.samples for part in parts) == samples
    assert sum(part.metric_sum for part in parts) == whole.metric_sum
    assert sum(part.loss_sum for part in parts) == pytest.approx(whole.loss_sum, rel=1e-12)


@pytest.mark.parametrize("samples", [1, 3, 101, 2 * EVALUATION_BATCH + 1])
@pytest.mark.parametrize("world_size", [2, 4])
def test_counts_of_all_workers_are_those_of_one(ranks: GlooPool, world_size: int, samples: int) -> None:
    """With batch normalisation and dropout, which an evaluation must not feel."""
    assert_add_up(ranks.run(world_size, evaluate_examples, samples), samples)


@pytest.mark.parametrize("weights", [(0.7, 0.3), (1.0, 0.0), (1.0, 3.0, 0.0, 2.5)])
def test_workers_may_have_uneven_parts_or_none(ranks: GlooPool, weights: tuple[float, ...]) -> None:
    parts = ranks.run(len(weights), evaluate_examples, 101, weights)
    assert_add_up(parts, 101)
    shares = [101 * weight / sum(weights) for weight in weights]
    assert all(abs(part.samples - share) < 1 for part, share in zip(parts, shares, strict=True))


LOGITS = torch.tensor([[5.0, 0.0], [5.0, 0.0], [0.0, 5.0]])


def test_counts_are_right() -> None:
    """Three examples, logits 0 but for one class: hits 1, 0, 1; losses log(1 + e^-5), 5 + log(1 + e^-5) and again."""
    shard_loss = ShardLoss(nn.Identity(), make_loss("cross_entropy", 2))
    data = data_of(LOGITS, torch.tensor([0, 1, 1]), 2)
    counts = evaluate(shard_loss, make_metric("accuracy"), data, ALONE)
    assert (counts.metric_sum, counts.samples) == (2, 3)
    assert counts.loss_sum == pytest.approx(5 + 3 * math.log1p(math.exp(-5)), rel=1e-6)


def test_a_regressions_metric() -> None:
    """Outputs 1, 2, 4 and targets 1, 0, 1: squares 0 + 4 + 9."""
    shard_loss = ShardLoss(nn.Identity(), make_loss("mse", 1))
    data = data_of(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([1.0, 0.0, 1.0]), 1)
    counts = evaluate(shard_loss, make_metric("mse"), data, ALONE)
    assert (counts.loss_sum, counts.metric_sum) == (13.0, 13.0)


def true_where_positive(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A user's metric whose values are truths."""
    return outputs[:, 0] > 0


def test_a_metric_of_truths_is_counted() -> None:
    data = data_of(LOGITS, torch.tensor([0, 1, 1]), 2)
    metric = make_metric("tests.unit.training.loop.test_evaluation:true_where_positive")
    shard_loss = ShardLoss(nn.Identity(), make_loss("cross_entropy", 2))
    assert evaluate(shard_loss, metric, data, ALONE).metric_sum == 2.0


def test_evaluation_uses_evaluation_mode_and_restores_training() -> None:
    model = nn.Sequential(nn.Dropout(0.9), nn.Identity())
    shard_loss = ShardLoss(model, make_loss("cross_entropy", 8))
    counts = evaluate(shard_loss, make_metric("accuracy"), data_of(torch.eye(8), torch.arange(8), 8), ALONE)
    assert counts.metric_sum == 8
    assert model.training
