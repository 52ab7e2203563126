"""How models are first drawn: by name or by a user's function, the same on every rank at any world size."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from scalestudy.training.distributed import Worker
from scalestudy.training.models import LeNet, build_model, initialise, seeded_model
from scalestudy.training.registry import INITIALISATIONS, MODELS
from tests.support.gloo import GlooPool
from tests.support.training.helpers import make_config, same_bits, state_of

USERS = "tests.support.training.workloads:halves"


def test_normal_has_the_books_spread_and_zero_biases() -> None:
    torch.manual_seed(0)
    model = LeNet(10, 1, init="normal")
    for layer in (model[3], model[7]):
        assert layer.weight.std().item() == pytest.approx(0.01, rel=0.05)
        assert layer.bias.count_nonzero() == 0


def test_xavier_has_glorots_bound() -> None:
    model = LeNet(10, 1, init="xavier")
    bound = (6 / (800 + 128)) ** 0.5
    assert 0.95 * bound < model[7].weight.abs().max().item() <= bound
    assert model[7].bias.count_nonzero() == 0


def test_default_is_pytorchs() -> None:
    torch.manual_seed(0)
    ours = LeNet(10, 1, init="default")[0].weight
    torch.manual_seed(0)
    assert torch.equal(ours, nn.Conv2d(1, 20, 3).weight)


@pytest.mark.parametrize("name", [*MODELS, "torchvision:resnet18"])
def test_every_model_takes_every_initialisation(name: str) -> None:
    def first_and_last(init: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = build_model(name, (10, 1), {"init": init})
        layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
        return [layers[0].weight.detach(), layers[-1].weight.detach()]

    normal, xavier = first_and_last("normal"), first_and_last("xavier")
    for weight in normal:
        assert weight.abs().max() < 0.06  # six standard deviations
    for weight in first_and_last(USERS):
        assert weight.mean().item() == pytest.approx(0.5, abs=0.2)
    for weight in xavier:
        fan_in, fan_out = (size * weight[0][0].numel() for size in (weight.shape[1], weight.shape[0]))
        bound = (6 / (fan_in + fan_out)) ** 0.5
        assert 0.5 * bound < weight.abs().max().item() <= bound
    assert not any(torch.equal(one, other) for one in first_and_last("default") for other in (*normal, *xavier))


def start_of(worker: Worker, model: str, model_args: dict[str, Any]) -> dict[str, Any]:
    """What this rank's model starts from; ranks have drawn other numbers before."""
    torch.rand(worker.rank + worker.world_size)
    return state_of(seeded_model(make_config(model=model, model_args=model_args, seed=3), (10, 1)))


STARTS: list[tuple[str, dict[str, Any]]] = [
    *[("lenet", {"init": init}) for init in (*INITIALISATIONS, USERS)],
    ("linear_regression", {}),
    ("mlp", {"hidden": [32], "shared": 2, "batch_norm": True, "dropout": 0.5}),
    ("torchvision:squeezenet1_1", {"init": "xavier"}),
    ("docs.examples.custom_model:build", {"init": "docs.examples.custom_model:orthogonal"}),
]


@pytest.mark.parametrize(("model", "model_args"), STARTS, ids=str)
def test_a_model_starts_alike_on_every_rank_at_any_world_size(
    ranks: GlooPool, model: str, model_args: dict[str, Any]
) -> None:
    states = [state for world_size in (1, 3) for state in ranks.run(world_size, start_of, model, model_args)]
    assert len(states) == 4
    assert all(same_bits(states[0], state) for state in states)


@pytest.mark.parametrize(
    ("init", "message"),
    [
        ("zero", "model_args.init: 'zero' is not built in; choose normal, xavier, default, or write package"),
        (None, "model_args.init: None is not a name; choose one of normal, xavier, default"),
        ("nowhere:draw", "model_args.init: 'nowhere:draw': there is no module 'nowhere' in .*; correct the name"),
        ("math:draw", "model_args.init: 'math:draw': module 'math' has no callable 'draw'; correct the name"),
        ("math:pi", "model_args.init: 'math:pi': module 'math' has no callable 'pi'; correct the name"),
    ],
)
def test_what_is_no_initialiser_is_a_value_error(init: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        initialise(LeNet(10, 1), init)
    assert "\n" not in str(caught.value)
