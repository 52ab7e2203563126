"""The documented example of a user's own file: it trains, on one worker and on two alike, and says what it should."""

from __future__ import annotations

import pytest
import torch

from docs.examples.custom_model import Centre, Dense, build, orthogonal
from tests.support.gloo import GlooPool
from tests.support.training.helpers import largest_difference, make_config, run_training, same_bits, smallest_movement

EXAMPLE = make_config(
    model="docs.examples.custom_model:build",
    model_args={"units": 32, "init": "docs.examples.custom_model:orthogonal"},
    data="digits",
    data_args={},
    batch_size=64,
    learning_rate=0.2,
    epochs=2,
)


def test_its_layers_do_what_they_say() -> None:
    inputs = torch.rand(3, 5)
    assert Centre()(inputs).mean(dim=1).abs().max() < 1e-6
    assert list(Centre().parameters()) == []
    layer = Dense(5, 2)
    assert torch.equal(layer(inputs), torch.relu(inputs @ layer.weight + layer.bias))
    assert [tuple(parameter.shape) for parameter in layer.parameters()] == [(5, 2), (2,)]


def test_its_initialiser_draws_orthogonal_columns() -> None:
    model = build(10, 1, units=8, init="docs.examples.custom_model:orthogonal")
    weight = model[2].weight
    assert torch.allclose(weight.T @ weight, torch.eye(8), atol=1e-5)
    untouched = torch.nn.Conv2d(1, 2, 3)
    before = untouched.weight.clone()
    orthogonal(untouched)
    assert torch.equal(before, untouched.weight)


@pytest.mark.parametrize("strategy", ["ddp", "naive"])
def test_it_trains_alike_on_one_worker_and_two(ranks: GlooPool, strategy: str) -> None:
    (alone,) = ranks.run(1, run_training, EXAMPLE)
    replicas = ranks.run(
        2, run_training, make_config(**{**EXAMPLE.to_dict(), "optimizer": EXAMPLE.optimizer, "gradient_sync": strategy})
    )
    assert same_bits(replicas[0]["state"], replicas[1]["state"])
    assert smallest_movement(alone["first_state"], alone["state"]) > 1e-3
    assert largest_difference(alone["state"], replicas[0]["state"]) < 1e-5
    first, last = (curve[2] for curve in alone["curve"])
    assert last > first > 0.5  # test accuracy
