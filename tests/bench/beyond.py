"""`make bench BENCH=beyond`: predictions of a step's time with more workers than were timed, against known truths.

Each draw is a world of `tests.support.step_worlds`, steps timed with 1 to 64 workers, 8 a node, at three batch sizes,
three repeats with 3 % noise, and the prediction of one of the batch sizes at twice and four times the workers. A world
is identifiable where the truth's own form, fitted to as many timings, is within 10 % at twice the workers in 9 of 10
repetitions. It counts as answered where its interval is at most 1.5 wide (upper over lower) and nothing speaks against
a prediction.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from scalestudy.experiments.analysis.laws.step_seconds import step_seconds
from scalestudy.experiments.analysis.laws.step_terms import Place
from tests.bench.held_out import held_out_seed
from tests.support.step_worlds import KINDS, StepWorld
from tests.support.tables import Part, Rows

WORKERS, BATCHES = (1, 2, 4, 8, 16, 32, 64), (256, 1024, 4096)
REPEATS, NOISE = 3, 0.03
DRAWS, FEW_DRAWS = 300, 3
WIDEST = 1.5
NEAR, MOSTLY, REPETITIONS = 0.1, 0.9, 20
HEADER = [
    "world",
    "draws",
    "2 ×: truth in the interval",
    "identifiable and answered",
    "median width",
    "median error",
    "4 ×: truth in the interval",
    "median width",
    "median error",
    "refused: no law fits",
]


@dataclass
class Told:
    """Predictions at a multiple of the workers timed. widths: of identifiable worlds, infinite if refused."""

    held: list[bool] = field(default_factory=list)
    widths: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)

    @property
    def coverage(self) -> float:
        """Share of the predictions whose interval holds the truth."""
        return statistics.fmean(self.held)

    @property
    def answered(self) -> float:
        """Share of the identifiable worlds whose interval is narrow."""
        return statistics.fmean(width <= WIDEST for width in self.widths)

    @property
    def width(self) -> float:
        """Median of upper over lower end, over identifiable worlds."""
        return statistics.median(self.widths)


@dataclass
class Outcome:
    """Of a kind of world. refused: whether no law fits, by draw."""

    twice: Told = field(default_factory=Told)
    four_times: Told = field(default_factory=Told)
    refused: list[bool] = field(default_factory=list)


def predictions(kind: str, draws: int, seed: int) -> Outcome:
    """Worlds of a kind, timed, fitted and predicted."""
    generator, outcome = np.random.default_rng(seed), Outcome()
    for _ in range(draws):
        world = StepWorld.draw(generator, kind)
        batch = int(generator.choice(BATCHES))
        law = step_seconds(timed(world, generator))
        identifiable = is_identifiable(world, batch, generator)
        outcome.refused.append(law.misfit)
        for told, times in ((outcome.twice, 2), (outcome.four_times, 4)):
            workers = times * WORKERS[-1]
            truth = world.seconds(workers, batch)
            draws = law.at(workers, batch / workers, nodes=world.nodes(workers))
            low, value, high = np.exp(np.quantile(draws, [0.05, 0.5, 0.95])).tolist()
            if not law.misfit:
                told.held.append(low <= truth <= high)
                told.errors.append(abs(value / truth - 1))
            if identifiable:
                told.widths.append(math.inf if law.misfit else high / low)
    return outcome


def timed(world: StepWorld, generator: np.random.Generator) -> list[Place]:
    """The timings of a world."""
    return [
        Place(
            num_gpus=workers,
            per_worker_batch=batch / workers,
            nodes=world.nodes(workers),
            seconds=tuple(world.timings(generator, workers, batch, repeats=REPEATS, noise=NOISE).tolist()),
        )
        for workers in WORKERS
        for batch in BATCHES
    ]


def is_identifiable(world: StepWorld, batch: int, generator: np.random.Generator) -> bool:
    """Whether somebody who knows the form of the truth, but not its constants, could predict twice the workers."""
    places = [(workers, size) for workers in WORKERS for size in BATCHES]
    features = np.array([world.features(*place) for place in places])
    truth = np.array([world.seconds(*place) for place in places])
    further = 2 * WORKERS[-1], batch
    near = []
    for _ in range(REPETITIONS):
        seconds = truth * np.exp(generator.normal(0, NOISE / math.sqrt(REPEATS), len(truth)))
        found = nnls(features / seconds[:, None], np.ones(len(seconds)))[0]
        near.append(abs(float(found @ world.features(*further)) / world.seconds(*further) - 1) < NEAR)
    return statistics.fmean(near) >= MOSTLY


def beyond(folder: Path, *, small: bool = False) -> Rows:
    """A row a kind of world."""
    rows = []
    for index, kind in enumerate(KINDS):
        found = predictions(kind, FEW_DRAWS if small else DRAWS, held_out_seed("beyond") + index)
        twice, four = found.twice, found.four_times
        told = [
            f"{twice.coverage:.0%}",
            f"{twice.answered:.0%} of {len(twice.widths)}",
            f"{twice.width:.2f}",
            f"{statistics.median(twice.errors):.1%}",
            f"{four.coverage:.0%}",
            f"{four.width:.2f}",
            f"{statistics.median(four.errors):.1%}",
            f"{statistics.fmean(found.refused):.0%}",
        ]
        rows.append([kind, str(len(found.refused)), *told])
    return rows


PARTS = {"beyond": Part("Steps with 2 and 4 times the workers timed", HEADER, beyond)}
