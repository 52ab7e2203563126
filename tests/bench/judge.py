"""`make bench BENCH=judge`: what `scalestudy judge` suspects in runs in which nothing is unfair, or one thing is.

Each draw is a world (`tests.support.suspicious_worlds`) as runs that others made: three to five seeds, an inner best
rate, step times that scatter between runs and within them, one interval of evaluations or several, runs that start one
after another, at random, by the clock, or nobody knows when. Where something is unfair, it is at twice its threshold.
Goals: any suspicion in at most 5 % of the fair worlds; what is unfair found in 80 % at 10 % noise.
"""

from __future__ import annotations

import itertools
import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from scalestudy.experiments.judging.facts import Suspicion
from tests.bench.held_out import held_out_seed
from tests.bench.judging import share
from tests.bench.tables import Part, Rows
from tests.support.suspicious_worlds import THRESHOLDS, suspected

FAIR_DRAWS, DRAWS, FEW_DRAWS = 1000, 200, 2
NOISES, NOISE = (0.05, 0.2), (0.1, 0.1)
AT_ONCE = 25
"""Worlds that a process draws at a time."""
HEADER = ["unfair", "noise", "worlds", "any suspicion", "found", "another beside it"]


def judge(folder: Path, *, small: bool = False) -> Rows:
    """A row for fair runs, and one for each thing that may be unfair."""
    kinds: tuple[Suspicion | None, ...] = (None, *THRESHOLDS)
    seed = held_out_seed("judge")
    with ProcessPoolExecutor(os.cpu_count()) as processes:
        found = {}
        for number, kind in enumerate(kinds):
            count = FEW_DRAWS if small else FAIR_DRAWS if kind is None else DRAWS
            draws = [range(first, min(first + AT_ONCE, count)) for first in range(0, count, AT_ONCE)]
            drawn = partial(suspected, kind, noises=NOISES if kind is None else NOISE, seed=seed + number)
            found[kind] = processes.map(drawn, draws)
        return [_row(kind, list(itertools.chain.from_iterable(each))) for kind, each in found.items()]


def _row(kind: Suspicion | None, found: list[set[str]]) -> list[str]:
    return [
        kind or "nothing",
        "5 to 20%" if kind is None else "10%",
        str(len(found)),
        f"{share(bool(each) for each in found):.1%}",
        "–" if kind is None else f"{share(kind in each for each in found):.1%}",
        "–" if kind is None else f"{share(bool(each - {kind}) for each in found):.1%}",
    ]


PARTS = {"judge": Part("Suspicions in runs of others where nothing is unfair, and where one thing is", HEADER, judge)}
