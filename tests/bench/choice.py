"""`make bench BENCH=choice`: which chance of being near enough a recommended cell should need.

The draws are those of `tests.bench.worlds`: 36 strata, in half of which the laws do not hold. Of each world the rules
choose from the same estimates: the cheapest cell that is within 10 % of the fastest with a chance of 0.5, 0.7 or 0.9
(`Compared.recommended`), and the cheapest of which that is known at 90 % for all cells at once, which the product did
before. A choice is judged by the true times: whether it is within 10 % of the true best, what it costs over the
cheapest such cell, and by how much it takes longer than those 10 %. Its loss is the logarithm of its cost over that
cell's and ten times the logarithm of its time over the 10 %. A choice that truly misses the target is counted apart.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from scalestudy.experiments.analysis.answers.posterior import Posterior
from scalestudy.experiments.analysis.answers.target_times import Compared, Option, times_to
from scalestudy.experiments.analysis.measures.cells import gather
from scalestudy.experiments.analysis.measures.metric import ACCURACY
from tests.bench.held_out import held_out_seed
from tests.bench.tables import Part, Rows
from tests.bench.worlds import MISSING, NOISES, SEEDS
from tests.support.worlds import TARGET, Place, World, place_of

DRAWS, FEW_DRAWS = 22, 1
TOLERANCE, LEVEL = 0.1, 0.9
WEIGHT = 10
"""Of time beyond the tolerance, beside cost, both as logarithms."""
HEADER = [
    "laws hold",
    "rule",
    "draws",
    "within 10 % of the true best",
    "log cost over ideal",
    "log time beyond 10 %",
    "loss",
    "loss over that of 0.5",
    "target missed",
]


def of_chance(confidence: float) -> Callable[[Compared], Option]:
    """The product's rule with this confidence."""
    return lambda compared: replace(compared, confidence=confidence).recommended


def all_at_once(compared: Compared) -> Option:
    """The cheapest option whose time is within the tolerance of the fastest's with 90 % over all options at once."""
    base, labels = compared.fastest, [option["label"] for option in compared.options]
    near = [
        option
        for option in compared.options
        if option["worker_seconds"] < base["worker_seconds"]
        and option["seconds"] <= (1 + compared.tolerance) * base["seconds"]
    ]
    if not near:
        return base
    columns = [labels.index(option["label"]) for option in near]
    ratios = compared.times.draws[:, columns] - compared.times.draws[:, [labels.index(base["label"])]]
    mean, deviation = ratios.mean(axis=0), np.maximum(ratios.std(axis=0), 1e-12)
    most = np.quantile(((ratios - mean) / deviation).max(axis=1), LEVEL)
    limits = np.exp(mean + most * deviation)
    sure = [option for option, limit in zip(near, limits, strict=True) if limit <= 1 + compared.tolerance]
    return min(sure, key=lambda option: option["worker_seconds"], default=base)


RULES: Mapping[str, Callable[[Compared], Option]] = {
    "chance 0.5": of_chance(0.5),
    "chance 0.7": of_chance(0.7),
    "chance 0.9": of_chance(0.9),
    "90 % for all at once": all_at_once,
}


@dataclass(frozen=True)
class Judged:
    """A choice against the truth; logarithms."""

    cost: float  # over that of the cheapest cell that is truly near enough
    beyond: float  # its time over what is near enough

    @property
    def loss(self) -> float:
        return self.cost + WEIGHT * self.beyond


def judged(world: World) -> list[Judged | None]:
    """The choice of each rule; None where it truly misses the target, or nothing is known to reach it."""
    trials = world.trials()
    ran = {place_of(trial["params"]) for trial in trials}
    enough = (1 + TOLERANCE) * min(world.seconds(place) for place in ran)
    ideal = min(place[0] * world.seconds(place) for place in ran if world.seconds(place) <= enough)
    found = times_to(Posterior(world.spec, gather(world.plan, trials, ACCURACY)), [TARGET])[TARGET]
    if not found.options:
        return [None] * len(RULES)
    compared = Compared.of(found.options, found.times, tolerance=TOLERANCE, confidence=0.5)
    return [_judged(world, place_of(rule(compared)["params"]), enough, ideal) for rule in RULES.values()]


def _judged(world: World, place: Place, enough: float, ideal: float) -> Judged | None:
    seconds = world.seconds(place)
    if not math.isfinite(seconds):
        return None
    return Judged(cost=math.log(place[0] * seconds / ideal), beyond=max(0.0, math.log(seconds / enough)))


STRATA = list(itertools.product(NOISES, SEEDS, MISSING, (False, True)))


def drawn(seed: int, draw: int) -> list[list[Judged | None]]:
    """The choices of each rule in one world of each stratum."""
    found = []
    for number, (noise, seeds, missing, bent) in enumerate(STRATA):
        generator = np.random.default_rng([seed + number, draw])
        found.append(judged(World.draw(generator, noise=noise, seeds=seeds, missing=missing, bend=bent)))
    return found


def choice(folder: Path, *, small: bool = False) -> Rows:
    """A row a rule, where the laws hold and where they do not."""
    draws = range(FEW_DRAWS if small else DRAWS)
    with ProcessPoolExecutor(os.cpu_count()) as processes:
        return rows(list(processes.map(partial(drawn, held_out_seed("choice")), draws)))


def rows(draws: Sequence[Sequence[Sequence[Judged | None]]]) -> Rows:
    """The table of draws, each as `drawn` gives it."""
    told = []
    for bent in (False, True):
        of_worlds = [found for draw in draws for stratum, found in zip(STRATA, draw, strict=True) if stratum[3] is bent]
        by_rule = dict(zip(RULES, zip(*of_worlds, strict=True), strict=True))
        first = next(iter(by_rule.values()))
        for rule, found in by_rule.items():
            known = [each for each in found if each is not None]
            both = [(a.loss, b.loss) for a, b in zip(found, first, strict=True) if a is not None and b is not None]
            told.append(
                [
                    "no" if bent else "yes",
                    rule,
                    str(len(found)),
                    f"{np.mean([not each.beyond for each in known]):.1%}",
                    f"{np.mean([each.cost for each in known]):.3f}",
                    f"{np.mean([each.beyond for each in known]):.4f}",
                    f"{np.mean([each.loss for each in known]):.3f}",
                    _difference(np.array([a - b for a, b in both])),
                    str(len(found) - len(known)),
                ]
            )
    return told


def _difference(values: np.ndarray) -> str:
    """The mean of paired differences and its standard error."""
    return f"{values.mean():+.3f} ± {values.std() / math.sqrt(len(values)):.3f}"


PARTS = {"choice": Part("The recommended cell by four rules against the true best", HEADER, choice)}
