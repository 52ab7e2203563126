"""`make bench BENCH=next`: what the trainings that `recommend --next` lists are worth, at equal worker-seconds.

Each draw is a world (`tests.bench.next_worlds`): an ordinary study of one seed, of which a fifth of the trials ran.
Each rule spends half of what these took, and `recommend` names the fastest cell anew: right is one within 5 % of the
best of all cells, tried or not. All rules get the same worlds and, of a cell and seed, the same training, so the
differences from `--next` are paired. Goals: no rule is better by three standard errors.

A second table has what a training was said to lower the time of the chosen cell by, and what it did, in thirds of what
was said. Goal: realised over promised 0.7 to 1.4 in each third where laws hold.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from scalestudy.experiments.analysis.answers.next_look import WITHIN
from tests.bench.held_out import held_out_seed
from tests.bench.next_worlds import RULES, Begun, Promise, promises
from tests.bench.tables import Part, Rows

NOISES = (0.05, 0.1, 0.2)
STRATA = list(itertools.product(NOISES, (False, True)))
DRAWS, FEW_DRAWS = 40, 1
SHARE = 0.5
"""Of the worker-seconds of the trials that ran, which a rule may spend."""
LOOKS = 2
"""Trainings of a draw whose promises are held against what they told."""
HEADER = [
    "noise",
    "laws hold",
    "rule",
    "draws",
    "trainings",
    "spent",
    "within 5 % of the best",
    "more than --next",
    "mean regret",
    "more than --next",
]
PROMISES_HEADER = ["laws hold", "third", "trainings", "promised", "realised", "realised over promised"]


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What a rule's trainings came to."""

    regret: float
    trainings: int
    share: float  # of the worker-seconds of the trials that had run

    @property
    def is_right(self) -> bool:
        return self.regret <= WITHIN


def spent_by_rule(seed: int, draw: int) -> list[dict[str, Spent]]:
    """What each rule, and none, came to in one world of each stratum; empty where nothing is known to begin with."""
    return [_spent(_begun(seed, draw, number)) for number in range(len(STRATA))]


def _begun(seed: int, draw: int, number: int) -> Begun:
    noise, bent = STRATA[number]
    return Begun.draw(np.random.default_rng([seed, draw, number]), noise=noise, bent=bent)


def _spent(begun: Begun) -> dict[str, Spent]:
    if begun.chosen is None:
        return {}
    whole, found = begun.worker_seconds, {"none": Spent(regret=begun.regret, trainings=0, share=0.0)}
    for name, rule in RULES.items():
        after = begun.spend(rule(begun), SHARE * whole)
        more = len(after.lines) - len(begun.lines)
        found[name] = Spent(regret=after.regret, trainings=more, share=after.worker_seconds / whole - 1)
    return found


def next_trainings(folder: Path, *, small: bool = False) -> Rows:
    """A row a stratum and rule."""
    draws = range(FEW_DRAWS if small else DRAWS)
    with ProcessPoolExecutor(os.cpu_count()) as processes:
        return rule_rows(list(processes.map(partial(spent_by_rule, held_out_seed("next")), draws)))


def rule_rows(draws: Sequence[Sequence[dict[str, Spent]]]) -> Rows:
    """The table of draws, each as `spent_by_rule` gives it."""
    told = []
    for number, (noise, bent) in enumerate(STRATA):
        found = [draw[number] for draw in draws if draw[number]]
        for rule in ("none", *RULES) if found else ():
            own, base = [each[rule] for each in found], [each["--next"] for each in found]
            pairs = list(zip(own, base, strict=True))
            told.append(
                [
                    f"{noise:.0%}",
                    "no" if bent else "yes",
                    rule,
                    str(len(found)),
                    f"{np.mean([each.trainings for each in own]):.1f}",
                    f"{np.mean([each.share for each in own]):.0%}",
                    f"{np.mean([each.is_right for each in own]):.1%}",
                    _with_error([100.0 * (a.is_right - b.is_right) for a, b in pairs], ".1f"),
                    f"{np.mean([each.regret for each in own]):.3f}",
                    _with_error([a.regret - b.regret for a, b in pairs], ".3f"),
                ]
            )
    return told


def _with_error(values: Sequence[float], form: str) -> str:
    """The mean of paired differences and its standard error."""
    return f"{np.mean(values):+{form}} ± {np.std(values) / math.sqrt(len(values)):{form}}"


def promised(seed: int, draw: int) -> list[list[Promise]]:
    """The promises of one world of each stratum."""
    return [promises(_begun(seed, draw, number), LOOKS) for number in range(len(STRATA))]


def kept_promises(folder: Path, *, small: bool = False) -> Rows:
    """A row a third, where laws hold and where they do not."""
    draws = range(FEW_DRAWS if small else DRAWS)
    with ProcessPoolExecutor(os.cpu_count()) as processes:
        return promise_rows(list(processes.map(partial(promised, held_out_seed("next")), draws)))


def promise_rows(draws: Sequence[Sequence[Sequence[Promise]]]) -> Rows:
    """The table of draws, each as `promised` gives it."""
    told = []
    for bent in (False, True):
        found = [
            each
            for draw in draws
            for stratum, made in zip(STRATA, draw, strict=True)
            if stratum[1] is bent
            for each in made
        ]
        found.sort(key=lambda each: each.promised)
        for name, part in zip(("least", "middle", "most"), np.array_split(np.arange(len(found)), 3), strict=True):
            if not len(part):
                continue
            said, did = (np.array([getattr(found[index], key) for index in part]) for key in ("promised", "realised"))
            error = float(np.std(did - said)) / math.sqrt(len(part))
            told.append(
                [
                    "no" if bent else "yes",
                    name,
                    str(len(part)),
                    f"{said.mean():.4f}",
                    f"{did.mean():.4f}",
                    f"{did.mean() / said.mean():.2f} ± {error / said.mean():.2f}",
                ]
            )
    return told


PARTS = {
    "next": Part("Further trainings by four rules, at equal worker-seconds", HEADER, next_trainings),
    "next-promises": Part("What a further training is said to tell, and what it told", PROMISES_HEADER, kept_promises),
}
