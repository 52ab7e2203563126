"""The space that a search chooses points from, and the random choice. Pure.

A point, or cell, is every swept parameter except the seed. The values of a list are equally likely, and so are the
chosen points. A range is drawn evenly, or evenly over magnitudes.
"""

import itertools
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalestudy.experiments.spec.sections import Range
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.experiments.spec.sweep_section import ITEMS, Sweep
from scalestudy.training.section import alternatives

TRIES = 100
"""Draws for one new point. A space of short ranges of whole numbers may have no new one left."""

Cell = dict[str, Any]

SEARCHED = ("num_gpus", "batch_size", "learning_rate")
"""Parameters that an adaptive search varies."""


@dataclass(frozen=True)
class Space:
    """All points that a sweep allows.

    An option of a choice sets one or more parameters.
    """

    choices: tuple[tuple[Cell, ...], ...]  # one for each list and one for the chosen points
    ranges: Mapping[str, Range]  # by parameter

    @classmethod
    def of(cls, sweep: Sweep) -> "Space":
        """Return the space of a spec's sweep."""
        lists = {key: values for key, values in sweep.lists().items() if key != "seed"}
        choices = [tuple({key: value} for value in values) for key, values in lists.items()]
        return cls(((sweep.points or ({},)), *choices), sweep.ranges())

    @property
    def count(self) -> float:
        """Number of points. Infinity if a range is not of whole numbers."""
        return math.prod((*map(len, self.choices), *(each.count for each in self.ranges.values())))

    def cell(self, options: Sequence[int], drawn: Mapping[str, Any]) -> Cell:
        """Return the point with these options, one for each choice, and these numbers, one for each range."""
        merged = dict(drawn)
        for choice, option in zip(self.choices, options, strict=True):
            merged.update(choice[option])
        return ordered(merged)

    def corners(self) -> Iterator[Cell]:
        """Return every option of every choice, with the bounds of every range."""
        bounds = [(each.low, each.high) for each in self.ranges.values()]
        for options in itertools.product(*(range(len(choice)) for choice in self.choices)):
            for drawn in itertools.product(*bounds):
                yield self.cell(options, dict(zip(self.ranges, drawn, strict=True)))

    def sample(self, count: int, seed: int) -> list[Cell]:
        """Draw this many different points, or all if there are fewer. A larger count begins with the same points.

        Only `random.random` is used, the one generator that Python keeps the same over its versions.
        """
        generator = random.Random(seed)
        by_key: dict[str, Cell] = {}
        if self.ranges:
            for _ in range(count):
                for _ in range(TRIES):
                    options = [int(generator.random() * len(choice)) for choice in self.choices]
                    cell = self.cell(options, {key: each.at(generator.random()) for key, each in self.ranges.items()})
                    if cell_key(cell) not in by_key:
                        by_key[cell_key(cell)] = cell
                        break
            return list(by_key.values())

        # Number all points, and shuffle the numbers (Fisher and Yates) without making all of them.
        size = math.prod(len(choice) for choice in self.choices)
        moved: dict[int, int] = {}
        cells = []
        for position in range(min(count, size)):
            other = position + int(generator.random() * (size - position))
            number = moved.get(other, other)
            moved[other] = moved.get(position, position)
            options = []
            for choice in reversed(self.choices):  # the digits of the number; the last choice changes fastest
                number, option = divmod(number, len(choice))
                options.append(option)
            cells.append(self.cell(options[::-1], {}))
        return cells


def stated_values(spec: StudySpec) -> dict[str, tuple[Any, ...]]:
    """Return the values of num_gpus (workers), batch_size (examples a step, all workers together) and learning_rate.

    A list gives its values in its order, a range points an octave apart, ascending (`Range.octaves`). A key that only
    `sweep.points` have is left out.
    """
    lists, ranges = spec.sweep.lists(), spec.sweep.ranges()
    return {
        key: ranges[key].octaves if key in ranges else lists[key] for key in SEARCHED if key in ranges or key in lists
    }


def stated_places(spec: StudySpec) -> list[Cell]:
    """Return the places of an adaptive search: every combination of the `stated_values`, as cells.

    A cell has num_gpus, batch_size, learning_rate, then the one value of each other swept key, and no seed; num_gpus
    changes slowest. A combination with fewer examples than workers is left out.
    """
    values = stated_values(spec)
    others = {key: listed[0] for key, listed in spec.sweep.lists().items() if key not in (*SEARCHED, "seed")}
    cells = [
        ordered({**dict(zip(values, combination, strict=True)), **others})
        for combination in itertools.product(*values.values())
    ]
    return [cell for cell in cells if cell["batch_size"] >= cell["num_gpus"]]


@dataclass(frozen=True, kw_only=True)
class ToSuggest:
    """What a search makes while the study runs."""

    method: str  # of the search
    points: int  # how many it suggests; of an adaptive search, the places that it chooses among
    seeds: int  # trials of each point; of an adaptive search 1: it decides how many
    epochs: int  # the most evaluations that a trial has
    sizes: tuple[int, ...]  # each num_gpus that a trial may have, ascending
    space: dict[str, str]  # by parameter, the values or the range in words
    budget_trials: int | None = None  # the most trainings of an adaptive search; None: another budget bounds it

    @classmethod
    def of(cls, spec: StudySpec) -> "ToSuggest":
        """Return what the search of a spec makes."""
        space, sweep = Space.of(spec.sweep), spec.sweep
        gpus = sweep.ranges().get("num_gpus")
        lists = {key: alternatives(values) for key, values in sweep.lists().items() if key != "seed"}
        if spec.is_adaptive:
            places = stated_places(spec)
            stated = {key: alternatives(values) for key, values in stated_values(spec).items()}
            return cls(
                method=spec.search.method,
                points=len(places),
                seeds=1,
                epochs=spec.evaluations,
                sizes=tuple(sorted({cell["num_gpus"] for cell in places})),
                space=ordered({**lists, **stated}),
                budget_trials=spec.budget.trials,
            )
        return cls(
            method=spec.search.method,
            points=int(min(spec.search.samples, space.count)),
            seeds=len(sweep.seed or ()),
            epochs=spec.evaluations,
            sizes=tuple(range(int(gpus.low), int(gpus.high) + 1) if gpus else sorted(sweep.values_of("num_gpus"))),
            space=ordered({**lists, **{key: values.text for key, values in sweep.ranges().items()}}),
        )

    @property
    def trials(self) -> int:
        """The most trials. A point that is suggested twice runs once. 0: nothing bounds their number beforehand."""
        return (self.budget_trials or 0) if self.method == "adaptive" else self.points * self.seeds


def cell_key(cell: Mapping[str, Any]) -> str:
    """Return a point as text. Equal points have equal texts."""
    return json.dumps(cell, sort_keys=True)


def ordered(params: Mapping[str, Any]) -> Cell:
    """Return the parameters in the order of trials: num_gpus, batch_size, learning_rate and seed first."""
    first = [key for key in ITEMS if key in params]
    return {key: params[key] for key in (*first, *(key for key in params if key not in ITEMS))}
