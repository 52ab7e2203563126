"""Trainings that tell whether data, augmentation, losses and metrics reach the loop as they should."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.support.gloo import GlooPool
from tests.training.helpers import (
    ALONE,
    largest_difference,
    make_config,
    run_training,
    same_bits,
    smallest_movement,
    train,
)

HERE = "tests.training.datasets"


@pytest.mark.parametrize("augment", ["none", "crop_flip"])
def test_a_torch_dataset_trains_as_its_tensors_do(augment: str) -> None:
    def run(data: str) -> dict[str, Any]:
        settings = {"model": f"{HERE}:linear", "model_args": {}, "data": f"{HERE}:{data}", "data_args": {}}
        return run_training(ALONE, make_config(**settings, batch_size=6, epochs=2, augment=augment))

    tensors, dataset = run("image_tensors"), run("images")
    assert same_bits(tensors["state"], dataset["state"])
    assert tensors["curve"] == dataset["curve"]
    assert smallest_movement(tensors["first_state"], tensors["state"]) > 1e-3


@pytest.mark.parametrize("world_size", [2, 4])
def test_an_augmented_training_is_the_same_at_any_world_size(ranks: GlooPool, world_size: int) -> None:
    config = make_config(augment="crop_flip", batch_size=30, epochs=2, model_args={"init": "xavier", "hidden": [16]})
    alone = run_training(ALONE, config)
    plain = run_training(ALONE, dataclasses.replace(config, augment="none"))
    together = ranks.run(world_size, run_training, config)[0]
    assert largest_difference(together["state"], alone["state"]) < 1e-5
    assert smallest_movement(alone["first_state"], alone["state"]) > 1e-3
    assert largest_difference(plain["state"], alone["state"]) > 1e-3


def test_a_regression_finds_its_truth() -> None:
    """Noise 0.01: the mean squared error ends near 0.0001, from the variance of the targets."""
    config = make_config(
        model="linear_regression", model_args={}, data="synthetic_linear", data_args={"features": 3}, loss="mse",
        metric="mse", batch_size=64, epochs=3, learning_rate=0.05,
    )  # fmt: skip
    records = train(config, ALONE).records
    assert records[0].train_loss > 0.05
    assert 0.00008 < records[-1].test_loss < 0.00012
    assert records[-1].to_dict()["test_mse"] == pytest.approx(records[-1].test_loss)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"loss": f"{HERE}:no_such"}, "^loss: .*no callable 'no_such'"),
        ({"metric": "nowhere.at_all:f"}, "^metric: .*no module"),
        ({"loss": "tests.training.test_losses:mean_loss"}, "one value an example"),
        ({"data": f"{HERE}:mislabelled", "data_args": {}}, "^data: train targets are 0 to 5"),
        ({"data": "synthetic_linear", "data_args": {}, "augment": "crop_flip"}, "^augment: crop_flip is for images"),
        ({"model": f"{HERE}:two_outputs", "data": f"{HERE}:images", "data_args": {}}, "^model: outputs .* 3 classes"),
    ],
)
def test_what_does_not_fit_is_said_before_or_at_the_first_step(changes: dict[str, Any], found: str) -> None:
    settings = {
        "model": f"{HERE}:linear",
        "model_args": {},
        "data": f"{HERE}:images",
        "data_args": {},
        "batch_size": 20,
    }
    with pytest.raises(ValueError, match=found) as caught:
        train(make_config(**{**settings, **changes}), ALONE)
    assert "\n" not in str(caught.value)
