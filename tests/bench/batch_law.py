"""`make bench BENCH=batch-law`: what the intervals hold of steps over batch sizes.

Draws from known truths, 5 seeds a batch size and rate with 5 % noise. 1,000 draws a row; `--small`: 100. The tests of
the analysis draw here for the noise scale and the time to a target, too.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from scalestudy.experiments.analysis.laws.batch_size import BatchLaw
from scalestudy.experiments.analysis.laws.estimate import Estimate
from scalestudy.experiments.analysis.laws.ratio import ratio_of_means
from scalestudy.experiments.analysis.laws.steps_to_target import steps_to_target
from scalestudy.experiments.analysis.measures.intervals import over_seeds
from scalestudy.experiments.analysis.measures.trainings import Costs
from tests.bench.tables import Part, Rows
from tests.support.arrivals import arrived
from tests.support.batch_studies import BatchTruth

DRAWS, FEW_DRAWS = 1000, 100
FIGURES = ("s_min", "b_crit", "e_min", "exponent")
OCTAVES = (-2, -1, 0, 1, 2)
SIZES: Mapping[str, Sequence[int]] = {
    "7 sizes, B_crit/8 to 8 B_crit": (32, 64, 128, 256, 512, 1024, 2048),
    "5 sizes, B_crit/4 to 4 B_crit": (64, 128, 256, 512, 1024),
    "4 sizes, B_crit/4 to 2 B_crit": (64, 128, 256, 512),
    "3 sizes, B_crit/2 to 2 B_crit": (128, 256, 512),
    "5 sizes, B_crit/16 to B_crit": (16, 32, 64, 128, 256),
    "5 sizes, B_crit to 16 B_crit": (256, 512, 1024, 2048, 4096),
}


@dataclass(frozen=True, kw_only=True)
class Rates:
    """The rates that are tried. curvature, exponent, deviation: of `BatchTruth`. octaves: from the best rate; empty:
    those of a grid of powers of 2, the same for all batch sizes, that the best rate of each lies somewhere in."""

    curvature: float
    octaves: Sequence[float] = OCTAVES
    exponent: float = 1.0
    deviation: float = 0.0

    def truth(self) -> BatchTruth:
        """What the draws follow."""
        return BatchTruth(curvature=self.curvature, exponent=self.exponent, deviation=self.deviation)

    def costs(self, truth: BatchTruth, size: int, generator: random.Random) -> Costs:
        """One draw of a batch size."""
        if self.octaves:
            return truth.costs(size, generator, octaves=self.octaves)
        return truth.costs_at(size, _grid_around(truth.best_rate(size)), generator)


def _grid_around(rate: float) -> list[float]:
    nearest = round(math.log2(rate))
    return [2.0**power for power in range(nearest - 4, nearest + 5)]


RATES: Mapping[str, Rates] = {
    "known": Rates(curvature=0.0, octaves=(0,)),
    "5 rates, neighbours take 16 % more steps": Rates(curvature=0.15),
    "5 rates, neighbours take 5 % more steps": Rates(curvature=0.05),
    "5 rates, neighbours take 2 % more steps": Rates(curvature=0.02),
    "5 rates, all as good": Rates(curvature=0.0),
    "5 rates, cells scatter by 3 %": Rates(curvature=0.15, deviation=0.03),
    "3 rates, all too low": Rates(curvature=0.15, octaves=(-3, -2, -1), deviation=0.03),
    "3 rates, all too high": Rates(curvature=0.15, octaves=(1, 2, 3), deviation=0.03),
    "best as √B, on and between powers of 2 (up to 4 % more steps)": Rates(curvature=0.15, octaves=(), exponent=0.5),
}


@dataclass
class Tally:
    """Estimates of one figure over draws, None where there was none."""

    truth: float
    found: list[Estimate | None] = field(default_factory=list)

    def held(self, wider: float = 1.0) -> list[bool]:
        """Whether each interval held the truth, or would if its ends were so many times as far off.

        An end that it lacks is infinite, and without an estimate nothing is held.
        """
        return [each is not None and _off(each, self.truth) <= wider for each in self.found]

    @property
    def errors(self) -> list[float]:
        """Over the truth, of the estimates that there are."""
        return [each.value / self.truth - 1 for each in self.found if each is not None]

    @property
    def error(self) -> float:
        """Median size of the error over the truth."""
        return statistics.median(map(abs, self.errors))

    @property
    def bias(self) -> float:
        """Median error over the truth."""
        return statistics.median(self.errors)


def _off(estimate: Estimate, truth: float) -> float:
    """How far off the truth is, over how far off the interval's end on its side is."""
    end = estimate.low if truth < estimate.value else estimate.high
    return 0.0 if end is None or truth == estimate.value else (truth - estimate.value) / (end - estimate.value)


def drawn_law(sizes: Sequence[int], rates: Rates, generator: random.Random) -> BatchLaw:
    """The law that the analysis finds in one draw."""
    places: list[tuple[float, float, float]] = []
    values: list[float] = []
    where: list[int] = []
    for size in sizes:
        for rate, seeds in rates.costs(rates.truth(), size, generator).items():
            values += map(math.log, seeds.values())
            where += [len(places)] * len(seeds)
            places.append((size, rate, 1.0))
    return BatchLaw.of(steps_to_target(np.array(places), arrived(values, where), np.random.default_rng(0)))


def law_tallies(sizes: Sequence[int], rates: Rates, draws: int, seed: int = 0) -> dict[str, Tally]:
    """S_min, B_crit, E_min and, unless the rates are known, the exponent over draws."""
    truth, generator = rates.truth(), random.Random(seed)
    truths = {"s_min": truth.s_min, "b_crit": truth.b_crit, "e_min": truth.s_min * truth.b_crit}
    truths |= {"exponent": truth.exponent} if len(rates.octaves) != 1 else {}
    tallies = {name: Tally(value) for name, value in truths.items()}
    for _ in range(draws):
        law = drawn_law(sizes, rates, generator)
        for name, tally in tallies.items():
            tally.found.append(getattr(law, name))
    return tallies


def law_rows(draws: int) -> Rows:
    """Every choice of batch sizes with one grid of rates, and one choice with every grid."""
    rows: Rows = []
    usual, first = "5 rates, neighbours take 16 % more steps", next(iter(SIZES))
    for sizes, rates in [*((each, usual) for each in SIZES), *((first, each) for each in RATES if each != usual)]:
        tallies = law_tallies(SIZES[sizes], RATES[rates], draws)
        shares = [f"{statistics.fmean(tallies[name].held()):.1%}" if name in tallies else "–" for name in FIGURES]
        errors = [f"{tallies[name].error:.1%} ({tallies[name].bias:+.1%})" for name in ("s_min", "b_crit")]
        rows.append([sizes, rates, *shares, *errors])
    return rows


def noise_tally(trainings: int, draws: int, scatter: float) -> Tally:
    """B_noise over draws; scatter: standard deviation of a training's mean |G|² and tr Σ over their means."""
    tally, generator = Tally(300.0), random.Random(0)
    for _ in range(draws):
        squares = [generator.gauss(1.0, scatter) for _ in range(trainings)]
        tally.found.append(ratio_of_means([300 * generator.gauss(1.0, scatter) for _ in range(trainings)], squares))
    return tally


def seed_tally(seeds: int, draws: int, missed: float = 0.0) -> Tally:
    """The interval of a typical time over draws: medians of 100 s with 5 % noise; missed: chance of a seed to miss."""
    tally, generator = Tally(100.0), random.Random(0)
    for _ in range(draws):
        times = [
            math.inf if generator.random() < missed else 100 * math.exp(generator.gauss(0, 0.05)) for _ in range(seeds)
        ]
        interval = over_seeds(times) or {}
        tally.found.append(Estimate(value=statistics.median(times), low=interval["low"], high=interval["high"]))
    return tally


PARTS = {
    "batch-law": Part(
        "Steps over batch sizes: share of 90 % intervals that hold the truth, median error (bias)",
        ["batch sizes", "rate", "S_min", "B_crit", "E_min", "p", "error of S_min", "error of B_crit"],
        lambda folder, small=False: law_rows(FEW_DRAWS if small else DRAWS),
    )
}
