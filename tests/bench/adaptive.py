"""`make bench BENCH=adaptive`: what an adaptive search costs and finds in worlds whose truth is known.

A world (`tests.support.worlds`, wide) has 5 num_gpus, 6 batch sizes and 7 rates; its grid has 3 seeds of each cell, 630
trainings, each to the target or to its last epoch. A search (`tests.support.adaptive_worlds`) has a budget of 0.06,
0.12 and 0.24 of the grid's worker-seconds at a noise of 5, 10 and 20 %. A row a stratum: noise, whether the laws hold,
and whether the steps follow another form than the law's. All draws count.

Goals: cost over the grid's (ratio of sums: timings, starts, evaluations, confirmation) at most 0.02, 0.04, 0.08, and
its 95th percentile at most 3 times that; right (within 5 % of the true best) at least as often as the grid's own
recommendation less 6 points, 15 where laws are bent; sure in 80, 60, 30 % of the draws; the 95th percentile of the
regret at most 15 %, where bent at most the grid's and 10 points more.

A second table has the searches' own probability against the share that is right; a third what random cells of the same
cost find in the same worlds.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from scalestudy.experiments.analysis import recommend
from scalestudy.experiments.analysis.answers.next_look import WITHIN
from scalestudy.experiments.analysis.measures.parts import present
from tests.bench.held_out import held_out_seed
from tests.bench.tables import Part, Rows
from tests.support.adaptive_worlds import EVALUATION, Searched, worker_seconds
from tests.support.worlds import World, place_of

SHARES = {0.05: 0.06, 0.1: 0.12, 0.2: 0.24}
"""The budget over the grid's cost, by noise."""
DRAWS = "SCALESTUDY_DRAWS"
"""The variable of the environment that says how many worlds of each stratum are drawn; 1000 if it does not."""
FEW_DRAWS = 1
BINS = (0.0, 0.5, 0.8, 0.9, 0.95, 1.0)
HEADER = [
    "noise",
    "laws hold",
    "form",
    "draws",
    "cost ÷ the grid's",
    "95th percentile",
    "sure",
    "right",
    "the grid's right",
    "regret, 95th percentile",
    "the grid's",
    "trainings",
    "timings",
    "confirmation's share of the cost",
]
CALIBRATION = ["noise", "laws hold", "form", *(f"P from {low:g} to {high:g}" for low, high in itertools.pairwise(BINS))]
OTHERS = [
    "noise",
    "laws hold",
    "form",
    "adaptive: cost, right",
    "random cells at that cost: right",
]


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """What a search did in a world, and what else would have been found there."""

    spent: float  # worker-seconds
    grid: float  # the same of the grid
    confirmation: float  # the same of the confirmation
    regret: float
    probability: float
    sure: bool
    trainings: int
    timings: int
    of_grid: float  # regret
    of_random: float


def _draw(seed: int, noise: float, bent: bool, swapped: bool, number: int) -> Drawn:
    generator = np.random.default_rng([seed, number])
    world = World.draw(generator, noise=noise, seeds=3, bend=bent, wide=True, swapped=swapped)
    searched = Searched(world=world, share=SHARES[noise]).run()
    return Drawn(
        spent=searched.worker_seconds,
        grid=searched.grid_worker_seconds,
        confirmation=worker_seconds(searched.of_kind("confirmation")),
        regret=searched.regret,
        probability=searched.probability or 0.0,
        sure=searched.over is not None and searched.over.why == "sure",
        trainings=len(searched.of_kind("first", "training", "whole")),
        timings=len(searched.of_kind("size")),
        of_grid=grid_regret(world),
        of_random=random_regret(searched),
    )


STRATA = list(itertools.product(SHARES, (False, True), (False, True)))


@cache
def _drawn(small: bool) -> dict[tuple[float, bool, bool], list[Drawn]]:
    """All draws, by noise, whether laws are bent, and whether their form is swapped: the tables share them."""
    draws, seed = FEW_DRAWS if small else int(os.environ.get(DRAWS, "1000")), held_out_seed("adaptive")
    with ProcessPoolExecutor(os.cpu_count()) as processes:
        return {
            stratum: list(processes.map(partial(_draw, seed + place, *stratum), range(draws)))
            for place, stratum in enumerate(STRATA)
        }


def _named(stratum: tuple[float, bool, bool]) -> list[str]:
    noise, bent, swapped = stratum
    return [f"{noise:.0%}", "no" if bent else "yes", "swapped" if swapped else "the law's"]


def _cost(found: Sequence[Drawn]) -> str:
    """What the searches took, over what the grids take."""
    return f"{math.fsum(each.spent for each in found) / math.fsum(each.grid for each in found):.4f}"


def _right(regrets: Sequence[float]) -> str:
    return f"{np.mean([each <= WITHIN for each in regrets]):.1%}"


def _far(regrets: Sequence[float]) -> str:
    return f"{np.quantile(regrets, 0.95, method='higher'):.1%}"


def adaptive(folder: Path, *, small: bool = False) -> Rows:
    """A row a stratum."""
    rows = []
    for stratum, found in _drawn(small).items():
        rows.append(
            [
                *_named(stratum),
                str(len(found)),
                _cost(found),
                f"{np.quantile([each.spent / each.grid for each in found], 0.95):.4f}",
                f"{np.mean([each.sure for each in found]):.0%}",
                _right([each.regret for each in found]),
                _right([each.of_grid for each in found]),
                _far([each.regret for each in found]),
                _far([each.of_grid for each in found]),
                f"{np.mean([each.trainings for each in found]):.1f}",
                f"{np.mean([each.timings for each in found]):.1f}",
                f"{math.fsum(each.confirmation for each in found) / math.fsum(each.spent for each in found):.0%}",
            ]
        )
    return rows


def calibration(folder: Path, *, small: bool = False) -> Rows:
    """A row a stratum: draws, mean probability and share right in each bin."""
    rows = []
    for stratum, found in _drawn(small).items():
        cells = []
        for low, high in itertools.pairwise(BINS):
            own = [each for each in found if low <= each.probability < high or each.probability == high == 1]
            told = f"{np.mean([each.probability for each in own]):.2f}" if own else ""
            cells.append(f"{len(own)}: {told}, right {_right([each.regret for each in own])}" if own else "–")
        rows.append([*_named(stratum), *cells])
    return rows


def others(folder: Path, *, small: bool = False) -> Rows:
    """A row a stratum."""
    return [
        [
            *_named(stratum),
            f"{_cost(found)}, {_right([each.regret for each in found])}",
            _right([each.of_random for each in found]),
        ]
        for stratum, found in _drawn(small).items()
    ]


def grid_regret(world: World) -> float:
    """The regret of the cell that the whole grid's study names fastest."""
    return _regret(world, world.trials())


def random_regret(searched: Searched) -> float:
    """The same of random cells and seeds of the grid, for as many worker-seconds as the search took."""
    world, spent = searched.world, 0.0
    trials = world.trials()
    kept = []
    for index in np.random.default_rng(world.draw_seed).permutation(len(trials)):
        trial = trials[index]
        seconds = trial["train_seconds"] * searched.slower * (1 + EVALUATION)
        spent += seconds * trial["params"]["num_gpus"]
        if spent > searched.worker_seconds:
            break
        kept.append(trial)
    return _regret(world, kept)


def _regret(world: World, lines: Sequence[dict[str, Any]]) -> float:
    """The regret of the cell that the world's study names fastest."""
    found = recommend(world.spec, world.plan, lines)["fastest"]
    return world.regret(place_of(found["params"]) if present(found) else None)


PARTS = {
    "adaptive": Part("An adaptive search beside the whole grid, in drawn worlds", HEADER, adaptive),
    "adaptive-sure": Part("How sure an adaptive search is, and how often it is right", CALIBRATION, calibration),
    "adaptive-others": Part("Random cells in the same worlds", OTHERS, others),
}
