"""A worker's data: the same batches whichever way they come, the cache, augmentation, errors; and trainings on it."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
import torch

from scalestudy.training.batches import batch_bounds, even_weights, shard_bounds
from scalestudy.training.data import DataError, Splits
from scalestudy.training.data.loading import (
    EVALUATION_BATCH,
    RESIDENT_SHARE,
    TrainingData,
    crop_flip,
    fits,
    load_splits,
    open_data,
)
from scalestudy.training.data.reading import Batch, HostReader, ResidentReader
from scalestudy.training.distributed import Worker
from scalestudy.training.registry import DATASETS
from scalestudy.training.seeding import augmentation_key, epoch_order
from tests.support.gloo import GlooPool
from tests.support.training.helpers import (
    ALONE,
    largest_difference,
    make_config,
    run_training,
    same_bits,
    smallest_movement,
    train,
)

CPU = torch.device("cpu")
HERE = "tests.support.training.datasets"
BOUNDS = [(0, 6), (6, 6), (8, 15), (15, 20)]


def open_named(name: str, worker: Worker = ALONE, **changes: Any) -> TrainingData:
    """The data of a callable in tests/support/training/datasets.py or of a built-in name."""
    data = name if name in DATASETS else f"{HERE}:{name}"
    return open_data(make_config(**{"data": data, "data_args": {}, "batch_size": 6, **changes}), worker)


def one_way(kind: str) -> TrainingData:
    """The same 20 + 7 images: tensors on the device, tensors from the host, a torch data set."""
    data = open_named("images" if kind == "dataset" else "image_tensors")
    if kind != "host":
        return data
    splits = load_splits(make_config(data=f"{HERE}:image_tensors", data_args={}), CPU)
    assert isinstance(splits, Splits)
    train = HostReader(splits.train_inputs, splits.train_targets, CPU)
    return TrainingData(train, HostReader(splits.test_inputs, splits.test_targets, CPU), 3, 1, CPU)


def same(one: list[Batch], other: list[Batch]) -> bool:
    """To the bit, types included."""
    pairs = zip(itertools.chain.from_iterable(one), itertools.chain.from_iterable(other), strict=True)
    return all(a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("kind", ["resident", "host", "dataset"])
def test_every_way_gives_the_same_batches(kind: str) -> None:
    data = one_way(kind)
    assert (data.samples, data.test_samples, data.num_classes, data.in_channels) == (20, 7, 3, 1)
    order = epoch_order(20, 0, 1)
    images = torch.arange(480, dtype=torch.float32).view(20, 1, 4, 6) / 480
    expected = [(images[order[first:stop]], order[first:stop] % 3) for first, stop in BOUNDS]
    batches = list(data.shards(order, BOUNDS, 1))
    assert [len(inputs) for inputs, _ in batches] == [6, 0, 7, 5]
    assert same(batches, expected)


@pytest.mark.parametrize("kind", ["resident", "host", "dataset"])
def test_the_test_set_comes_in_its_order(kind: str) -> None:
    [(inputs, targets)] = list(one_way(kind).test_batches(2, 6))
    assert torch.equal(inputs, torch.arange(168, dtype=torch.float32).view(7, 1, 4, 6)[2:6] / 168)
    assert targets.tolist() == [2, 0, 1, 2]
    assert list(one_way(kind).test_batches(3, 3)) == []


def test_the_test_set_comes_in_bounded_batches() -> None:
    data = open_named("synthetic", data_args={"test_samples": 2 * EVALUATION_BATCH + 1, "image_size": 2})
    sizes = [len(targets) for _, targets in data.test_batches(0, data.test_samples)]
    assert sizes == [EVALUATION_BATCH, EVALUATION_BATCH, 1]


def augmented_examples(worker: Worker, kind: str) -> list[tuple[int, bytes]]:
    """(label, pixels) of every example that a rank trains in an epoch of crop_flip."""
    data = open_named(kind, worker, augment="crop_flip", seed=3)
    steps = [batch_bounds(data.samples, 6, step) for step in range(4)]
    weights = even_weights(worker.world_size)
    bounds = []
    for first, end in steps:
        start, stop = shard_bounds(end - first, weights, worker.rank)
        bounds.append((first + start, first + stop))
    batches = data.shards(epoch_order(data.samples, 3, 2), bounds, 2)
    rows = ((int(t), x.numpy().tobytes()) for inputs, targets in batches for x, t in zip(inputs, targets, strict=True))
    return list(rows)


def test_augmented_examples_are_the_same_at_any_world_size_and_either_way(ranks: GlooPool) -> None:
    alone = sorted(augmented_examples(ALONE, "image_tensors"))
    assert sorted(augmented_examples(ALONE, "images")) == alone
    for world_size in (2, 4):
        parts = ranks.run(world_size, augmented_examples, "image_tensors")
        assert sorted(itertools.chain.from_iterable(parts)) == alone


def test_training_images_are_augmented_by_epoch_and_test_images_never() -> None:
    plain, data = open_named("image_tensors"), open_named("image_tensors", augment="crop_flip", seed=3)
    order = epoch_order(20, 3, 1)
    [(images, _)] = list(plain.shards(order, [(0, 20)], 1))
    for epoch in (1, 2):
        [(changed, _)] = list(data.shards(order, [(0, 20)], epoch))
        assert torch.equal(changed, crop_flip(images, order, augmentation_key(3, epoch)))
        assert not torch.equal(changed, images)
    assert same(list(data.test_batches(0, 7)), list(plain.test_batches(0, 7)))


def test_augmentation_needs_images() -> None:
    with pytest.raises(ValueError, match=r"^augment: crop_flip is for images .* \(n, 2\); set it to none$"):
        open_named("synthetic_linear", augment="crop_flip")


def test_the_last_data_set_is_kept_and_only_that() -> None:
    small, large = (make_config(data_args={"train_samples": count}) for count in (64, 128))
    first = load_splits(small, CPU)
    assert load_splits(small, CPU) is first
    assert open_data(large, ALONE).samples == 128
    assert load_splits(small, CPU) is not first


def test_what_fits_lives_on_the_device() -> None:
    assert fits(int(1000 * RESIDENT_SHARE), 1000)
    assert not fits(int(1000 * RESIDENT_SHARE) + 1, 1000)
    assert isinstance(open_named("image_tensors").train, ResidentReader)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        ("tests.support.training.workloads:no_splits", "gave a int; return scalestudy.training.data.Splits"),
        ("nowhere.at_all:load", "no module 'nowhere'"),
    ],
)
def test_a_callable_that_gives_no_data(data: str, found: str) -> None:
    with pytest.raises(ValueError, match=found):
        open_data(make_config(data=data, data_args={}), ALONE)


def test_labels_of_a_dataset_are_checked_when_they_are_read() -> None:
    data = open_named("mislabelled")
    with pytest.raises(DataError, match=r"^data: train targets are 0 to 5, and 3 classes are numbered 0 to 2; "):
        list(data.shards(torch.arange(20), [(0, 6), (6, 20)], 1))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_batches_reach_a_gpu_either_way() -> None:
    gpu = Worker(0, 1, torch.device("cuda", 0))
    order = epoch_order(20, 0, 1)
    resident, dataset = open_named("image_tensors", gpu), open_named("images", gpu)
    assert resident.train.inputs.is_cuda
    splits = load_splits(make_config(data=f"{HERE}:image_tensors", data_args={}), CPU)
    host = TrainingData(
        HostReader(splits.train_inputs, splits.train_targets, gpu.device), resident.test, 3, 1, gpu.device
    )
    expected = list(resident.shards(order, BOUNDS, 1))
    for data in (dataset, host):
        batches = list(data.shards(order, BOUNDS, 1))
        assert all(tensor.is_cuda for batch in batches for tensor in batch)
        assert same(batches, expected)


# --- trainings --------------------------------------------------------------------------------------------------------


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
        model="linear_regression",
        model_args={},
        data="synthetic_linear",
        data_args={"features": 3},
        loss="mse",
        metric="mse",
        batch_size=64,
        epochs=3,
        learning_rate=0.05,
    )
    records = train(config, ALONE).records
    assert records[0].train_loss > 0.05
    assert 0.00008 < records[-1].test_loss < 0.00012
    assert records[-1].to_dict()["test_mse"] == pytest.approx(records[-1].test_loss)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"loss": f"{HERE}:no_such"}, "^loss: .*no callable 'no_such'"),
        ({"metric": "nowhere.at_all:f"}, "^metric: .*no module"),
        ({"loss": "tests.unit.training.test_losses:mean_loss"}, "one value an example"),
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
