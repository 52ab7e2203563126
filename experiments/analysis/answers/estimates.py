"""The time to a target of each cell, estimated from all cells together (docs/formulas.md §6).

Seconds to a target are steps to it times seconds a step. Steps depend on batch size, rate and seed: trainings that
differ in num_gpus alone are one training measured several times. Seconds a step depend on num_gpus and batch size: all
runs of these share them, whatever their rate and seed. Both are shrunk towards a law (`laws.shrinkage`), so that
neither a lucky seed nor a slow run decides. In a ratio of two cells, what they share cancels.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from scalestudy.experiments.analysis.laws.outliers import clipped_repeats
from scalestudy.experiments.analysis.laws.shrinkage import Shrunk, Vector, shrink
from scalestudy.experiments.analysis.laws.tuning import law_of_step_seconds, law_of_steps
from scalestudy.experiments.analysis.measures.cells import Cell
from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.analysis.measures.targets import median_time
from scalestudy.experiments.analysis.measures.trainings import Training
from scalestudy.experiments.analysis.measures.usable import time_to_target

DRAWS = 2000
"""Draws of all cells' times together."""
HALF = 0.5
NO_SECONDS = 1e-300
IMPUTATIONS = 2
"""Rounds of imputation: trainings that ended before the target get the steps that they are expected to take."""


@dataclass(frozen=True, kw_only=True)
class Times:
    """Logarithms of seconds to a target."""

    labels: tuple[str, ...]  # of the cells that have an estimate
    mean: Vector  # (c,)
    draws: Vector  # (k, c), of all of them together
    learnt: Vector  # (k, c), the part of the draws that steps to the target cause, without the seconds of a step

    @classmethod
    def joined(cls, parts: Sequence["Times"]) -> "Times":
        """Join the times of several combinations. A single one is not copied."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            labels=tuple(label for part in parts for label in part.labels),
            mean=np.concatenate([np.empty(0), *(part.mean for part in parts)]),
            draws=np.hstack([part.draws for part in parts]) if parts else np.empty((0, 0)),
            learnt=np.hstack([part.learnt for part in parts]) if parts else np.empty((0, 0)),
        )


def estimate_times(
    cells: Sequence[Cell],
    trainings: Sequence[Training],
    target: float,
    generator: np.random.Generator,
    *,
    pooled: bool,
) -> Times:
    """Estimate the times of the cells of one combination whose median over seeds is known (`targets.median_time`).

    trainings: from `trainings_of`. pooled: whether what a step learns does not depend on num_gpus.
    """
    cells = [cell for cell in cells if cell.learning_rate > 0 and cell.trials and cell.is_timed]
    if not cells:
        return NONE
    steps, seconds = _Steps.of(trainings, target, cells[0].metric, pooled=pooled), _StepSeconds.of(cells)
    known = [cell for cell in cells if steps and seconds and steps.has(cell) and seconds.has(cell)]
    if steps is None or seconds is None or not known:
        return NONE
    learnt, timed = (np.array([part.place(cell) for cell in known]) for part in (steps, seconds))
    later = np.array([steps.later(cell) for cell in known])
    warm_up = np.log(np.maximum([seconds.warm_up(cell) for cell in known], NO_SECONDS))
    learnt_draws = steps.found.draws(learnt, DRAWS, generator)
    learnt_draws += later
    draws = seconds.found.draws(timed, DRAWS, generator)
    draws += learnt_draws
    return Times(
        labels=tuple(cell.label for cell in known),
        mean=np.logaddexp(steps.found.mean[learnt] + later + seconds.found.mean[timed], warm_up),
        draws=np.logaddexp(draws, warm_up, out=draws),
        learnt=learnt_draws,
    )


NONE = Times(labels=(), mean=np.empty(0), draws=np.empty((DRAWS, 0)), learnt=np.empty((DRAWS, 0)))
Key = tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class _Steps:
    """log steps by batch size, rate and, unless pooled, num_gpus."""

    pooled: bool
    places: Mapping[Key, int]
    found: Shrunk
    able: Mapping[Key, float]
    """Of the places whose median over seeds is known, the share of the seeds that did not diverge."""

    @classmethod
    def of(cls, trainings: Sequence[Training], target: float, metric: StudyMetric, *, pooled: bool) -> "_Steps | None":
        """Estimate the steps; None if no cell's median over seeds is known."""
        told: dict[Key, dict[int, list[Training]]] = defaultdict(lambda: defaultdict(list))
        for training in trainings:
            told[training.batch_size, training.rate, 1 if pooled else training.num_gpus][training.seed].append(training)
        places = {key: index for index, key in enumerate(sorted(told))}
        rows: list[tuple[float, int, int, bool]] = []  # log steps, place, seed, whether the target was reached
        able: dict[Key, float] = {}
        for key, index in places.items():
            seen: list[tuple[float, bool]] = []  # as of `median_time`
            in_vain: list[tuple[float, int]] = []  # steps made, seed
            for seed, copies in told[key].items():
                steps = [
                    each for training in copies if math.isfinite(each := time_to_target(training.curve, target, metric))
                ]
                if steps:
                    middle_of_copies = statistics.median(steps)
                    rows.append((math.log(middle_of_copies), index, seed, True))
                    seen.append((middle_of_copies, True))
                elif all(training.status == "diverged" for training in copies):
                    seen.append((math.inf, True))
                elif made := max(training.curve[-1][0] if training.curve else 0.0 for training in copies):
                    in_vain.append((made, seed))
                    seen.append((made, False))
            arrivals = [steps for steps, arrived in seen if arrived and math.isfinite(steps)]
            if arrivals:  # training in vain past the last arrival says nothing about the median
                rows.extend((math.log(min(made, max(arrivals))), index, seed, False) for made, seed in in_vain)
            if math.isfinite(median_time(seen)):
                able[key] = 1 - sum(math.isinf(steps) for steps, _ in seen) / len(seen)
        if not able:
            return None
        values, where, seeds, arrived_ = (np.array(each) for each in zip(*rows, strict=True))
        _, groups = np.unique(seeds, return_inverse=True)
        law = law_of_steps(np.array(list(places), dtype=float), values[arrived_], where[arrived_])
        found = shrink(values[arrived_], where[arrived_], law, groups[arrived_])
        for _ in range(0 if arrived_.all() else IMPUTATIONS):
            # the mean of a normal distribution above the steps that were made in vain
            middle, noise = found.mean[where], found.noise
            beyond = np.clip((values - middle) / noise, -5, 5)
            density = np.exp(-(beyond**2) / 2) / math.sqrt(2 * math.pi)
            expected = middle + noise * density / special.ndtr(-beyond)
            found = shrink(np.where(arrived_, values, np.maximum(expected, values)), where, law, groups)
        return cls(pooled=pooled, places=places, found=found, able=able)

    def key(self, cell: Cell) -> Key:
        """Return what a cell's steps depend on."""
        return (cell.batch_size, cell.learning_rate, 1 if self.pooled else cell.num_gpus)

    def has(self, cell: Cell) -> bool:
        """Whether a cell's median over seeds is known."""
        return self.key(cell) in self.able and self._able(cell) > HALF

    def later(self, cell: Cell) -> float:
        """Return by how much the median of a cell's seeds lies above the median of those that can reach the target."""
        return statistics.NormalDist().inv_cdf(HALF / self._able(cell)) * self.found.scatter

    def _able(self, cell: Cell) -> float:
        """Return the share of a cell's seeds that can reach the target.

        Running out of memory counts on its num_gpus alone.
        """
        counted = cell.counted
        lost = sum(trial["status"] == "out_of_memory" for trial in counted)
        return self.able[self.key(cell)] * (1 - lost / len(counted)) if counted else 0.0

    def place(self, cell: Cell) -> int:
        """Return the place of a cell in `found`."""
        return self.places[self.key(cell)]


@dataclass(frozen=True, kw_only=True)
class _StepSeconds:
    """log seconds a step, by num_gpus and batch size."""

    places: Mapping[Key, int]
    found: Shrunk
    warm_ups: Mapping[Key, float]  # seconds by which a first epoch takes longer

    @classmethod
    def of(cls, cells: Sequence[Cell]) -> "_StepSeconds | None":
        """Estimate the seconds of a step; None if nothing was timed."""
        measured: dict[Key, list[float]] = {}
        warm_ups: dict[Key, list[float]] = defaultdict(list)
        for cell in cells:
            warm_ups[cell.num_gpus, cell.batch_size].extend(cell.warm_up_seconds)
            runs = measured.setdefault((cell.num_gpus, cell.batch_size), [])
            if cell.timings:
                runs[:] = cell.seconds_of_steps  # all cells of the place have the same
            else:
                runs.extend(cell.seconds_of_steps)
        logs = {key: np.log(runs) for key, runs in measured.items() if runs}
        if not logs:
            return None
        clipped = clipped_repeats(list(logs.values()))
        values, where = np.concatenate(clipped), np.repeat(np.arange(len(clipped)), list(map(len, clipped)))
        law = law_of_step_seconds(np.array(list(logs), dtype=float), values, where)
        return cls(
            places={key: index for index, key in enumerate(logs)},
            found=shrink(values, where, law),
            warm_ups={key: max(statistics.median(each), 0.0) for key, each in warm_ups.items() if each},
        )

    def warm_up(self, cell: Cell) -> float:
        """Return how many seconds longer a cell's first epoch takes; 0 where timing runs measured its seconds."""
        return self.warm_ups.get((cell.num_gpus, cell.batch_size), 0.0)

    def has(self, cell: Cell) -> bool:
        """Whether the steps of a cell were timed."""
        return (cell.num_gpus, cell.batch_size) in self.places

    def place(self, cell: Cell) -> int:
        """Return the place of a cell in `found`."""
        return self.places[cell.num_gpus, cell.batch_size]
