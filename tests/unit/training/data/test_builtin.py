"""Data sets that are made up or come with a library: what they hold."""

from __future__ import annotations

import pytest
import torch

from scalestudy.training.data.builtin import linear_truth, load_digits, load_linear, load_synthetic


def test_digits_are_the_fixed_split() -> None:
    splits = load_digits(None)
    assert splits.train_inputs.shape == (1437, 1, 28, 28)
    assert splits.test_inputs.shape == (360, 1, 28, 28)
    assert (splits.train_inputs.min().item(), splits.train_inputs.max().item()) == (0.0, 1.0)
    assert splits.train_targets.bincount().tolist() == [139, 145, 130, 155, 139, 150, 144, 152, 144, 139]
    assert load_digits(None, image_size=8).train_inputs.shape == (1437, 1, 8, 8)


def test_digits_of_an_impossible_size() -> None:
    with pytest.raises(ValueError, match=r"data_args\.image_size: 0"):
        load_digits(None, image_size=0)


def test_synthetic_data_is_the_same_everywhere_and_has_the_sizes_asked_for() -> None:
    splits = load_synthetic(None, train_samples=7, test_samples=3, num_classes=4, channels=3, image_size=5)
    again = load_synthetic(None, train_samples=7, test_samples=3, num_classes=4, channels=3, image_size=5)
    assert splits.train_inputs.shape == (7, 3, 5, 5)
    assert splits.test_targets.max() < 4
    assert torch.equal(splits.train_inputs, again.train_inputs)
    assert 0 <= splits.train_inputs.min() <= splits.train_inputs.max() <= 1


@pytest.mark.parametrize(("name", "value"), [("train_samples", 0), ("channels", 1.5), ("noise", 2.0)])
def test_impossible_synthetic_data(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"data_args\.{name}"):
        load_synthetic(None, **{name: value})


def test_linear_data_follow_their_truth() -> None:
    """Least squares over 4,096 examples finds w and b within some noise / √n = 0.0016; the spread is the one given."""
    splits = load_linear(None, features=3, noise=0.1, variances=[1.0, 4.0, 0.25], seed=5)
    truth = linear_truth(features=3, noise=0.1, variances=[1.0, 4.0, 0.25], seed=5)
    assert (splits.train_inputs.shape, splits.test_targets.shape) == ((4096, 3), (1024,))
    assert (splits.num_classes, splits.in_channels) == (1, 3)
    assert splits.train_inputs.var(dim=0).tolist() == pytest.approx([1.0, 4.0, 0.25], rel=0.1)
    ones = torch.ones(4096, 1)
    found = torch.linalg.lstsq(torch.cat([splits.train_inputs, ones], dim=1), splits.train_targets).solution
    assert found.tolist() == pytest.approx([*truth.weights.tolist(), truth.bias], abs=0.02)
    residuals = splits.test_targets - splits.test_inputs @ truth.weights - truth.bias
    assert residuals.std().item() == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize("wrong", [{"features": 0}, {"noise": -1.0}, {"variances": [1.0]}, {"test_samples": 0}])
def test_impossible_linear_data(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=rf"data_args\.{next(iter(wrong))}: "):
        load_linear(None, **wrong)
