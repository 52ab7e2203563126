"""A user's iterable data set as a stream of examples: pass after pass, from any of them on.

A pass is what one call of `__iter__` yields. It must be a function of the data set, of the pass (`set_epoch`) and of
the process's random numbers (random, numpy.random, torch), which are seeded for each pass. Then every rank and every
loader process sees the same stream, and a resumed training that reads a pass again finds the same examples.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from scalestudy.training.data.downloads import DataError
from scalestudy.training.seeding import Generators, cpu_generators, generators_kept, seed_pass, set_cpu_generators

_END = object()


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a stream may begin: before a pass. Its fields are plain data, for checkpoints."""

    epoch: int = 0  # the pass, from 0
    first: int = 0  # number of its first example in the stream, from 0


class Passes:
    """A user's iterable data set, or a rank's part of one."""

    def __init__(self, dataset: Any, what: str) -> None:
        """Take a data set; `what` names it in messages."""
        self.dataset, self.what = dataset, what

    @property
    def shards_itself(self) -> bool:
        """Whether the data set can give each worker a separate part."""
        return callable(getattr(self.dataset, "shard", None))

    def part(self, rank: int, world_size: int) -> Passes:
        """Return a rank's part of a data set that shards itself. Raises DataError if this rank has none."""
        what = f"rank {rank}'s part of {self.what}, one of {world_size},"
        try:
            return Passes(self.dataset.shard(num_shards=world_size, index=rank), what)
        except IndexError as error:  # of Hugging Face's data sets, with fewer files than ranks
            raise DataError(f"data: {what} can't be had ({error})", "give more files, or fewer workers") from error

    def first(self, most: int, seed: int = 0) -> list[Any]:
        """Return at most so many of its first examples. Raises DataError if there are none."""
        examples = Stream(self, seed, endless=False).take(most)
        if not examples:
            raise self.is_empty(0)
        return examples

    def is_empty(self, epoch: int) -> DataError:
        """Return the error for a pass without examples."""
        when = f" in pass {epoch + 1}" if epoch else ""
        remedy = "let every call of __iter__ yield all examples anew" if epoch else "give it examples"
        return DataError(f"data: {self.what} has no examples{when}", remedy)


class Stream:
    """The examples of a data set from a pass on. Reading leaves the process's generators as they were."""

    def __init__(self, passes: Passes, seed: int, place: Place | None = None, *, endless: bool) -> None:
        """Begin a stream. `endless`: pass after pass, for training; else the first pass alone, for an evaluation."""
        self.place = place or Place()  # the pass in progress
        self.example = self.place.first  # number of the next one, from 0
        self._passes, self._seed, self._endless = passes, seed, endless
        self._items: Iterator[Any] | None = None
        self._generators: Generators

    def take(self, most: int) -> list[Any]:
        """Return the next examples; fewer than so many at the end. Raises DataError for a pass without examples."""
        with self._reading():
            return list(self._next(most))

    def skip_to(self, example: int) -> None:
        """Read the examples before this one, and drop them."""
        if example > self.example:
            with self._reading():
                for _ in self._next(example - self.example):
                    pass

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Use the stream's generators."""
        with generators_kept():
            if self._items is None:
                self._begin_pass()
            else:
                set_cpu_generators(self._generators)
            yield
            self._generators = cpu_generators()

    def _begin_pass(self) -> None:
        dataset, epoch = self._passes.dataset, self.place.epoch
        seed_pass(self._seed, epoch + 1 if self._endless else 0)
        if hasattr(dataset, "set_epoch"):
            dataset.set_epoch(epoch)
        self._items = iter(dataset)

    def _next(self, count: int) -> Iterator[Any]:
        while count > 0:
            assert self._items is not None  # `_reading` begins it
            item = next(self._items, _END)
            if item is not _END:
                count, self.example = count - 1, self.example + 1
                yield item
            elif not self._endless:
                return
            elif self.example == self.place.first:
                raise self._passes.is_empty(self.place.epoch)
            else:
                self.place = Place(epoch=self.place.epoch + 1, first=self.example)
                self._begin_pass()
