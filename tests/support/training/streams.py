"""Iterable data sets as users write them; the tests name their callables by import path.

Loader processes import this file: it leads to no optimizer, which takes a second of a core to import.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from docs.examples import tagger
from scalestudy.training.data import DatasetSplits, Splits


class Counting(IterableDataset[Any]):
    """The numbers 0 … count - 1 with the pass's number, as pairs of a tensor (1,) and a class."""

    def __init__(self, count: int) -> None:
        self.count, self.epoch = count, -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.count):
            yield torch.tensor([float(self.epoch), float(number)]), number % 3


class Unread(Counting):
    """Can't be unpickled."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        raise OSError("the archive is gone")


class Drawing(IterableDataset[Any]):
    """Shuffles by the process's three generators, in a buffer, while it is read: (numbers (6,) float64, a class)."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[Any]:
        buffer = [self._draw() for _ in range(5)]
        for _ in range(self.count - 5):
            yield buffer.pop(random.randrange(5))
            buffer.append(self._draw())
        yield from buffer

    def _draw(self) -> Any:
        inputs = torch.randn(6, dtype=torch.float64) + np.random.rand()
        return inputs, int(inputs[:3].argmax())


class Sharded(Counting):
    """Gives each worker every n-th example, by the method of Hugging Face's data sets."""

    def __init__(self, count: int, num_shards: int = 1, index: int = 0) -> None:
        super().__init__(count)
        self.num_shards, self.index = num_shards, index

    def shard(self, num_shards: int, index: int) -> Sharded:
        return Sharded(self.count, num_shards, index)

    def __iter__(self) -> Iterator[Any]:
        for number, example in enumerate(super().__iter__()):
            if number % self.num_shards == self.index:
                yield example


class FewFiles(Sharded):
    """Has too few files for all workers."""

    def shard(self, num_shards: int, index: int) -> Sharded:
        return super().shard(num_shards, [0][index])


class SplitByLoader(Counting):
    """As torch's page tells: in a loader process it yields a part of its examples alone."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        for number, example in enumerate(super().__iter__()):
            if info is None or number % info.num_workers == info.id:
                yield example


class Once(Counting):
    """The mistake of a data set that can be read only once."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.left = list(range(count))

    def __iter__(self) -> Iterator[Any]:
        while self.left:
            yield torch.tensor([0.0, float(self.left.pop())]), 0


class TextStream(IterableDataset[Any]):
    """The tagger's texts, of different lengths, in an order that each pass draws."""

    def __init__(self, count: int, seed: int) -> None:
        self.texts = tagger.Texts(count, 30, seed)

    def __iter__(self) -> Iterator[Any]:
        for index in torch.randperm(len(self.texts)).tolist():
            yield self.texts[index]


class Listed(IterableDataset[Any]):
    """The same examples in each pass."""

    def __init__(self, examples: Any) -> None:
        self.examples = examples

    def __iter__(self) -> Iterator[Any]:
        return iter(self.examples)


def drawing(root: str) -> DatasetSplits:
    """For `tests.support.training.tasks:Examples`: six numbers and one of three classes."""
    return Splits.from_datasets(Drawing(50), Drawing(37))


def counted(root: str, kind: str = "Counting", count: int = 20, tests: int = 9, tests_kind: str = "") -> DatasetSplits:
    """Pairs of two numbers and one of three classes."""
    train, test = globals()[kind](count), globals()[tests_kind or kind](tests)
    return Splits.from_datasets(train, test, num_classes=3, in_channels=2)


def texts(root: str) -> DatasetSplits:
    """The tagger's task on a stream, with an iterable test set."""
    facts = {"vocabulary": 30, "tags": tagger.TAGS}
    return Splits.from_datasets(TextStream(50, 0), TextStream(37, 1), collate=tagger.collate, for_model=facts)


def pictures(root: str) -> DatasetSplits:
    """Pictures of bytes (1, 8, 8) from a stream, and a test set with a length."""
    examples = [(torch.full((1, 8, 8), index, dtype=torch.uint8), index % 3) for index in range(20)]
    return Splits.from_datasets(Listed(examples), examples, num_classes=3)  # type: ignore[arg-type]


def linear(num_classes: int, in_channels: int) -> torch.nn.Module:
    """A model of the counted numbers."""
    return torch.nn.Linear(in_channels, num_classes)
