"""The built-in models."""

from __future__ import annotations

import pytest
import torch

from training.models import MLP, LeNet, build_model
from training.registry import MODELS


def test_lenet_is_the_books() -> None:
    shapes = [tuple(parameter.shape) for parameter in LeNet(10, 1).parameters()]
    assert shapes == [(20, 1, 3, 3), (20,), (50, 20, 5, 5), (50,), (128, 800), (128,), (10, 128), (10,)]
    assert LeNet(10, 1)(torch.rand(2, 1, 28, 28)).shape == (2, 10)


def test_normal_initialisation_has_the_books_spread_and_zero_biases() -> None:
    torch.manual_seed(0)
    model = LeNet(10, 1, init="normal")
    for layer in (model[3], model[7]):
        assert layer.weight.std().item() == pytest.approx(0.01, rel=0.05)
        assert layer.bias.count_nonzero() == 0


def test_xavier_initialisation_has_glorots_bound() -> None:
    model = LeNet(10, 1, init="xavier")
    bound = (6 / (800 + 128)) ** 0.5
    assert 0.95 * bound < model[7].weight.abs().max().item() <= bound
    assert model[7].bias.count_nonzero() == 0


def test_default_initialisation_is_pytorchs() -> None:
    torch.manual_seed(0)
    ours = LeNet(10, 1, init="default")[0].weight
    torch.manual_seed(0)
    assert torch.equal(ours, torch.nn.Conv2d(1, 20, 3).weight)


@pytest.mark.parametrize(("channels", "size", "classes"), [(3, 32, 100), (1, 14, 2)])
def test_lenet_takes_other_sizes(channels: int, size: int, classes: int) -> None:
    assert LeNet(classes, channels, image_size=size)(torch.rand(3, channels, size, size)).shape == (3, classes)


def test_mlp_has_the_hidden_layers_asked_for() -> None:
    model = MLP(10, 3, hidden=[64, 32], image_size=8)
    assert [layer.out_features for layer in model if isinstance(layer, torch.nn.Linear)] == [64, 32, 10]
    assert model(torch.rand(5, 3, 8, 8)).shape == (5, 10)
    assert MLP(10, 1, hidden=[])(torch.rand(5, 1, 28, 28)).shape == (5, 10)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("lenet", {"init": "zero"}, "model_args.init: 'zero' is not known; choose one of normal, xavier, default"),
        ("lenet", {"image_size": 13}, "model_args.image_size: 13 is too small"),
        ("lenet", {"image_size": "28"}, "model_args.image_size: '28' is too small or not a whole number"),
        ("mlp", {"hidden": [0]}, "model_args.hidden"),
        ("mlp", {"hidden": 5}, "model_args.hidden: 5 is not a list of whole numbers above 0; write it like"),
        ("mlp", {"hidden": [True]}, "model_args.hidden"),
        ("mlp", {"hidden": {"1": 2}}, "model_args.hidden"),
        ("mlp", {"image_size": 2.5}, "model_args.image_size: 2.5"),
        ("mlp", {"layers": 2}, "unexpected keyword argument 'layers'"),
    ],
)
def test_bad_arguments_are_value_errors(name: str, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_model(name, 10, 1, arguments)


@pytest.mark.parametrize("name", MODELS)
def test_same_generator_same_model(name: str) -> None:
    states = []
    for _ in range(2):
        torch.manual_seed(5)
        states.append(build_model(name, 10, 1, {}).state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
