"""`make bench BENCH=laws`: how well fits of a step's time meet known laws, and whether their intervals hold.

Each draw is a law, five noisy timings a place, and a fit; the designs are in `tests.support.known_laws`. Nothing is
left out: a draw whose fit gives no interval counts as one whose interval does not hold the truth.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from scalestudy.experiments.analysis.laws.estimate import Estimate
from scalestudy.experiments.analysis.laws.step_figures import StepFigures
from scalestudy.experiments.analysis.laws.step_seconds import StepSeconds, step_seconds
from tests.bench.tables import Part
from tests.support.known_laws import SHARES, WORKERS, Constants, any_law, figures, identified_law, timings

DRAWS, FEW_DRAWS = 1_000, 100
HEADER = ["figure", "draws", "median error", "error of 9 in 10", "truth within the 90 % interval"]


@dataclass
class Score:
    """Estimates of one figure, each with the truth."""

    found: list[tuple[Estimate | None, float]] = field(default_factory=list)

    @property
    def errors(self) -> list[float]:
        """Relative, 1 where there is no estimate."""
        return [1.0 if estimate is None else abs(estimate.value / truth - 1) for estimate, truth in self.found]

    @property
    def median_error(self) -> float:
        """Over the estimates."""
        return statistics.median(self.errors)

    @property
    def error_of_most(self) -> float:
        """Of nine in ten."""
        return float(np.quantile(self.errors, 0.9))

    def held(self, wider: float = 1.0) -> list[bool]:
        """Whether each interval holds the truth, or would if its logarithms were so many times as far apart."""
        return [estimate is not None and _holds(estimate, truth, wider) for estimate, truth in self.found]

    def row(self, figure: str) -> list[str]:
        """Of the table."""
        errors = f"{self.median_error:.1%}", f"{self.error_of_most:.1%}"
        return [figure, str(len(self.found)), *errors, f"{statistics.fmean(self.held()):.1%}"]


def _holds(estimate: Estimate, truth: float, wider: float) -> bool:
    low, high = estimate.low, estimate.high
    if low is None:
        return False
    below = estimate.value * (low / estimate.value) ** wider
    return below <= truth and (high is None or truth <= estimate.value * (high / estimate.value) ** wider)


def identified(draws: int, seed: int = 1) -> dict[str, Score]:
    """Figures of laws in the identifying design."""
    generator = np.random.default_rng(seed)
    scores: dict[str, Score] = {}
    for _ in range(draws):
        law = identified_law(generator)
        found = StepFigures(step_seconds(timings(law, generator)))
        for name, truth in figures(law).items():
            scores.setdefault(name, Score()).found.append((found.estimate(name), truth))
    return scores


def left_out(
    draws: int,
    draw: Callable[[np.random.Generator], Constants],
    workers: tuple[int, ...] = WORKERS,
    seed: int = 2,
    *,
    blind: bool = False,
) -> Score:
    """Times of steps at places, one in five, that the fit has not seen. blind: it takes all workers for one."""
    generator, score = np.random.default_rng(seed), Score()
    for _ in range(draws):
        law = draw(generator)
        places = timings(law, generator, workers)
        hidden = set(generator.choice(len(places), size=len(places) // 5, replace=False).tolist())
        seen = [place for index, place in enumerate(places) if index not in hidden]
        found = step_seconds([replace(place, num_gpus=1) for place in seen] if blind else seen)
        for index in hidden:
            _score_place(score, found, law, places[index].num_gpus, places[index].per_worker_batch, blind=blind)
    return score


def beyond(
    draws: int, draw: Callable[[np.random.Generator], Constants], seed: int = 3, *, blind: bool = False
) -> Score:
    """Times of steps with twice as many workers as were timed. blind: the fit takes all workers for one."""
    generator, score = np.random.default_rng(seed), Score()
    for _ in range(draws):
        law = draw(generator)
        seen = timings(law, generator)
        found = step_seconds([replace(place, num_gpus=1) for place in seen] if blind else seen)
        for share in SHARES:
            _score_place(score, found, law, 2 * WORKERS[-1], share, blind=blind)
    return score


def _score_place(score: Score, found: StepSeconds, law: Constants, workers: int, share: float, *, blind: bool) -> None:
    low, value, high = np.exp(np.quantile(found.at(1 if blind else workers, share), [0.05, 0.5, 0.95])).tolist()
    score.found.append((Estimate(value=value, low=low, high=high), float(law.step_seconds(workers, share))))


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
