"""The space that a search chooses points from, and the choice by chance. Pure.

A point, or cell, is every swept parameter except the seed. A list and the chosen points are choices, each value as
likely as another; a range is drawn from evenly, or evenly over magnitudes.
"""

import itertools
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalestudy.experiments.spec.errors import alternatives
from scalestudy.experiments.spec.sections import Range
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.experiments.spec.sweep import ITEMS, Sweep

TRIES = 100
"""Draws for a new point; a space with ranges of few whole numbers may have no more."""

Cell = dict[str, Any]


@dataclass(frozen=True)
class Space:
    """choices: for each list, and for the chosen points, the parameters that one option sets. ranges: by parameter."""

    choices: tuple[tuple[Cell, ...], ...]
    ranges: Mapping[str, Range]

    @classmethod
    def of(cls, sweep: Sweep) -> "Space":
        """The space of a spec's sweep."""
        lists = {key: values for key, values in sweep.lists().items() if key != "seed"}
        choices = [tuple({key: value} for value in values) for key, values in lists.items()]
        return cls(((sweep.points or ({},)), *choices), sweep.ranges())

    @property
    def count(self) -> float:
        """How many points it has; infinity where a range is not of whole numbers."""
        return math.prod((*map(len, self.choices), *(each.count for each in self.ranges.values())))

    def cell(self, options: Sequence[int], drawn: Mapping[str, Any]) -> Cell:
        """The point of one option of each choice and a number of each range."""
        merged = dict(drawn)
        for choice, option in zip(self.choices, options, strict=True):
            merged.update(choice[option])
        return ordered(merged)

    def corners(self) -> Iterator[Cell]:
        """Every option of each choice with the bounds of each range."""
        bounds = [(each.low, each.high) for each in self.ranges.values()]
        for options in itertools.product(*(range(len(choice)) for choice in self.choices)):
            for drawn in itertools.product(*bounds):
                yield self.cell(options, dict(zip(self.ranges, drawn, strict=True)))

    def sample(self, count: int, seed: int) -> list[Cell]:
        """So many different points, or all where there are fewer; more of them begin with the same ones.

        Only `random.random` is used, the one generator that Python keeps the same over its versions.
        """
        generator = random.Random(seed)
        if self.ranges:
            return self._drawn(count, generator)
        sizes = [len(choice) for choice in self.choices]
        return [self.cell(_digits(number, sizes), {}) for number in _shuffled(math.prod(sizes), count, generator)]

    def _drawn(self, count: int, generator: random.Random) -> list[Cell]:
        found: dict[str, Cell] = {}
        for _ in range(count):
            for _ in range(TRIES):
                options = [int(generator.random() * len(choice)) for choice in self.choices]
                cell = self.cell(options, {key: each.at(generator.random()) for key, each in self.ranges.items()})
                if cell_key(cell) not in found:
                    found[cell_key(cell)] = cell
                    break
        return list(found.values())


@dataclass(frozen=True, kw_only=True)
class ToSuggest:
    """What a search makes while the study runs.

    method: of the search. points: that it suggests. seeds: trials of each point. epochs: of a trial, the most.
    sizes: each num_gpus that a trial may have, ascending. space: by parameter, the values or the range in words.
    """

    method: str
    points: int
    seeds: int
    epochs: int
    sizes: tuple[int, ...]
    space: dict[str, str]

    @classmethod
    def of(cls, spec: StudySpec) -> "ToSuggest":
        """What a spec's search makes."""
        space, sweep = Space.of(spec.sweep), spec.sweep
        gpus = sweep.ranges().get("num_gpus")
        lists = {key: alternatives(values) for key, values in sweep.lists().items() if key != "seed"}
        return cls(
            method=spec.search.method,
            points=int(min(spec.search.samples, space.count)),
            seeds=len(sweep.seed or ()),
            epochs=max(sweep.values_of("train.epochs") or [spec.train.epochs]),
            sizes=tuple(range(int(gpus.low), int(gpus.high) + 1) if gpus else sorted(sweep.values_of("num_gpus"))),
            space=ordered({**lists, **{key: values.text for key, values in sweep.ranges().items()}}),
        )

    @property
    def trials(self) -> int:
        """At most; a point that is suggested again is not run again."""
        return self.points * self.seeds


@dataclass(frozen=True, kw_only=True)
class Factorised:
    """How a factorised study divides its grid (docs/formulas.md §7).

    train_on: num_gpus of the trainings. sizes: each num_gpus of the grid, ascending. held_out: cells with another
    num_gpus that are run in full, with all seeds, so many as there are at most.

    Why train_on is the smallest unless the spec says otherwise: more workers are never more efficient, so that it
    costs fewest GPU-seconds; and as the trainings' times do not count, they run side by side where they fit, so that
    it also ends soonest wherever all GPUs are busy. Rejected: the one that earlier timings make the fastest, for a plan
    and its ids would then depend on what lies in the storage, and an extended study could lose its trainings.
    """

    train_on: int
    sizes: tuple[int, ...]
    held_out: int

    @classmethod
    def of(cls, spec: StudySpec) -> "Factorised":
        """How a spec's grid is divided."""
        sizes, search = tuple(sorted(spec.sweep.values_of("num_gpus"))), spec.search
        train_on = sizes[0] if search.train_on is None else search.train_on
        return cls(train_on=train_on, sizes=sizes, held_out=search.held_out)

    def cells_held_out(self, trained: int) -> int:
        """How many cells are held out where so many are trained."""
        return min(self.held_out, (len(self.sizes) - 1) * trained)


def cell_key(cell: Mapping[str, Any]) -> str:
    """A point as text, the same for equal ones."""
    return json.dumps(cell, sort_keys=True)


def ordered(params: Mapping[str, Any]) -> Cell:
    """The parameters as trials have them: num_gpus, batch_size, learning_rate and seed first."""
    first = [key for key in ITEMS if key in params]
    return {key: params[key] for key in (*first, *(key for key in params if key not in ITEMS))}


def _shuffled(size: int, count: int, generator: random.Random) -> list[int]:
    """The first `count` of the numbers below `size` in an order by chance (Fisher and Yates), without making all."""
    moved: dict[int, int] = {}
    chosen = []
    for position in range(min(count, size)):
        other = position + int(generator.random() * (size - position))
        chosen.append(moved.get(other, other))
        moved[other] = moved.get(position, position)
    return chosen


def _digits(number: int, sizes: Sequence[int]) -> list[int]:
    """A number's digits where each place has its own base, the last one the fastest."""
    digits = []
    for size in reversed(sizes):
        number, digit = divmod(number, size)
        digits.append(digit)
    return digits[::-1]
