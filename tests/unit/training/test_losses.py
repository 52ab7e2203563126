"""Losses and metrics: their values, and what is said about outputs, targets and functions that do not fit."""

from __future__ import annotations

import math
import re

import pytest
import torch
import torch.nn.functional as F

from scalestudy.training.losses import cross_entropy, hits, make_loss, make_metric, squared_error

HERE = "tests.unit.training.test_losses"
LOGITS = torch.tensor([[5.0, 0.0], [5.0, 0.0], [0.0, 5.0]])
CLASSES = torch.tensor([0, 1, 1])


def absolute_error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A user's loss or metric."""
    return (outputs.squeeze(1) - targets).abs()


def mean_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """PyTorch's default, one number."""
    return F.cross_entropy(outputs, targets)


def elementwise_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A value an output, not an example."""
    return (outputs - targets).square()


def float_loss(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    """No tensor."""
    return 0.0


def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A metric of an unlucky name."""
    return targets


def test_cross_entropy_is_per_example() -> None:
    """log(1 + e^-5), 5 + log(1 + e^-5), log(1 + e^-5)."""
    least = math.log1p(math.exp(-5))
    values = make_loss("cross_entropy", 2)(LOGITS, CLASSES)
    assert values.tolist() == pytest.approx([least, 5 + least, least], rel=1e-5)


def test_accuracy_counts_hits() -> None:
    metric = make_metric("accuracy")
    assert metric.name == "accuracy"
    assert metric.function(LOGITS, CLASSES).tolist() == [1.0, 0.0, 1.0]


def test_squared_error_is_the_mean_over_an_examples_outputs() -> None:
    """((1 - 0)² + (2 - 4)²) / 2 = 2.5 and (9 + 1) / 2 = 5."""
    outputs, targets = torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.tensor([[0.0, 4.0], [0.0, 1.0]])
    assert make_loss("mse", 2)(outputs, targets).tolist() == [2.5, 5.0]


def test_squared_error_of_one_output_takes_flat_targets() -> None:
    """Without care (3, 1) and (3,) would be broadcast to (3, 3)."""
    outputs, targets = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([1.0, 0.0, 5.0])
    assert squared_error(outputs, targets).tolist() == [0.0, 4.0, 4.0]
    assert squared_error(outputs.squeeze(1), targets).tolist() == [0.0, 4.0, 4.0]


def test_squared_error_of_classes_is_that_of_their_rows() -> None:
    """Class 1 of 3 is (0, 1, 0): (0.25 + 0 + 0.25) / 3."""
    outputs = torch.tensor([[0.5, 1.0, 0.5]])
    assert squared_error(outputs, torch.tensor([1])).tolist() == pytest.approx([0.5 / 3])


def test_the_gradient_of_squared_error() -> None:
    """d/do of mean over 2 outputs of (o - t)² is o - t."""
    outputs = torch.tensor([[1.0, 2.0]], requires_grad=True)
    squared_error(outputs, torch.tensor([[0.0, 4.0]])).sum().backward()
    assert outputs.grad is not None
    assert outputs.grad.tolist() == [[1.0, -2.0]]


def test_a_users_loss_and_metric() -> None:
    path = f"{HERE}:absolute_error"
    metric = make_metric(path)
    assert metric.name == "absolute_error"
    for function in (make_loss(path, 1), metric.function):
        assert function(torch.tensor([[1.0], [2.0]]), torch.tensor([3.0, 2.5])).tolist() == [2.0, 0.5]


@pytest.mark.parametrize("function", [cross_entropy, squared_error])
def test_an_empty_batch_has_no_losses(function: object) -> None:
    assert function(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)).shape == (0,)


def refused(name: str, outputs: torch.Tensor, targets: torch.Tensor, num_classes: int = 3) -> str:
    """What is said about a loss's call; one line, its remedy after the last semicolon."""
    with pytest.raises(ValueError, match="; ") as caught:
        make_loss(name, num_classes)(outputs, targets)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("shape", [(2, 4), (2, 2), (2,), (2, 3, 3)])
def test_outputs_that_do_not_fit_the_classes(shape: tuple[int, ...]) -> None:
    message = refused("cross_entropy", torch.zeros(shape), torch.tensor([0, 1]))
    assert message.startswith(f"model: outputs {shape} do not fit 3 classes; ")
    assert message.endswith("(N, 3)")


def test_cross_entropy_of_numbers_names_mse() -> None:
    message = refused("cross_entropy", torch.zeros(2, 3), torch.zeros(2))
    assert message.startswith("loss: cross_entropy needs")
    assert message.endswith("of one-hot targets, or choose mse for numbers")


def test_accuracy_of_numbers_names_mse() -> None:
    with pytest.raises(
        ValueError, match=r"metric: accuracy needs .* of torch\.float32; give class numbers, .* or choose mse"
    ):
        hits(torch.zeros(2, 1), torch.zeros(2))


@pytest.mark.parametrize("targets", [torch.zeros(2), torch.zeros(2, 4), torch.zeros(2, 1)])
def test_squared_error_is_never_broadcast(targets: torch.Tensor) -> None:
    message = refused("mse", torch.zeros(2, 3), targets)
    assert f"outputs (2, 3) and targets {tuple(targets.shape)} do not fit" in message


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("mean_loss", "gave values of shape ()"),
        ("elementwise_loss", "gave values of shape (2, 3)"),
        ("float_loss", "gave a float"),
    ],
)
def test_a_loss_that_is_not_one_value_an_example(name: str, found: str) -> None:
    message = refused(f"{HERE}:{name}", torch.zeros(2, 3), torch.zeros(2, 3))
    assert message.startswith(f"loss: '{HERE}:{name}' {found}")
    assert "one value for each example" in message.rpartition("; ")[2]


def test_a_metric_is_checked_alike() -> None:
    with pytest.raises(ValueError, match=r"metric: .* for 2 examples; return one value for each example"):
        make_metric(f"{HERE}:mean_loss").function(torch.zeros(2, 3), torch.zeros(2, 3))


def test_a_metric_does_not_take_the_name_of_the_loss() -> None:
    with pytest.raises(ValueError, match="would be reported as test_loss"):
        make_metric(f"{HERE}:loss")


@pytest.mark.parametrize(("make", "field"), [(lambda name: make_loss(name, 2), "loss"), (make_metric, "metric")])
@pytest.mark.parametrize(
    ("name", "found"),
    [("huber", "is not built in; choose "), ("nowhere.at_all:f", "no module"), (f"{HERE}:LOGITS", "no callable")],
)
def test_a_name_that_is_not_there(make: object, field: str, name: str, found: str) -> None:
    with pytest.raises(ValueError, match=f"^{field}: {re.escape(repr(name))}.*{found}"):
        make(name)
