"""`make bench BENCH=worlds`: whether the cell that is named fastest is, and whether its time is what is told.

Each draw is a world (`tests.support.worlds`): a study whose truth is known. An oracle (`tests.bench.oracle`) gets the
same records. A row a stratum: noise, seeds and missing trials, once with worlds that follow the laws and once with
worlds that don't. Everything else is drawn. Goals: right in 0.95 of the oracle's share (0.85 where laws do not hold),
at most 2 points below the better of cells alone and law alone; the time told 0.97 to 1.03 of the true one; its interval
holds the truth in 85 to 95 %. A goal is missed where its figure is off by more than three standard errors.

A second table judges verdicts (`tests.bench.verdict_worlds`): where every share is below half its threshold any may
come up in 5 % of the draws; what is at twice its threshold has to in 80 %.
"""

from __future__ import annotations

import itertools
import math
import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from tests.bench.held_out import held_out_seed
from tests.bench.judging import Verdict, judged, middle, share
from tests.bench.tables import Part, Rows
from tests.bench.verdict_worlds import CAUSES, verdicts_drawn
from tests.support.worlds import World

NOISES, SEEDS, MISSING = (0.05, 0.1, 0.2), (1, 3, 5), (0.0, 0.8)
DRAWS, FEW_DRAWS = 300, 2
RUNS = (2, 3, 5, 10)
CAUSES_HEADER = [
    "noise",
    "runs of a place",
    "draws",
    "healthy, with a verdict",
    *(f"{cause} found" for cause in CAUSES),
]
HEADER = [
    "noise",
    "seeds",
    "missing",
    "laws hold",
    "draws",
    "fastest is right",
    "the oracle's",
    "of the oracle's",
    "cells alone",
    "law alone",
    "told over true",
    "interval holds it",
    "recommended is near",
    "and costs",
    "goals missed",
]
SURE = 3
"""Standard errors by which a goal has to be missed."""


def worlds(folder: Path, *, small: bool = False) -> Rows:
    """A row a stratum."""
    strata = list(itertools.product(NOISES, SEEDS, MISSING, (False, True)))
    draws, seed = FEW_DRAWS if small else DRAWS, held_out_seed("worlds")
    with ProcessPoolExecutor(os.cpu_count()) as processes:
        return list(processes.map(partial(_row, seed, draws), range(len(strata)), strata))


def _row(seed: int, draws: int, number: int, stratum: tuple[float, int, float, bool]) -> list[str]:
    noise, seeds, missing, bent = stratum

    def draw(generator: np.random.Generator) -> World:
        return World.draw(generator, noise=noise, seeds=seeds, missing=missing, bend=bent)

    found = judged(seed + number, range(draws), draw, by_law=True)
    return [
        f"{noise:.0%}",
        str(seeds),
        f"{missing:.0%}",
        "no" if bent else "yes",
        str(draws),
        *_figures(found),
        _missed(found, bent) or "none",
    ]


def _missed(found: list[Verdict], bent: bool) -> str:
    """The goals that are missed by more than three standard errors of their figure."""
    told = np.log([each.told for each in found if each.told is not None])
    held = [each.covered for each in found if each.covered is not None]
    share_of_oracle = 0.85 if bent else 0.95
    at_least = {
        "oracle": [each.right - share_of_oracle * each.of_oracle for each in found],
        "cells": [each.right - each.of_cells + 0.02 for each in found if each.of_cells is not None],
        "law": [each.right - each.of_law + 0.02 for each in found if each.of_law is not None],
        "interval too narrow": [each - 0.85 for each in held],
        "interval too wide": [0.95 - each for each in held],
    }
    missed = [name for name, room in at_least.items() if np.mean(room) < -SURE * np.std(room) / math.sqrt(len(room))]
    off = abs(float(np.median(told))) - math.log(1.03)
    if off > SURE * math.sqrt(math.pi / 2 / len(told)) * float(np.std(told)):  # the error of a median of normal values
        missed.append("told")
    return ", ".join(missed)


def _figures(found: list[Verdict]) -> list[str]:
    right, oracle = share(each.right for each in found), share(each.of_oracle for each in found)
    saved = [each.saved for each in found if each.saved is not None and np.isfinite(each.saved)]
    return [
        f"{right:.1%}",
        f"{oracle:.1%}",
        f"{right / oracle:.2f}" if oracle else "–",
        f"{share(each.of_cells for each in found):.1%}",
        f"{share(each.of_law for each in found):.1%}",
        f"{middle(found):.3f}",
        f"{share(each.covered for each in found):.1%}",
        f"{share(each.near for each in found):.1%}",
        f"{float(np.mean(saved)):.2f}",
    ]


def causes(folder: Path, *, small: bool = False) -> Rows:
    """A row a noise and number of runs of each place."""
    strata, seed = list(itertools.product(NOISES, RUNS)), held_out_seed("causes")
    draws = FEW_DRAWS if small else DRAWS
    with ProcessPoolExecutor(os.cpu_count()) as processes:
        return list(processes.map(partial(_cause_row, seed, draws), range(len(strata)), strata))


def _cause_row(seed: int, draws: int, number: int, stratum: tuple[float, int]) -> list[str]:
    noise, runs = stratum
    told = {
        cause: verdicts_drawn(
            cause, draws=draws, noises=(noise, noise), seeds=runs, seed=seed + number, law=cause is None
        )
        for cause in (None, *CAUSES)
    }
    healthy = share(bool(each) for each in told[None])
    return [
        f"{noise:.0%}",
        str(runs),
        str(draws),
        f"{healthy:.1%}",
        *(f"{share(cause in each for each in told[cause]):.1%}" for cause in CAUSES),
    ]


PARTS = {
    "worlds": Part("The cell named fastest against the true best", HEADER, worlds),
    "causes": Part("Verdicts where nothing is the matter, and where one thing is", CAUSES_HEADER, causes),
}
