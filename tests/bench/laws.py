"""`make bench BENCH=laws`: how well fits of a step's time meet known laws, and whether their intervals hold.

Each draw is a law, five noisy timings a place, and a fit; the designs are in `tests.support.known_laws`. Nothing is
left out: a draw whose fit gives no interval counts as one whose interval does not hold the truth.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from scalestudy.experiments.analysis.laws.estimate import Estimate
from scalestudy.experiments.analysis.laws.step_figures import StepFigures
from scalestudy.experiments.analysis.laws.step_seconds import StepSeconds, step_seconds
from tests.support.known_laws import SHARES, WORKERS, Constants, any_law, figures, identified_law, timings
from tests.support.tables import Part

DRAWS, FEW_DRAWS = 1_000, 100
HEADER = ["figure", "draws", "median error", "error of 9 in 10", "truth within the 90 % interval"]


@dataclass
class Score:
    """Estimates of one figure against the truth."""

    errors: list[float] = field(default_factory=list)
    held: list[bool] = field(default_factory=list)

    def add(self, estimate: Estimate | None, truth: float) -> None:
        if estimate is None:
            self.errors.append(1.0)
            self.held.append(False)
            return
        self.errors.append(abs(estimate.value / truth - 1))
        low, high = estimate.low, estimate.high
        self.held.append(low is not None and low <= truth and (high is None or truth <= high))

    @property
    def median_error(self) -> float:
        return statistics.median(self.errors)

    @property
    def coverage(self) -> float:
        return statistics.fmean(self.held)

    def row(self, figure: str) -> list[str]:
        worst = float(np.quantile(self.errors, 0.9))
        return [figure, str(len(self.errors)), f"{self.median_error:.1%}", f"{worst:.1%}", f"{self.coverage:.1%}"]


def identified(draws: int, seed: int = 1) -> dict[str, Score]:
    """Figures of laws in the identifying design."""
    generator = np.random.default_rng(seed)
    scores: dict[str, Score] = {}
    for _ in range(draws):
        law = identified_law(generator)
        found = StepFigures(step_seconds(timings(law, generator)))
        for name, truth in figures(law).items():
            scores.setdefault(name, Score()).add(found.estimate(name), truth)
    return scores


def left_out(
    draws: int, draw: Callable[[np.random.Generator], Constants], workers: tuple[int, ...] = WORKERS, seed: int = 2
) -> Score:
    """Times of steps at places, one in five, that the fit has not seen."""
    generator, score = np.random.default_rng(seed), Score()
    for _ in range(draws):
        law = draw(generator)
        places = timings(law, generator, workers)
        hidden = set(generator.choice(len(places), size=len(places) // 5, replace=False).tolist())
        seen = [place for index, place in enumerate(places) if index not in hidden]
        found = step_seconds(seen)
        for index in hidden:
            _score_place(score, found, law, places[index].num_gpus, places[index].per_worker_batch)
    return score


def beyond(draws: int, draw: Callable[[np.random.Generator], Constants], seed: int = 3) -> Score:
    """Times of steps with twice as many workers as were timed."""
    generator, score = np.random.default_rng(seed), Score()
    for _ in range(draws):
        law = draw(generator)
        found = step_seconds(timings(law, generator))
        for share in SHARES:
            _score_place(score, found, law, 2 * WORKERS[-1], share)
    return score


def _score_place(score: Score, found: StepSeconds, law: Constants, workers: int, share: float) -> None:
    low, value, high = np.exp(np.quantile(found.at(workers, share), [0.05, 0.5, 0.95])).tolist()
    score.add(Estimate(value=value, low=low, high=high), float(law.step_seconds(workers, share)))


def rows(draws: int = DRAWS) -> list[list[str]]:
    """The table, without its header."""
    few = max(draws // 5, 1)
    return [
        *(score.row(f"{name}, identifying design") for name, score in identified(draws).items()),
        left_out(few, identified_law).row("step time at held-out places, identifying design"),
        left_out(few, any_law).row("step time at held-out places, any law"),
        left_out(few, any_law, (1, 2)).row("the same, 1 and 2 workers only"),
        beyond(few, identified_law).row("step time with 16 workers, 8 timed, identifying design"),
        beyond(few, any_law).row("the same, any law"),
    ]


PARTS = {
    "laws": Part(
        "Fits to draws from known laws", HEADER, lambda folder, small=False: rows(FEW_DRAWS if small else DRAWS)
    )
}
