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
from scalestudy.experiments.analysis.laws.step_terms import Place, Vector
from tests.bench.held_out import held_out_seed
from tests.bench.tables import Part, Rows
from tests.support.step_worlds import KINDS, StepWorld

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
    """Predictions at a multiple of the workers timed, of the worlds of a kind.

    The methods take by how many times the ends of intervals, in logarithms, lie further from the middle than is told.
    """

    logs: list[Vector] = field(default_factory=list)  # of lower end, middle and upper end over the truth (3,)
    refused: list[bool] = field(default_factory=list)  # whether no law fits
    identifiable: list[bool] = field(default_factory=list)

    def held(self, wider: float = 1.0) -> list[bool]:
        """Whether each interval holds the truth, of those that are told."""
        ends = (each[1] + wider * (each - each[1]) for each in self._told)
        return [bool(low <= 0 <= high) for low, _, high in ends]

    def widths(self, wider: float = 1.0) -> list[float]:
        """Upper over lower end in the identifiable worlds, infinite if refused."""
        return [
            math.inf if refused else math.exp(wider * (each[2] - each[0]))
            for each, refused, identifiable in zip(self.logs, self.refused, self.identifiable, strict=True)
            if identifiable
        ]

    def answered(self, wider: float = 1.0) -> float:
        """Share of the identifiable worlds whose interval is narrow."""
        return statistics.fmean(width <= WIDEST for width in self.widths(wider))

    @property
    def median_error(self) -> float:
        """Of the middles that are told."""
        return statistics.median(abs(math.exp(each[1]) - 1) for each in self._told)

    @property
    def _told(self) -> list[Vector]:
        return [each for each, refused in zip(self.logs, self.refused, strict=True) if not refused]


def predictions(kind: str, draws: int, seed: int) -> tuple[Told, Told]:
    """Worlds of a kind, timed, fitted and predicted at twice and at four times the workers."""
    generator, found = np.random.default_rng(seed), (Told(), Told())
    for _ in range(draws):
        world = StepWorld.draw(generator, kind)
        batch = int(generator.choice(BATCHES))
        law = step_seconds(timed(world, generator))
        identifiable = is_identifiable(world, batch, generator)
        for told, times in zip(found, (2, 4), strict=True):
            workers = times * WORKERS[-1]
            predicted = law.at(workers, batch / workers, nodes=world.nodes(workers))
            told.logs.append(np.quantile(predicted, [0.05, 0.5, 0.95]) - math.log(world.seconds(workers, batch)))
            told.refused.append(law.misfit)
            told.identifiable.append(identifiable)
    return found


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
        twice, four = predictions(kind, FEW_DRAWS if small else DRAWS, held_out_seed("beyond") + index)
        told = [
            f"{statistics.fmean(twice.held()):.0%}",
            f"{twice.answered():.0%} of {len(twice.widths())}",
            f"{statistics.median(twice.widths()):.2f}",
            f"{twice.median_error:.1%}",
            f"{statistics.fmean(four.held()):.0%}",
            f"{statistics.median(four.widths()):.2f}",
            f"{four.median_error:.1%}",
            f"{statistics.fmean(twice.refused):.0%}",
        ]
        rows.append([kind, str(len(twice.refused)), *told])
    return rows


PARTS = {"beyond": Part("Steps with 2 and 4 times the workers timed", HEADER, beyond)}
