"""What is believed of the times of cells, tried or not, as draws of the posterior.

The time to the target is steps times seconds a step (docs/formulas.md §6). Steps depend on batch size and rate, seconds
a step on num_gpus and batch size, so a look at one cell says something of many.

Shapes: k draws, c cells, r recipes, s sizes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from scalestudy.experiments.analysis.answers.posterior import HALF, Learnt, Timed
from scalestudy.experiments.analysis.laws.shrinkage import Places, Vector
from scalestudy.experiments.plan.plan import WithParams

LOST = math.log(10.0)
"""A cell takes so much longer (logarithm) in the draws in which half of its seeds or more miss the target."""
WIDTHS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
"""Octaves of the rate over which the share of lost seeds may rise from a half to five in six."""
GRID = 0.05
"""Octaves between the rates at which half of the seeds may be lost."""


class Recipe(NamedTuple):
    """What steps to the target depend on. num_gpus: 1 for all, where a training learns the same with any."""

    batch_size: int
    learning_rate: float
    num_gpus: int


class Size(NamedTuple):
    """What seconds a step depend on."""

    num_gpus: int
    batch_size: int

    @classmethod
    def of(cls, told: WithParams) -> "Size":
        """Return the size of a trial."""
        return cls(told.num_gpus, told.batch_size)


class Place(NamedTuple):
    """A cell."""

    num_gpus: int
    batch_size: int
    learning_rate: float

    @property
    def size(self) -> Size:
        """Its num_gpus and batch size."""
        return Size(self.num_gpus, self.batch_size)

    def recipe(self, *, pooled: bool) -> Recipe:
        """Return what its steps depend on. pooled: whether a training learns the same with any num_gpus."""
        return Recipe(self.batch_size, self.learning_rate, 1 if pooled else self.num_gpus)

    @classmethod
    def of(cls, told: WithParams) -> "Place":
        """Return the cell of a trial."""
        return cls(told.num_gpus, told.batch_size, told.learning_rate)


@dataclass(frozen=True, kw_only=True)
class Beliefs:
    """Draws of logarithms: of steps to the target, and of seconds a step."""

    places: tuple[Place, ...]  # (c,)
    recipes: tuple[Recipe, ...]  # (r,)
    sizes: tuple[Size, ...]  # (s,)
    steps: Vector  # (k, r), of trainings that reach the target
    lost: Vector  # (k, r), the share of the seeds that never do
    latest: Vector  # (r,), of the steps after which a training that has not met the target ends without
    seconds: Vector  # (k, s)
    scatter: float  # standard deviation of the logarithm of the steps of one training about its recipe
    noise: float  # the same of the seconds a step of one run
    by_cost: bool = False  # whether worker-seconds count in place of seconds

    @classmethod
    def of(
        cls,
        places: Sequence[Place],
        learnt: Learnt,
        timed: Timed,
        fates: Sequence[tuple[float, bool]],
        *,
        latest: Callable[[int], float],
        by_cost: bool = False,
    ) -> "Beliefs":
        """Take the draws of a posterior, which knows the steps of all recipes of these places.

        fates: of trainings, the rate, and whether it was lost or has reached the target. latest: gives the steps, by
        batch size, after which a training that has not met the target ends without.
        """
        recipes = tuple(sorted({place.recipe(pooled=learnt.pooled) for place in places}))
        sizes = tuple(sorted({place.size for place in places}))
        steps = learnt.found.draws[:, [learnt.places[recipe] for recipe in recipes]]
        lost = np.zeros_like(steps)
        if any(was_lost for _, was_lost in fates):
            lost = _lost(np.log2([recipe.learning_rate for recipe in recipes]), fates, len(steps))
        return cls(
            places=tuple(places),
            recipes=recipes,
            sizes=sizes,
            steps=steps,
            lost=lost,
            latest=np.log([latest(recipe.batch_size) for recipe in recipes]),
            seconds=np.stack([timed.draws(*size) for size in sizes], axis=1),
            scatter=learnt.found.scatter,
            noise=float(np.median(timed.found.noise)),
            by_cost=by_cost,
        )

    @cached_property
    def of_recipe(self) -> Places:
        """(c,), the recipe of each cell."""
        pooled = all(recipe.num_gpus == 1 for recipe in self.recipes)
        known = {recipe: index for index, recipe in enumerate(self.recipes)}
        return np.array([known[place.recipe(pooled=pooled)] for place in self.places])

    @cached_property
    def of_size(self) -> Places:
        """(c,), the size of each cell."""
        known = {size: index for index, size in enumerate(self.sizes)}
        return np.array([known[place.size] for place in self.places])

    @cached_property
    def expected_steps(self) -> Vector:
        """(r,), of a training that reaches the target: the geometric mean of the draws."""
        return np.asarray(np.exp(self.steps.mean(axis=0)))

    @cached_property
    def expected_seconds(self) -> Vector:
        """(s,), of a step: the geometric mean of the draws."""
        return np.asarray(np.exp(self.seconds.mean(axis=0)))

    @cached_property
    def missing(self) -> Vector:
        """(k, r), the share of the seeds that miss the target: they are lost, or their trainings end before it."""
        in_time = special.ndtr((self.latest - self.steps) / self.scatter)
        return np.asarray(1 - (1 - self.lost) * in_time)

    @property
    def arriving(self) -> Vector:
        """(r,), the chance that a training of each recipe reaches the target."""
        return np.asarray(1 - self.missing.mean(axis=0))

    @cached_property
    def leap(self) -> Vector:
        """(k, r), by how much a recipe counts longer."""
        return np.where(self.missing >= HALF, LOST, 0.0)

    @cached_property
    def times(self) -> Vector:
        """(k, c), of seconds to the target."""
        return self.reaching + self.leap[:, self.of_recipe]

    @property
    def reaching(self) -> Vector:
        """(k, c), of the seconds to the target of a training that reaches it."""
        return self.steps[:, self.of_recipe] + self.seconds[:, self.of_size]

    @cached_property
    def logs(self) -> Vector:
        """(k, c), of what is to be small: the time to the target, or its cost."""
        return self.small(self.times)

    @property
    def shown(self) -> Vector:
        """(k, c), the same for `gains`, with the mean of the leap.

        Looks show steps and seconds. The leap is far larger: cells beside it would be looked at for its sake.
        """
        return self.small(self.reaching + self.leap.mean(axis=0)[self.of_recipe])

    def small(self, times: Vector) -> Vector:
        """Return what is to be small of times (k, c): these, or their costs."""
        return times + np.log([place.num_gpus for place in self.places]) if self.by_cost else times

    @cached_property
    def means(self) -> Vector:
        """(c,)."""
        return np.asarray(self.logs.mean(axis=0))

    @cached_property
    def best(self) -> int:
        """The cell of the least mean."""
        return int(self.means.argmin())

    def near(self, index: int, within: float) -> NDArray[np.bool_]:
        """Return in which draws a cell is within a share of the best of all (k,)."""
        return np.asarray(self.logs[:, index] <= self.logs.min(axis=1) + math.log1p(within))

    def chance(self, index: int, within: float) -> float:
        """Return the probability of `near`."""
        return float(self.near(index, within).mean())


def _lost(rates: Vector, fates: Sequence[tuple[float, bool]], count: int) -> Vector:
    """Draw what share of their seeds recipes lose (count, r). rates: of recipes, in octaves.

    Seeds are lost above a rate: at one of x octaves with the probability Φ((x - t) / w). t may be anything from below
    the rates that were tried to beyond all, and w any of WIDTHS; what was lost, and what was not, says which. Where
    none was lost nothing is known of it, and nothing is assumed.
    """
    tried = np.log2([rate for rate, _ in fates])
    signs = np.array([1.0 if was_lost else -1.0 for _, was_lost in fates])
    grid = np.arange(min(rates.min(), tried.min()) - 1, max(rates.max(), tried.max()) + 1, GRID)
    widths, limits = (each.ravel()[:, None] for each in np.meshgrid(WIDTHS, grid, indexing="ij"))
    shares = special.softmax(special.log_ndtr(signs * (tried - limits) / widths).sum(axis=1))
    steps = (np.arange(count) + 0.5) / count
    drawn = np.minimum(np.searchsorted(shares.cumsum(), steps), len(shares) - 1)
    drawn = np.random.default_rng(0).permutation(drawn)
    return np.asarray(special.ndtr((rates - limits[drawn]) / widths[drawn]))
