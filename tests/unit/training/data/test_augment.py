"""Augmentation: random numbers keyed by example, every outcome equally likely, the same anywhere."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

from scalestudy.training.config import TrainConfig, keys
from scalestudy.training.data.loading import AUGMENTATIONS, PADDING, crop_flip, random_words
from scalestudy.training.distributed import Worker
from scalestudy.training.seeding import augmentation_key
from tests.support.gloo import GlooPool

PLACES = 2 * PADDING + 1


def test_every_name_of_the_config_is_there() -> None:
    assert [set(AUGMENTATIONS)] == [set(key.choices) for key in keys(TrainConfig) if key.name == "augment"]


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


def augmented_part(worker: Worker) -> list[tuple[int, list[float]]]:
    """(example, its first row) for the part of 32 shuffled examples that a rank gets."""
    images = torch.rand(32, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    order = torch.randperm(32, generator=torch.Generator().manual_seed(1))
    mine = order[worker.rank :: worker.world_size]
    changed = crop_flip(images[mine], mine, augmentation_key(5, 2))
    return list(zip(mine.tolist(), changed[:, 0, 0].tolist(), strict=True))


def test_examples_are_the_same_at_any_world_size(ranks: GlooPool) -> None:
    alone = sorted(augmented_part(Worker(0, 1, torch.device("cpu"))))
    for world_size in (2, 4):
        parts = ranks.run(world_size, augmented_part)
        assert sorted(itertools.chain.from_iterable(parts)) == alone


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_changes_images_as_a_cpu_does() -> None:
    images, examples = torch.rand(100, 3, 32, 32), torch.randperm(60_000)[:100]
    key = augmentation_key(2, 3)
    assert torch.equal(random_words(examples.cuda(), key).cpu(), random_words(examples, key))
    assert torch.equal(crop_flip(images.cuda(), examples.cuda(), key).cpu(), crop_flip(images, examples, key))
