"""A user's iterable data set as a stream of examples: pass after pass, from any place.

What a pass yields must be a function of the data set, of the pass (`set_epoch`) and of the process's random numbers
(random, numpy.random, torch), which are seeded for each pass. Then every rank and every loader process sees the same
stream, and a stream can resume at any place.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from scalestudy.training.data.downloads import DataError
from scalestudy.training.seeding import (
    Generators,
    cpu_generators,
    generators_from,
    generators_kept,
    plain_generators,
    seed_pass,
    set_cpu_generators,
)

_END = object()


@dataclass(frozen=True, kw_only=True)
class Place:
    """A place in a stream, before example number `example`. Its fields are plain data, for checkpoints."""

    example: int = 0  # of all passes, from 0
    epoch: int = 0  # the pass in progress, from 0
    offset: int = 0  # examples of that pass that lie behind
    state: Any = None  # of a data set that has a state
    generators: Any = None  # with such a state: the random generators' state there; None: a place without it


class Passes:
    """A user's iterable data set, or a rank's part of one. All its streams begin the same way."""

    def __init__(self, dataset: Any, what: str) -> None:
        """Take a data set of which no pass is begun; `what` names it in messages."""
        self.dataset, self.what = dataset, what
        self.has_state = callable(getattr(dataset, "state_dict", None)) and hasattr(dataset, "load_state_dict")
        self._before = copy.deepcopy(dataset.state_dict()) if self.has_state else None

    @property
    def shards_itself(self) -> bool:
        """Whether the data set can give each worker a separate part."""
        return callable(getattr(self.dataset, "shard", None))

    def part(self, rank: int, world_size: int) -> Passes:
        """Return a rank's part of a data set that shards itself. Raises DataError if this rank has none."""
        self.rewind()
        what = f"rank {rank}'s part of {self.what}, one of {world_size},"
        try:
            return Passes(self.dataset.shard(num_shards=world_size, index=rank), what)
        except IndexError as error:  # of Hugging Face's data sets, with fewer files than ranks
            raise DataError(f"data: {what} can't be had ({error})", "give more files, or fewer workers") from error

    def rewind(self) -> None:
        """Put a data set that has a state back to where no pass of it is begun."""
        if self.has_state:
            self.dataset.load_state_dict(copy.deepcopy(self._before))

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
    """The examples of a data set from a place on. Reading leaves the process's generators as they were."""

    def __init__(self, passes: Passes, seed: int, place: Place | None = None, *, endless: bool) -> None:
        """Begin a stream. `endless`: pass after pass, for training; else the first pass alone, for an evaluation."""
        place = place or Place()
        self.example = place.example
        self._passes, self._seed, self._from, self._endless = passes, seed, place, endless
        self._epoch, self._offset = place.epoch, 0
        self._items: Iterator[Any] | None = None
        self._generators: Generators

    def take(self, most: int) -> list[Any]:
        """Return the next examples; fewer than so many at the end. Raises DataError for a pass without examples."""
        with self._reading():
            return list(self._next(most))

    def skip(self, count: int) -> None:
        """Read `count` examples, and drop them."""
        if count:
            with self._reading():
                self._drop(count)

    @property
    def place(self) -> Place:
        """Where it is."""
        place = {"example": self.example, "epoch": self._epoch, "offset": self._offset}
        if not self._passes.has_state or self._items is None:
            return Place(**place)
        state = copy.deepcopy(self._passes.dataset.state_dict())
        return Place(**place, state=state, generators=plain_generators(self._generators))

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Use the stream's generators."""
        with generators_kept():
            if self._items is None:
                self._begin_at_place()
            else:
                set_cpu_generators(self._generators)
            yield
            self._generators = cpu_generators()

    def _begin_at_place(self) -> None:
        place = self._from
        has_state = place.generators is not None and self._passes.has_state
        if not has_state:
            self._passes.rewind()
        self._begin_pass(place.state if has_state else _END)
        if has_state:
            set_cpu_generators(generators_from(place.generators))
            self._offset = place.offset
            return
        self.example -= place.offset
        self._drop(place.offset)

    def _begin_pass(self, state: Any = _END) -> None:
        dataset = self._passes.dataset
        seed_pass(self._seed, self._epoch + 1 if self._endless else 0)
        if hasattr(dataset, "set_epoch"):
            dataset.set_epoch(self._epoch)
        if state is not _END:
            dataset.load_state_dict(copy.deepcopy(state))
        self._items, self._offset = iter(dataset), 0

    def _drop(self, count: int) -> None:
        for _ in self._next(count):
            pass

    def _next(self, count: int) -> Iterator[Any]:
        while count > 0:
            assert self._items is not None  # `_reading` begins it
            item = next(self._items, _END)
            if item is not _END:
                count, self.example, self._offset = count - 1, self.example + 1, self._offset + 1
                yield item
            elif not self._endless:
                return
            elif not self._offset:
                raise self._passes.is_empty(self._epoch)
            else:
                self._epoch += 1
                self._begin_pass()
