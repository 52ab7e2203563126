"""The built-in models."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from scalestudy.training.models import MLP, LeNet, LinearRegression, Residual, ResNet18, build_model, seeded_model
from scalestudy.training.registry import MODELS
from scalestudy.training.seeding import seed_parameters
from tests.support.training.helpers import make_config


def test_lenet_is_the_books() -> None:
    shapes = [tuple(parameter.shape) for parameter in LeNet(10, 1).parameters()]
    assert shapes == [(20, 1, 3, 3), (20,), (50, 20, 5, 5), (50,), (128, 800), (128,), (10, 128), (10,)]
    assert LeNet(10, 1)(torch.rand(2, 1, 28, 28)).shape == (2, 10)


def test_resnet18_is_the_books() -> None:
    """Weights and biases of 3 × 3 and 1 × 1 convolutions, two numbers a channel of batch normalisation, one linear."""

    def conv(inputs: int, outputs: int, side: int = 3) -> int:
        return inputs * outputs * side * side + outputs

    def pair(before: int, channels: int) -> int:
        first = conv(before, channels) + (conv(before, channels, 1) if before != channels else 0)
        return first + 3 * conv(channels, channels) + 4 * 2 * channels

    blocks = pair(64, 64) + pair(64, 128) + pair(128, 256) + pair(256, 512)
    expected = conv(1, 64) + 2 * 64 + blocks + 512 * 10 + 10  # 11,175,818
    assert sum(parameter.numel() for parameter in ResNet18(10, 1).parameters()) == expected == 11_175_818


def test_resnet18_halves_the_image_three_times_and_takes_any_size() -> None:
    model = ResNet18(10, 1)
    sides = []
    outputs = torch.rand(2, 1, 28, 28)
    for block in list(model)[:5]:
        outputs = block(outputs)
        sides.append((outputs.shape[1], outputs.shape[2]))
    assert sides == [(64, 28), (64, 28), (128, 14), (256, 7), (512, 4)]
    assert ResNet18(100, 3)(torch.rand(2, 3, 32, 32)).shape == (2, 100)


def test_a_block_without_redundant_biases_computes_the_same_in_training() -> None:
    """Batch normalisation takes the mean away, and with it any constant that was added to a channel."""
    book, lean = Residual(2, 4, stride=2), Residual(2, 4, stride=2, conv_bias=False)
    torch.nn.init.normal_(book.conv1.bias)
    torch.nn.init.normal_(book.conv2.bias)
    state = book.state_dict()
    lean.load_state_dict({name: state[name] for name in lean.state_dict()})
    assert set(state) - set(lean.state_dict()) == {"conv1.bias", "conv2.bias"}
    inputs = torch.rand(4, 2, 8, 8)
    assert torch.allclose(book(inputs), lean(inputs), atol=1e-5)
    assert book(inputs).shape == (4, 4, 4, 4)
    assert not any(
        layer.bias is not None
        for layer in ResNet18(10, 1, conv_bias=False).modules()
        if isinstance(layer, torch.nn.Conv2d) and layer.kernel_size == (3, 3)
    )


def test_linear_regression_is_one_weighted_sum_from_the_books_normal() -> None:
    torch.manual_seed(0)
    model = LinearRegression(1, 1000)
    layer = model[1]
    inputs = torch.rand(4, 1000)
    assert torch.equal(model(inputs), inputs @ layer.weight.T + layer.bias)
    assert layer.weight.std().item() == pytest.approx(0.01, rel=0.1)
    assert layer.bias.item() == 0.0
    assert LinearRegression(10, 3, image_size=8)(torch.rand(2, 3, 8, 8)).shape == (2, 10)


@pytest.mark.parametrize(("channels", "size", "classes"), [(3, 32, 100), (1, 14, 2)])
def test_lenet_takes_other_sizes(channels: int, size: int, classes: int) -> None:
    assert LeNet(classes, channels, image_size=size)(torch.rand(3, channels, size, size)).shape == (3, classes)


def test_mlp_has_the_hidden_layers_asked_for() -> None:
    model = MLP(10, 3, hidden=[64, 32], image_size=8)
    assert [layer.out_features for layer in model if isinstance(layer, torch.nn.Linear)] == [64, 32, 10]
    assert model(torch.rand(5, 3, 8, 8)).shape == (5, 10)
    assert MLP(10, 1, hidden=[])(torch.rand(5, 1, 28, 28)).shape == (5, 10)


def test_a_shared_layer_is_one_parameter_used_several_times() -> None:
    model = MLP(3, 1, hidden=[8, 4], image_size=2, shared=2)
    layers = [layer for layer in model if isinstance(layer, torch.nn.Linear)]
    assert [layer.out_features for layer in layers] == [8, 4, 4, 4, 3]
    assert layers[2] is layers[3]
    assert len(list(model.parameters())) == 8
    assert model(torch.rand(5, 1, 2, 2)).shape == (5, 3)


def test_every_use_of_a_shared_layer_is_normalised_apart() -> None:
    model = MLP(3, 1, hidden=[4], image_size=2, shared=2, batch_norm=True)
    normalisations = {id(layer) for layer in model if isinstance(layer, torch.nn.BatchNorm1d)}
    assert len(normalisations) == 3


def test_dropout_and_batch_norm_stand_where_they_should() -> None:
    model = MLP(3, 1, hidden=[4, 4], image_size=2, dropout=0.25, batch_norm=True)
    kinds = [type(layer).__name__ for layer in model]
    assert kinds == ["Flatten", *["Linear", "BatchNorm1d", "ReLU", "Dropout"] * 2, "Linear"]
    assert model[4].p == 0.25


def no_module(num_classes: int, in_channels: int) -> str:
    """Not a model."""
    return "no module"


def lazy(num_classes: int, in_channels: int) -> nn.Module:
    """A layer that learns its size from the first batch."""
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(num_classes))


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("lenet", {"image_size": 13}, "model_args.image_size: 13 is too small"),
        ("lenet", {"image_size": "28"}, "model_args.image_size: '28' is too small or not a whole number"),
        ("mlp", {"hidden": [0]}, "model_args.hidden"),
        ("mlp", {"hidden": 5}, "model_args.hidden: 5 is not a list of whole numbers above 0; write it like"),
        ("mlp", {"hidden": [True]}, "model_args.hidden"),
        ("mlp", {"hidden": {"1": 2}}, "model_args.hidden"),
        ("mlp", {"image_size": 2.5}, "model_args.image_size: 2.5"),
        ("mlp", {"layers": 2}, "unexpected keyword argument 'layers'"),
        ("mlp", {"dropout": 1.0}, r"model_args.dropout: 1.0 is not valid; choose a number in \[0, 1\)"),
        ("mlp", {"dropout": "0.5"}, "model_args.dropout: '0.5'"),
        ("mlp", {"batch_norm": 1}, "model_args.batch_norm: 1 is not known; choose true or false"),
        ("mlp", {"shared": -1}, "model_args.shared: -1 is not valid"),
        ("mlp", {"shared": 2, "hidden": []}, "model_args.shared: 2 repeats .* hidden is empty; give hidden"),
        ("resnet18", {"conv_bias": "no"}, "model_args.conv_bias: 'no' is not known; choose true or false"),
        ("linear_regression", {"image_size": 0}, "model_args.image_size: 0 is too small"),
        (f"{__name__}:no_module", {}, "gave a str; the callable must return an nn.Module"),
        (f"{__name__}:lazy", {}, r"has lazy layers \(1.weight\), .*; give the layers their sizes"),
    ],
)
def test_bad_arguments_are_value_errors(name: str, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_model(name, (10, 1), arguments)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        (
            "lenet",
            (2, 1, 32, 32),
            r"data: examples of shape \[1, 32, 32\] do not fit .* 784 numbers each; set model_args",
        ),
        ("lenet", (2, 784), r"data: examples of shape \[784\] are not images \[C, H, W\]"),
        ("mlp", (2, 1, 32, 32), r"data: examples of shape \[1, 32, 32\] do not fit the model"),
        ("resnet18", (2, 5), r"data: examples of shape \[5\] are not images .*; choose mlp or linear_regression"),
        ("linear_regression", (2, 1, 28, 28), "takes 1 numbers each; set model_args.image_size to the side"),
    ],
)
def test_examples_of_another_shape_are_value_errors(name: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_model(name, (10, 1), {})(torch.rand(shape))


@pytest.mark.parametrize("name", [*MODELS, "torchvision:squeezenet1_1"])
def test_the_seed_alone_says_what_a_model_starts_from(name: str) -> None:
    config = make_config(model=name, model_args={}, seed=5)
    one = seeded_model(config, (10, 1)).state_dict()
    torch.rand(3)
    other = seeded_model(config, (10, 1)).state_dict()
    assert all(torch.equal(one[key], other[key]) for key in one)
    another_seed = seeded_model(make_config(model=name, model_args={}, seed=6), (10, 1)).state_dict()
    assert any(not torch.equal(one[key], another_seed[key]) for key in one)
    seed_parameters(5)
    built = build_model(name, (10, 1), {}).state_dict()
    assert all(torch.equal(one[key], built[key]) for key in one)


class OwnArguments(nn.Module):
    """A network whose arguments are its own, as most people's are."""

    def __init__(self, hidden: int = 256, layers: int = 2) -> None:
        super().__init__()
        self.body = nn.Sequential(*[nn.Linear(hidden, hidden) for _ in range(layers)])


class OneFact(nn.Module):
    def __init__(self, width: int, *, num_classes: int = 2) -> None:
        super().__init__()
        self.head = nn.Linear(width, num_classes)


def any_arguments(*arguments: int, **more: int) -> nn.Module:
    assert not arguments
    assert not more
    return nn.Linear(1, 1)


def by_other_names(classes: int, channels: int = 3) -> nn.Module:
    return nn.Linear(channels, classes)


HERE = "tests.unit.training.models.test_models"


def test_a_model_gets_what_it_names_of_the_data_and_nothing_by_position() -> None:
    own = build_model(f"{HERE}:OwnArguments", (10, 1), {})
    assert [tuple(each.weight.shape) for each in own.body] == [(256, 256)] * 2
    assert build_model(f"{HERE}:OwnArguments", (10, 1), {"hidden": 4, "layers": 1}).body[0].in_features == 4
    assert build_model(f"{HERE}:OneFact", (10, 1), {"width": 3}).head.out_features == 10
    assert build_model(f"{HERE}:OneFact", (10, 1), {"width": 3, "num_classes": 5}).head.out_features == 5
    assert build_model(f"{HERE}:any_arguments", (10, 1), {}).in_features == 1


def test_a_model_that_can_not_be_called_is_refused_with_its_signature_and_what_it_got() -> None:
    with pytest.raises(
        ValueError,
        match=r"^model_args: '.*:by_other_names': by_other_names\(classes: 'int', channels: 'int' = 3\) is called with "
        r"\(channels=1\): missing a required argument: 'classes'; it takes classes, channels$",
    ):
        build_model(f"{HERE}:by_other_names", (10, 1), {"channels": 1})
