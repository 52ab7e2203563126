"""Further trainings in worlds whose truth is known: what `--next` proposes and what simpler rules would, at equal cost.

A world is an ordinary study with one seed, of which most trials never ran. A training's record depends on its cell and
seed alone, so that all rules are answered alike.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from scalestudy.experiments.analysis.answers.analysis import Analysis
from scalestudy.experiments.analysis.answers.next_trainings import next_trainings
from scalestudy.experiments.analysis.measures.parts import present
from scalestudy.experiments.plan.plan import TrialPlan, cell_trial
from tests.support.worlds import EPOCHS, TARGET, Place, World, place_of

MISSING = 0.8
"""Share of a study's trials that never ran."""
MOST_ROWS = 50
"""That `--next` lists."""
Training = tuple[Place, int]
"""A cell and a seed."""


@dataclass(kw_only=True)
class Begun:
    """A study in a world, of which some trials ran."""

    world: World
    lines: list[dict[str, Any]] = field(default_factory=list)  # of trials.jsonl

    @classmethod
    def draw(cls, generator: np.random.Generator, *, noise: float, bent: bool) -> Self:
        """A study whose missing trials are drawn with its world."""
        world = World.draw(generator, noise=noise, seeds=1, bend=bent)
        ran = [trial for trial in world.plan.trials if generator.random() >= MISSING]
        return cls(world=world, lines=[answer(world, trial) for trial in ran])

    def after(self, trainings: Iterable[Training]) -> Self:
        """The study once these have run too."""
        more = [answer(self.world, self.trial(*training)) for training in trainings]
        return type(self)(world=self.world, lines=[*self.lines, *more])

    def trial(self, place: Place, seed: int) -> TrialPlan:
        """The trial of a training."""
        cell = dict(zip(("num_gpus", "batch_size", "learning_rate"), place, strict=True))
        return cell_trial(self.world.spec, cell, seed)

    @property
    def analysis(self) -> Analysis:
        """Of its records."""
        return Analysis(self.world.spec, self.world.plan, self.lines)

    @property
    def worker_seconds(self) -> float:
        """That its trainings took."""
        return math.fsum(line["train_seconds"] * line["params"]["num_gpus"] for line in self.lines)

    @property
    def chosen(self) -> Place | None:
        """The cell that is named fastest; None: none is."""
        fastest = self.analysis.recommendation["fastest"]
        return place_of(fastest["params"]) if present(fastest) else None

    @property
    def regret(self) -> float:
        """Of the chosen cell, at most 1."""
        return min(self.world.regret(self.chosen), 1.0)

    def spend(self, trainings: Iterator[Training], worker_seconds: float) -> Self:
        """The study once a rule's trainings have run, the last of which begins before so much is spent."""
        done, spent = self, self.worker_seconds
        for training in trainings:
            if done.worker_seconds - spent >= worker_seconds:
                break
            done = done.after([training])
        return done

    def fresh(self, places: Iterable[Place]) -> Iterator[Training]:
        """Trainings of these cells, each with the next seed that it has not had."""
        had: dict[Place, int] = {}
        for line in self.lines:
            place = place_of(line["params"])
            had[place] = max(had.get(place, 0), line["params"]["seed"] + 1)
        for place in places:
            yield place, had.get(place, 0)
            had[place] = had.get(place, 0) + 1


def answer(world: World, trial: TrialPlan) -> dict[str, Any]:
    """The line of a training."""
    place = place_of(trial.params)
    steps, lost = world.drawn_steps(trial.batch_size, trial.learning_rate, trial.seed)
    chance = np.random.default_rng([world.draw_seed, trial.seed, *place[:2], round(1e9 * place[2])])
    step = world.step_seconds(*place[:2]) * math.exp(chance.normal(0, world.noise))
    jitter = np.exp(chance.normal(0, 0.01, EPOCHS))
    jitter[0] *= 1 + world.warm_up
    return world.record(trial, steps, step * jitter, lost=lost)


def by_next(begun: Begun) -> Iterator[Training]:
    """What `--next` lists."""
    for row in listed(begun, MOST_ROWS):
        yield place_of(row["params"]), row["params"]["seed"]


def listed(begun: Begun, count: int) -> Sequence[Mapping[str, Any]]:
    """The rows of `--next`."""
    analysis = begun.analysis
    rows: Sequence[Mapping[str, Any]] = next_trainings(analysis, analysis.recommendation, count).get("rows", ())
    return rows


def at_random(begun: Begun) -> Iterator[Training]:
    """Random cells of the space."""
    chance, places = np.random.default_rng(begun.world.draw_seed), begun.world.places
    return begun.fresh(places[int(chance.integers(len(places)))] for _ in itertools.count())


def in_turn(begun: Begun) -> Iterator[Training]:
    """The cells that were tried, one after the other."""
    return begun.fresh(itertools.cycle(dict.fromkeys(place_of(line["params"]) for line in begun.lines)))


def two_fastest(begun: Begun) -> Iterator[Training]:
    """The two cells of the least estimates, in turn."""
    options = sorted(begun.analysis.times(TARGET).options, key=lambda option: float(option["seconds"]))[:2]
    return begun.fresh(itertools.cycle(place_of(option["params"]) for option in options))


RULES: Mapping[str, Callable[[Begun], Iterator[Training]]] = {
    "--next": by_next,
    "random cells": at_random,
    "cells in turn": in_turn,
    "two fastest": two_fastest,
}


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What a training is said to tell, and what it told: by how much the logarithm of the chosen cell's time falls."""

    promised: float
    realised: float


def promises(begun: Begun, count: int) -> list[Promise]:
    """Run the first of `--next`'s rows with as many seeds as its gain is for, so many times, each time listed anew."""
    found = []
    for _ in range(count):
        rows = listed(begun, 1)
        if not rows:
            break
        [row] = rows
        place, seed = place_of(row["params"]), row["params"]["seed"]
        after = begun.after((place, seed + more) for more in range(row["repeats"]))
        realised = math.log1p(begun.regret) - math.log1p(after.regret)
        found.append(Promise(promised=-math.log1p(-row["gain"]), realised=realised))
        begun = after
    return found
