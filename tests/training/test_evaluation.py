"""Exact evaluation over any number of workers."""

from __future__ import annotations

import math

import pytest
import torch

from tests.support.gloo import GlooPool
from tests.training.helpers import ALONE
from training.distributed import Worker
from training.evaluation import EVALUATION_BATCH, Counts, evaluate
from training.gradient_sync import cross_entropy_sum
from training.models import MLP


def evaluate_examples(worker: Worker, samples: int) -> Counts:
    """This worker's counts over `samples` random examples."""
    torch.manual_seed(0)
    model = MLP(10, 1, image_size=4).double()
    inputs, targets = torch.rand(samples, 1, 4, 4, dtype=torch.float64), torch.randint(10, (samples,))
    return evaluate(model, cross_entropy_sum, inputs, targets, worker)


@pytest.mark.parametrize("samples", [1, 3, 101, 2 * EVALUATION_BATCH + 1])
@pytest.mark.parametrize("world_size", [2, 4])
def test_counts_of_all_workers_are_those_of_one(ranks: GlooPool, world_size: int, samples: int) -> None:
    parts = ranks.run(world_size, evaluate_examples, samples)
    whole = evaluate_examples(ALONE, samples)
    assert whole.samples == samples
    assert sum(part.samples for part in parts) == samples
    assert sum(part.hits for part in parts) == whole.hits
    assert sum(part.loss_sum for part in parts) == pytest.approx(whole.loss_sum, rel=1e-12)


def test_counts_are_right() -> None:
    """Three examples, logits 0 but for one class: hits 1, 0, 1; losses log(1 + e^-5), 5 + log(1 + e^-5) and again."""
    outputs = torch.tensor([[5.0, 0.0], [5.0, 0.0], [0.0, 5.0]])
    counts = evaluate(torch.nn.Identity(), cross_entropy_sum, outputs, torch.tensor([0, 1, 1]), ALONE)
    assert (counts.hits, counts.samples) == (2, 3)
    assert counts.loss_sum == pytest.approx(5 + 3 * math.log1p(math.exp(-5)), rel=1e-6)


def test_evaluation_uses_evaluation_mode_and_restores_training() -> None:
    model = torch.nn.Sequential(torch.nn.Dropout(0.9), torch.nn.Identity())
    counts = evaluate(model, cross_entropy_sum, torch.eye(8), torch.arange(8), ALONE)
    assert counts.hits == 8
    assert model.training
