"""A worker's data: the same batches whichever way they come, the cache, augmentation, errors; and trainings on it."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from scalestudy.training.batches import batch_bounds, even_weights, shard_bounds
from scalestudy.training.config import TrainConfig
from scalestudy.training.data import DataError, DatasetSplits, Splits
from scalestudy.training.data.loading import (
    AUGMENTATIONS,
    EVALUATION_BATCH,
    PADDING,
    RESIDENT_SHARE,
    TrainingData,
    crop_flip,
    fits,
    load_splits,
    open_data,
    random_words,
)
from scalestudy.training.data.readers import HostReader, ResidentReader
from scalestudy.training.distributed import Worker
from scalestudy.training.registry import DATASETS
from scalestudy.training.section import choices_of
from scalestudy.training.seeding import augmentation_key, epoch_order
from tests.support.gloo import GlooPool
from tests.support.training.helpers import (
    ALONE,
    make_config,
    run_training,
    same_bits,
    smallest_movement,
    train,
)
from tests.unit.training.data.datasets import Images

CPU = torch.device("cpu")
HERE = "tests.unit.training.data.test_loading"
BOUNDS = [(0, 6), (6, 6), (8, 15), (15, 20)]


class Mislabelled(Images):
    """Example 7 is of class 5."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image, target = super().__getitem__(index)
        return image, 5 if index == 7 else target


def images(root: str | None, train_samples: int = 20, test_samples: int = 7) -> DatasetSplits:
    """A user's data set."""
    return Splits.from_datasets(Images(train_samples), Images(test_samples), num_classes=3)


def image_tensors(root: str | None, train_samples: int = 20, test_samples: int = 7) -> Splits:
    """The same as tensors."""
    parts = [
        torch.stack(column) if torch.is_tensor(column[0]) else torch.tensor(column)
        for count in (train_samples, test_samples)
        for column in zip(*(Images(count)[index] for index in range(count)), strict=True)
    ]
    return Splits(*parts, num_classes=3)


def mislabelled(root: str | None) -> DatasetSplits:
    """One label among many is out of range."""
    return Splits.from_datasets(Mislabelled(20), Images(7), num_classes=3)


def linear(num_classes: int, in_channels: int) -> nn.Module:
    """A model for these images."""
    return nn.Sequential(nn.Flatten(), nn.Linear(24 * in_channels, num_classes))


def open_named(name: str, worker: Worker = ALONE, **changes: Any) -> TrainingData:
    """The data of a callable above, or of a built-in name."""
    data = name if name in DATASETS else f"{HERE}:{name}"
    return open_data(make_config(**{"data": data, "data_args": {}, "batch_size": 6, **changes}), worker)


def one_way(kind: str) -> TrainingData:
    """The same 20 + 7 images: tensors on the device, tensors from the host, a torch data set."""
    data = open_named("images" if kind == "dataset" else "image_tensors")
    if kind != "host":
        return data
    splits = load_splits(make_config(data=f"{HERE}:image_tensors", data_args={}), CPU)
    assert isinstance(splits, Splits)
    return TrainingData(HostReader(splits.train, CPU), HostReader(splits.test, CPU), (3, 1), 3, CPU)


def same(one: list[Any], other: list[Any]) -> bool:
    """To the bit, types included."""
    pairs = zip(itertools.chain.from_iterable(one), itertools.chain.from_iterable(other), strict=True)
    return all(a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("kind", ["resident", "host", "dataset"])
def test_every_way_gives_the_same_batches(kind: str) -> None:
    data = one_way(kind)
    assert (data.samples, data.test_samples, data.num_classes, data.for_model) == (20, 7, 3, (3, 1))
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


def drawn(root: object) -> Splits:
    """Draws from the process's generators."""
    inputs = torch.rand(8, 1) + random.random() + np.random.rand()
    return Splits(inputs, torch.zeros(8, dtype=torch.int64), inputs, torch.zeros(8, dtype=torch.int64), 2)


def test_a_set_that_is_drawn_is_the_same_whatever_was_drawn_before_and_leaves_the_generators_as_they_were() -> None:
    config, found = make_config(data=f"{__name__}:drawn", data_args={}), []
    for seed in (1, 2):
        torch.manual_seed(seed)
        random.seed(seed)
        before = torch.get_rng_state()
        found.append(load_splits(config, CPU))
        assert torch.equal(torch.get_rng_state(), before)
        load_splits(make_config(data_args={"train_samples": 64}), CPU)  # forgets it
    assert torch.equal(found[0].train_inputs, found[1].train_inputs)


def test_a_set_that_was_changed_in_place_is_loaded_again() -> None:
    config = make_config(data_args={"train_samples": 64})
    first = load_splits(config, CPU)
    whole = first.test_inputs.clone()
    first.test_inputs[:2].mul_(2)
    assert torch.equal(load_splits(config, CPU).test_inputs, whole)


def test_what_fits_lives_on_the_device() -> None:
    assert fits(int(1000 * RESIDENT_SHARE), 1000)
    assert not fits(int(1000 * RESIDENT_SHARE) + 1, 1000)
    assert isinstance(open_named("image_tensors").train, ResidentReader)


def no_splits(root: str | None) -> int:
    """Not a data set."""
    return 0


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (f"{__name__}:no_splits", "gave a int; return scalestudy.training.data.Splits"),
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
    assert resident.train.empty[0].is_cuda
    splits = load_splits(make_config(data=f"{HERE}:image_tensors", data_args={}), CPU)
    host = TrainingData(HostReader(splits.train, gpu.device), resident.test, (3, 1), 3, gpu.device)
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


# --- augmentation: random numbers keyed by example, every outcome equally likely, the same anywhere -------------------


PLACES = 2 * PADDING + 1


def test_every_name_of_the_config_is_there() -> None:
    assert [set(AUGMENTATIONS)] == [set(choices_of(TrainConfig.model_fields["augment"]))]


def splitmix64(key: int, number: int) -> int:
    """The published algorithm, on Python's own whole numbers, as a signed number."""
    word = (key + (number + 1) * 0x9E3779B97F4A7C15) % 2**64
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % 2**64
    word ^= word >> 31
    return word - 2**64 if word >= 2**63 else word


@pytest.mark.parametrize("key", [0, 1, 2**63 - 1, 0x123456789ABCDEF])
def test_words_are_splitmix64(key: int) -> None:
    """1 << 40 and beyond: no data set is as long, and the arithmetic wraps around all the same."""
    examples = [0, 1, 2, 59_999, 2**40, 2**62]
    words = random_words(torch.tensor(examples), key)
    assert words.tolist() == [splitmix64(key, example) for example in examples]


def test_the_first_word_is_the_published_one() -> None:
    """SplitMix64 seeded with 1234567 gives 6457827717110365317, 3203168211198807973 (Rosetta Code's test values)."""
    assert random_words(torch.tensor([0, 1]), 1234567).tolist() == [6457827717110365317, 3203168211198807973]


def outcomes(count: int, key: int) -> torch.Tensor:
    """(count, 3): the row and the column of each crop, and whether it is mirrored, read from images that tell.

    A pixel's two channels hold its row and its column, from 1; the middle of the crop lies inside the image always.
    """
    size = PLACES + 2
    grid = torch.stack(torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")).float() + 1
    images = crop_flip(grid.expand(count, -1, -1, -1), torch.arange(count), key)
    middle = size // 2
    rows, columns = images[:, :, middle, middle].T
    mirrored = images[:, 1, middle, middle + 1] < columns
    shift = torch.where(mirrored, size - 1 - middle, middle)
    return torch.stack([rows - 1 - middle + PADDING, columns - 1 - shift + PADDING, mirrored], dim=1).long()


def test_every_outcome_is_equally_likely() -> None:
    """Pearson's χ² over 9 · 9 · 2 = 162 cells, 161 degrees of freedom: mean 161, deviation √322 = 18; ± 5 of these."""
    count = 162 * 100
    rows, columns, mirrored = outcomes(count, augmentation_key(0, 1)).T
    cells = torch.bincount((rows * PLACES + columns) * 2 + mirrored, minlength=162).double()
    assert len(cells) == 162
    assert 161 - 5 * 18 < ((cells - 100) ** 2 / 100).sum().item() < 161 + 5 * 18


def test_neighbours_and_epochs_are_independent() -> None:
    """Of 10,000 pairs 1 in 162 has the same outcome, 62 ± 8 (one deviation)."""
    count = 10_000
    now, later = (outcomes(count, augmentation_key(0, epoch)) for epoch in (1, 2))
    for one, other in ((now, later), (now[1:], now[:-1]), (now, outcomes(count, augmentation_key(1, 1)))):
        same = (one == other).all(dim=1).sum().item()
        assert abs(same - len(one) / 162) < 5 * 8


def one_by_one(image: torch.Tensor, top: int, left: int, mirrored: int) -> torch.Tensor:
    """The plain way: pad, cut out, mirror."""
    height, width = image.shape[1:]
    cut = F.pad(image, (PADDING,) * 4)[:, top : top + height, left : left + width]
    return cut.flip(2) if mirrored else cut


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (2, 5, 9)])
def test_a_batch_is_changed_as_its_images_are_one_by_one(shape: tuple[int, ...]) -> None:
    images = torch.rand(64, *shape)
    changed = crop_flip(images, torch.arange(64), 7)
    for image, ours, how in zip(images, changed, outcomes(64, 7).tolist(), strict=True):
        assert torch.equal(ours, one_by_one(image, *how))


def test_an_example_does_not_depend_on_its_batch() -> None:
    images, order = torch.rand(50, 3, 8, 8), torch.randperm(50)
    whole = crop_flip(images, torch.arange(50), 3)
    parts = [crop_flip(images[chosen], chosen, 3) for chosen in order.split(7)]
    assert torch.equal(torch.cat(parts), whole[order])
    assert crop_flip(images[:0], order[:0], 3).shape == (0, 3, 8, 8)


def test_images_in_channels_last_order_are_changed_alike() -> None:
    images = torch.rand(10, 3, 8, 8)
    reordered = images.contiguous(memory_format=torch.channels_last)
    assert torch.equal(crop_flip(reordered, torch.arange(10), 3), crop_flip(images, torch.arange(10), 3))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_changes_images_as_a_cpu_does() -> None:
    images, examples = torch.rand(100, 3, 32, 32), torch.randperm(60_000)[:100]
    key = augmentation_key(2, 3)
    assert torch.equal(random_words(examples.cuda(), key).cpu(), random_words(examples, key))
    assert torch.equal(crop_flip(images.cuda(), examples.cuda(), key).cpu(), crop_flip(images, examples, key))


# --- bytes, and tensors of any form -----------------------------------------------------------------------------------


def byte_images(root: str | None) -> Splits:
    """20 + 7 images of bytes."""
    images = torch.arange(27 * 24).remainder(256).to(torch.uint8).view(27, 1, 4, 6)
    labels = torch.arange(27) % 3
    return Splits(images[:20], labels[:20], images[20:], labels[20:], num_classes=3)


def named_tensors(root: str | None) -> Splits:
    """20 + 7 examples by name."""
    images = byte_images(None).train_inputs
    return Splits.from_tensors({"image": images}, {"image": images[:7]})  # type: ignore[return-value]


def open_here(name: str) -> TrainingData:
    """A data set of this file."""
    return open_data(make_config(data=f"{__name__}:{name}", data_args={}, batch_size=6), ALONE)


def test_bytes_are_scaled_on_the_way_and_stay_as_they_are() -> None:
    data = open_here("byte_images")
    before = data.test.empty[0].dtype, data.test.examples[0].clone()
    for _ in range(2):  # an evaluation leaves the set as it was
        (inputs, _), *_ = data.test_batches(0, 7)
        assert torch.equal(inputs, before[1].float() / 255)
    (inputs, _), *_ = data.shards(torch.arange(20), [(0, 6)], 1)
    assert (inputs.dtype, inputs.max().item()) == (torch.float32, pytest.approx(143 / 255))
    assert (before[0], data.test.examples[0].dtype) == (torch.uint8, torch.uint8)


def test_tensors_of_any_form_live_on_the_device_that_has_room() -> None:
    config = make_config(data=f"{__name__}:named_tensors", data_args={}, task="my_task:Task", metric="f1")
    splits = load_splits(config, torch.device("meta"))
    assert splits.train["image"].device.type == "meta"
    load_splits(make_config(), CPU)  # forgets them


def test_data_of_any_form_needs_a_task() -> None:
    with pytest.raises(DataError, match="which only a task understands"):
        open_here("named_tensors")
