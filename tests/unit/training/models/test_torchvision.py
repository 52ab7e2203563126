"""`torchvision:<name>`: any of its classifiers, for any channels and classes, or a clear refusal."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from scalestudy.training.models import build_model
from scalestudy.training.registry import DATASETS, MODELS, resolve


@pytest.mark.parametrize("name", ["squeezenet1_1", "mobilenet_v3_small", "googlenet"])
def test_a_classifier_gives_one_tensor_of_logits_for_any_channels(name: str) -> None:
    model = build_model(f"torchvision:{name}", (7, 1), {})
    assert model.training
    with torch.no_grad():
        outputs = model(torch.rand(2, 1, 32, 32))
    assert outputs.shape == (2, 7)


def test_three_channels_leave_torchvisions_model_as_it_is() -> None:
    torch.manual_seed(0)
    ours = build_model("torchvision:squeezenet1_1", (7, 3), {}).state_dict()
    torch.manual_seed(0)
    theirs = resolve("torchvision.models:squeezenet1_1", MODELS)(num_classes=7).state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_first_convolution_takes_the_channels_and_keeps_all_else() -> None:
    first = build_model("torchvision:resnet18", (10, 5), {}).conv1
    assert isinstance(first, nn.Conv2d)
    assert first.weight.shape == (64, 5, 7, 7)
    assert (first.stride, first.padding, first.bias) == ((2, 2), (3, 3), None)
    nested = build_model("torchvision:squeezenet1_1", (10, 1), {}).features[0]
    assert nested.weight.shape == (64, 1, 3, 3)
    assert nested.bias is not None


def test_arguments_reach_torchvisions_class() -> None:
    assert build_model("torchvision:squeezenet1_1", (10, 1), {"dropout": 0.125}).classifier[0].p == 0.125
    model = build_model("torchvision:vit_b_16", (10, 3), {"image_size": 32, "weights": None})
    with torch.no_grad():
        assert model(torch.rand(1, 3, 32, 32)).shape == (1, 10)


@pytest.mark.slow
def test_a_checked_model_can_be_copied_and_exported() -> None:
    model = copy.deepcopy(build_model("torchvision:squeezenet1_1", (10, 1), {})).eval()
    exported = torch.export.export(
        model, (torch.rand(2, 1, 28, 28),), dynamic_shapes=[{0: torch.export.Dim.AUTO}]
    ).module()
    inputs = torch.rand(3, 1, 28, 28)
    assert torch.allclose(exported(inputs), model(inputs), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("resnet19", {}, "'torchvision:resnet19': .* no classifier of that name; did you mean torchvision:resnet1"),
        ("fasterrcnn_resnet50_fpn", {}, "torchvision has no classifier of that name; did you mean torchvision:"),
        (
            "resnet18",
            {"weights": "DEFAULT"},
            r"model_args\.weights: 'DEFAULT' would be downloaded .*; remove it, or load",
        ),
        ("resnet18", {"pretrained": True}, r"model_args\.pretrained: True would be downloaded"),
        (
            "googlenet",
            {"aux_logits": True},
            r"model_args\.aux_logits: .* several tensors of logits, .*; remove it",
        ),
        ("resnet18", {"hidden": [3]}, r"model_args: .*torchvision:resnet18 \(.*'hidden'\); correct or remove them"),
        ("resnet18", {"init": "zero"}, r"model_args\.init: 'zero' is not built in"),
        ("vit_b_16", {"image_size": 28}, r"model_args: .*indivisible.*; correct or remove them"),
    ],
)
def test_what_can_not_be_built_is_a_value_error(name: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        build_model(f"torchvision:{name}", (10, 1), arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "arguments", "side", "message"),
    [
        (
            "alexnet",
            {},
            28,
            "images of 28 × 28 pixels do not fit torchvision:alexnet, which takes at least 63 × 63; choose",
        ),
        ("squeezenet1_1", {}, 16, "takes at least 17 × 17"),
        ("vit_b_32", {"image_size": 32}, 64, "takes exactly 32 × 32"),
    ],
)
def test_images_that_do_not_fit_are_a_value_error(
    name: str, arguments: dict[str, Any], side: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build_model(f"torchvision:{name}", (10, 1), arguments)(torch.rand(2, 1, side, side))


def test_what_is_no_image_is_a_value_error() -> None:
    with pytest.raises(ValueError, match=r"examples of shape \[5\] are not images"):
        build_model("torchvision:squeezenet1_1", (10, 1), {})(torch.rand(2, 5))


def test_a_data_set_is_no_classifier() -> None:
    with pytest.raises(ValueError, match="module 'torchvision' has no callable 'resnet18'"):
        resolve("torchvision:resnet18", DATASETS)
