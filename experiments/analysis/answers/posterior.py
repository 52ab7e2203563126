"""The posterior of a study: steps to each target, seconds of a step, and each cell's time (docs/formulas.md §6).

Seconds to a target are steps to it times seconds a step. Steps depend on batch size, rate and seed: trainings that
differ in num_gpus alone are one training measured several times. Seconds a step depend on num_gpus and batch size: all
runs of these share them, whatever their rate and seed. Both are shrunk towards a law (`laws.shrinkage`), so that
neither a lucky seed nor a slow run decides. In a ratio of two cells, what they share cancels.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from scalestudy.experiments.analysis.laws.batch_size import BatchLaw
from scalestudy.experiments.analysis.laws.estimate import ENDS, Estimate
from scalestudy.experiments.analysis.laws.shrinkage import Vector
from scalestudy.experiments.analysis.laws.step_seconds import StepSeconds, step_seconds
from scalestudy.experiments.analysis.laws.steps_to_target import DRAWS, Arrivals, StepsToTarget, steps_to_target
from scalestudy.experiments.analysis.measures.arrivals import (
    NEVER,
    Arrival,
    Passing,
    arrival_of,
    arrival_of_stopped,
    confirmed_share,
)
from scalestudy.experiments.analysis.measures.cells import Cell, combinations
from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.analysis.measures.step_timings import TimedSteps, timed_steps
from scalestudy.experiments.analysis.measures.trainings import Training, learns_alike, trainings_of
from scalestudy.experiments.analysis.measures.trial import Trial
from scalestudy.experiments.analysis.measures.turnbull import median_arrival
from scalestudy.experiments.spec.study_spec import StudySpec

HALF = 0.5
NO_SECONDS = 1e-300
Column = tuple[Vector, int, float]
"""Draws (k, p) that are kept elsewhere, which of them it is, and what is added to it."""


@dataclass(frozen=True, kw_only=True)
class Told:
    """A figure as it is told, and draws of its logarithm (k,)."""

    value: float
    logs: Vector

    def over(self, other: "Told") -> "Told":
        """Return the ratio to another figure."""
        return Told(value=self.value / other.value, logs=self.logs - other.logs)


@dataclass(frozen=True, kw_only=True)
class Times:
    """Logarithms of seconds to a target."""

    labels: tuple[str, ...]  # of the cells that have an estimate
    mean: Vector  # (c,)
    draws: Vector  # (k, c), of all of them together
    learnt: tuple[Column, ...]  # the part of the draws that steps to the target cause, without the seconds of a step
    of_training: Vector  # (c,), standard deviation of the steps of one training about its cell's
    of_run: Vector  # (c,), the same of the seconds of a step in one run

    def only(self, labels: Sequence[str]) -> "Times":
        """Return those of some cells, in this order. All of them are not copied."""
        if tuple(labels) == self.labels:
            return self
        known = {label: place for place, label in enumerate(self.labels)}
        places = [known[label] for label in labels]
        return Times(
            labels=tuple(labels),
            mean=self.mean[places],
            draws=self.draws[:, places],
            learnt=tuple(self.learnt[place] for place in places),
            of_training=self.of_training[places],
            of_run=self.of_run[places],
        )

    def learnt_of(self, places: Sequence[int]) -> Vector:
        """Return this part of some cells (k, places)."""
        return np.stack([draws[:, place] + more for draws, place, more in map(self.learnt.__getitem__, places)], axis=1)

    @classmethod
    def joined(cls, parts: Sequence["Times"]) -> "Times":
        """Join the times of several combinations. A single one is not copied."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            labels=tuple(label for part in parts for label in part.labels),
            mean=np.concatenate([np.empty(0), *(part.mean for part in parts)]),
            draws=np.hstack([np.empty((DRAWS, 0)), *(part.draws for part in parts)]),
            learnt=tuple(column for part in parts for column in part.learnt),
            of_training=np.concatenate([np.empty(0), *(part.of_training for part in parts)]),
            of_run=np.concatenate([np.empty(0), *(part.of_run for part in parts)]),
        )


Key = tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Learnt:
    """log steps by batch size, rate and, unless pooled, num_gpus."""

    pooled: bool
    places: Mapping[Key, int]
    found: StepsToTarget
    able: Mapping[Key, float]
    """Of the places whose median over seeds is known, the share of the seeds that did not diverge."""
    unseen: int
    """Trainings that were stopped for being behind, where no other shows what they still had before them."""

    @classmethod
    def of(
        cls,
        trainings: Sequence[Training],
        target: float,
        metric: StudyMetric,
        generator: np.random.Generator,
        *,
        pooled: bool,
        confirmed: float,
        untried: Iterable[Key] = (),
    ) -> "Learnt | None":
        """Estimate the steps; None if no cell's median over seeds is known.

        confirmed: as `arrival_of` takes it. untried: further places whose steps are drawn by the law, for which it is
        enough that one training has arrived.
        """
        told: dict[Key, dict[int, list[Training]]] = defaultdict(lambda: defaultdict(list))
        for training in trainings:
            told[training.batch_size, training.rate, 1 if pooled else training.num_gpus][training.seed].append(training)
        others = _independent(trainings, pooled=pooled) if any(each.was_behind for each in trainings) else []
        passing = Passing.of([training.curve for training in others], target, metric)  # asked of stopped ones alone
        further = set(untried)
        places = {key: index for index, key in enumerate(sorted({*told, *further}))}
        rows: list[tuple[Arrival, int, int]] = []  # its place and seed
        able: dict[Key, float] = {}
        unseen, is_blind = 0, passing.is_blind
        for key, index in places.items():
            seen: list[Arrival] = []
            for seed, copies in told.get(key, {}).items():
                found = _together(copies, target, confirmed, passing)
                if found is not None:
                    was_behind = all(copy.was_behind for copy in copies)
                    unseen += is_blind and was_behind and math.isinf(found.high)
                    rows.append((found, index, seed))
                    seen.append(found)
                elif all(training.status == "diverged" for training in copies):
                    seen.append(NEVER)
            if seen and math.isfinite(median_arrival(seen)):
                able[key] = 1 - seen.count(NEVER) / len(seen)
        has_arrived = any(arrival.sure for arrival, _, _ in rows)
        if not able and not (further and has_arrived):
            return None
        examples = _examples(trainings)
        arrivals, where, seeds = zip(*rows, strict=True)
        _, groups = np.unique(seeds, return_inverse=True)
        with np.errstate(divide="ignore"):
            low, high = (np.log([getattr(each, end) for each in arrivals]) for end in ("low", "high"))
        steps = steps_to_target(
            np.array([(examples.get(int(batch), batch), rate, workers) for batch, rate, workers in places]),
            Arrivals(
                places=np.array(where),
                seeds=groups,
                low=low,
                high=high,
                chance=np.array([each.chance for each in arrivals]),
                values=np.array([_log_value(each) for each in arrivals]),
                extra=np.array([each.extra for each in arrivals]),
            ),
            generator,
        )
        return cls(pooled=pooled, places=places, found=steps, able=able, unseen=unseen)

    def key(self, cell: Cell) -> Key:
        """Return what a cell's steps depend on."""
        return (cell.batch_size, cell.learning_rate, 1 if self.pooled else cell.num_gpus)

    def has(self, cell: Cell) -> bool:
        """Whether a cell's median over seeds is known."""
        return self.key(cell) in self.able and self._able(cell) > HALF

    def steps(self, batch_size: int, rate: float, num_gpus: int) -> Estimate | None:
        """Return the steps of a place that was trained at, the median of its seeds; None if that is not known."""
        key = (batch_size, rate, 1 if self.pooled else num_gpus)
        if self.able.get(key, 0.0) <= HALF:
            return None
        place = self.places[key]
        later = self._later(self.able[key])
        low, high = np.exp(np.quantile(self.found.draws[:, place], ENDS) + later).tolist()
        return Estimate(value=math.exp(self.found.mean[place] + later), low=low, high=high)

    def law(self, num_gpus: int) -> BatchLaw:
        """Return the law of batch sizes, each at its best rate, with so many workers."""
        return BatchLaw.of(self.found, 1 if self.pooled else num_gpus)

    def later(self, cell: Cell) -> float:
        """Return by how much the median of a cell's seeds lies above the median of those that can reach the target."""
        return self._later(self._able(cell))

    def _later(self, able: float) -> float:
        return statistics.NormalDist().inv_cdf(HALF / able) * self.found.scatter

    @cached_property
    def reached(self) -> list[tuple[int, float]]:
        """The batch sizes and rates whose median over seeds is known."""
        return sorted({(int(key[0]), key[1]) for key, able in self.able.items() if able > HALF})

    def mean_beside(self, batch_size: int, rate: float, num_gpus: int) -> float:
        """Return the logarithm of the steps of a batch size and rate that were `reached`, whatever the workers.

        It is that of the nearest number of workers that they were trained with.
        """
        key = self._nearest(batch_size, rate, num_gpus)
        return float(self.found.mean[self.places[key]]) + self._later(self.able[key])

    def beside(self, batch_size: int, rate: float, num_gpus: int) -> Told:
        """Return the same as steps, with their draws."""
        key = self._nearest(batch_size, rate, num_gpus)
        logs = self.found.draws[:, self.places[key]] + self._later(self.able[key])
        return Told(value=math.exp(self.mean_beside(batch_size, rate, num_gpus)), logs=logs)

    def _nearest(self, batch_size: int, rate: float, num_gpus: int) -> Key:
        alike = [key for key, able in self.able.items() if key[:2] == (batch_size, rate) and able > HALF]
        return min(alike, key=lambda key: abs(math.log(key[2] / num_gpus)))

    def _able(self, cell: Cell) -> float:
        """Return the share of a cell's seeds that can reach the target.

        Running out of memory counts on its num_gpus alone.
        """
        counted = cell.counted
        lost = sum(trial.status == "out_of_memory" for trial in counted)
        return self.able[self.key(cell)] * (1 - lost / len(counted)) if counted else 0.0

    def place(self, cell: Cell) -> int:
        """Return the place of a cell in `found`."""
        return self.places[self.key(cell)]


def _log_value(arrival: Arrival) -> float:
    """Return the logarithm of its estimate; NaN where its interval says more: another evaluation may confirm it."""
    return math.nan if arrival.value is None or arrival.chance < 1 else math.log(arrival.value)


def _independent(trainings: Sequence[Training], *, pooled: bool) -> list[Training]:
    """Return each training once: of the copies of one that ran on several num_gpus, the one that came furthest."""
    found: dict[tuple[float, ...], Training] = {}
    for training in trainings:
        key = (training.batch_size, training.rate, training.seed, 1 if pooled else training.num_gpus)
        if key not in found or len(training.curve) > len(found[key].curve):
            found[key] = training
    return list(found.values())


def _together(copies: Sequence[Training], target: float, confirmed: float, passing: Passing) -> Arrival | None:
    """Return the arrival of one training that ran on several num_gpus; None if all of them diverged."""
    found = []
    for copy in copies:
        arrival = arrival_of(copy.curve, target, passing.metric, confirmed)
        if copy.was_behind and math.isinf(arrival.high):
            arrival = arrival_of_stopped(copy.curve, passing)
        if copy.status != "diverged" or arrival.sure:
            found.append(arrival)
    arrived = sorted((each for each in found if math.isfinite(each.high)), key=lambda each: each.value or each.high)
    if arrived:
        sure = [each for each in arrived if each.sure] or arrived
        return sure[(len(sure) - 1) // 2]
    return max((each for each in found if each.low), key=lambda each: each.low, default=None)


@dataclass(frozen=True, kw_only=True)
class Timed:
    """log seconds a step, by num_gpus and batch size."""

    steps: TimedSteps
    found: StepSeconds
    places: Mapping[tuple[int, int], int]  # of each in `found`, with as few nodes as it was timed on

    @classmethod
    def of(cls, steps: TimedSteps, chance: int = 0, *, untried: bool = False) -> "Timed | None":
        """Estimate the seconds of a step; None if nothing was timed. chance: the seed of the draws.

        Sizes whose timings are all in doubt stand for themselves, unless all sizes are so. untried: whether sizes count
        that were not timed. Their law takes what is in doubt too, of a num_gpus of which nothing else is known.
        """
        if not steps.sizes:
            return None
        sound = {size.num_gpus for size in steps.sizes if not size.doubtful}
        doubtful = [size.doubtful and (size.num_gpus in sound or not untried) for size in steps.sizes]
        places: dict[tuple[int, int], int] = {}
        for index, size in enumerate(steps.sizes):
            places.setdefault((size.num_gpus, size.batch_size), index)
        found = step_seconds(steps.places, apart=() if all(doubtful) else doubtful, chance=chance)
        return cls(steps=steps, found=found, places=places)

    def has(self, cell: Cell) -> bool:
        """Whether the steps of a cell were timed."""
        return (cell.num_gpus, cell.batch_size) in self.places

    def place(self, cell: Cell) -> int:
        """Return the place of a cell in `found`."""
        return self.places[cell.num_gpus, cell.batch_size]

    def warm_up(self, cell: Cell) -> float:
        """Return how many seconds longer a cell's first epoch takes; 0 where timing runs measured its seconds."""
        return self.steps.sizes[self.place(cell)].warm_up

    def warm_up_beside(self, num_gpus: int, batch_size: int) -> float:
        """Return the warm-up of the nearest batch size that was timed, with the nearest number of workers."""
        nearest = min(
            self.steps.sizes,
            key=lambda size: (abs(math.log(size.batch_size / batch_size)), abs(math.log(size.num_gpus / num_gpus))),
        )
        return nearest.warm_up

    @cached_property
    def data_seconds(self) -> float:
        """T_data where none was timed: the median over the sizes, 0 if phases were not measured."""
        return statistics.median(place.data_seconds for place in self.found.places)

    def examples(self, batch_size: int) -> float:
        """Return the examples of a step, below the batch size where epochs end in a smaller one."""
        told = [size.examples for size in self.steps.sizes if size.batch_size == batch_size]
        return statistics.median(told) if told else float(batch_size)

    def nodes(self, num_gpus: int, *, across_nodes: bool) -> int:
        """Return how many nodes hold so many workers."""
        a_node = max(place.on_a_node for place in self.found.places)
        return max(math.ceil(num_gpus / a_node), 2) if across_nodes and num_gpus > 1 else 1

    def draws(self, num_gpus: int, batch_size: int, *, across_nodes: bool = False) -> Vector:
        """Draw the logarithm of the seconds of a step (k,), where it was timed and where it was not."""
        place = self.places.get((num_gpus, batch_size))
        if place is not None:
            return np.asarray(self.found.draws[:, place])
        nodes = self.nodes(num_gpus, across_nodes=across_nodes)
        share = self.examples(batch_size) / num_gpus
        return self.found.at(num_gpus, share, nodes=nodes, data_seconds=self.data_seconds)

    def seconds(self, num_gpus: int, batch_size: int, *, across_nodes: bool = False) -> float:
        """Return the seconds of a step: of a place that was timed, what every table has."""
        place = self.places.get((num_gpus, batch_size))
        if place is not None:
            return math.exp(self.found.mean[place])
        return math.exp(float(np.median(self.draws(num_gpus, batch_size, across_nodes=across_nodes))))


class Posterior:
    """What a study's records say of the steps to targets and of the seconds of a step, worked out once each."""

    def __init__(
        self,
        spec: StudySpec,
        cells: Sequence[Cell],
        *,
        include_flagged: bool = False,
        pools: bool = True,
        timing_runs: Sequence[Trial] | None = None,
        untried: Iterable[Key] = (),
    ) -> None:
        """Take the cells of a study (`cells.gather`).

        include_flagged: fit laws to timings in doubt too. pools: whether the same training with several num_gpus may
        count as one. timing_runs: as `timed_steps` takes them. untried: places that were not trained, which may have
        sizes that were not timed; as `Learnt.of` takes them.
        """
        self.timing_runs, self._untried = timing_runs, tuple(untried)
        self.spec, self.cells, self._pools = spec, cells, pools
        self.metric = StudyMetric.of(spec.workload)
        self.combinations = {each.of: each for each in combinations(cells)}
        self._include_flagged = include_flagged
        self._steps: dict[str, TimedSteps] = {}
        self._trainings: dict[str, list[Training]] = {}
        self._pooled: dict[str, bool] = {}
        self._confirmed: dict[tuple[str, float], float] = {}
        self._learnt: dict[tuple[str, float], Learnt | None] = {}
        self._timed: dict[str, Timed | None] = {}

    def take(self, before: "Posterior") -> None:
        """Take over what another of the same study says where its records are the same: the laws' draws take long."""
        if self.timing_runs is not None and self.timing_runs == before.timing_runs:
            self._timed |= before._timed
        self._learnt |= {
            (of, target): learnt
            for (of, target), learnt in before._learnt.items()
            if of in self.combinations and self.trainings(of) == before.trainings(of)
        }

    def trainings(self, of: str) -> list[Training]:
        """Return the trainings of a combination (`trainings_of`)."""
        if of not in self._trainings:
            self._trainings[of] = trainings_of(self.combinations[of].cells)
        return self._trainings[of]

    def pooled(self, of: str) -> bool:
        """Return whether a training of a combination learns the same with any num_gpus."""
        if of not in self._pooled:
            self._pooled[of] = self._pools and learns_alike(self.spec, self.combinations[of])
        return self._pooled[of]

    def confirmed(self, of: str, target: float) -> float:
        """Return the chance, in a combination, that another evaluation confirms the last one that met a target."""
        if (of, target) not in self._confirmed:
            curves = (training.curve for training in _independent(self.trainings(of), pooled=self.pooled(of)))
            self._confirmed[of, target] = confirmed_share(curves, target, self.metric)
        return self._confirmed[of, target]

    def learnt(self, of: str, target: float) -> Learnt | None:
        """Return the steps of a combination to a target (`Learnt.of`)."""
        if (of, target) not in self._learnt:
            self._learnt[of, target] = Learnt.of(
                self.trainings(of),
                target,
                self.metric,
                self._generator(of),
                pooled=self.pooled(of),
                confirmed=self.confirmed(of, target),
                untried=self._untried,
            )
        return self._learnt[of, target]

    def timed(self, of: str) -> Timed | None:
        """Return the seconds of a combination's steps; None if none was timed."""
        if of not in self._timed:
            chance = list(self.combinations).index(of)
            self._timed[of] = Timed.of(self.timed_steps(of), chance, untried=bool(self._untried))
        return self._timed[of]

    def timed_steps(self, of: str) -> TimedSteps:
        """Return the step timings of a combination."""
        if of not in self._steps:
            self._steps[of] = timed_steps(
                self.combinations[of], include_flagged=self._include_flagged, runs=self.timing_runs
            )
        return self._steps[of]

    def times(self, target: float) -> Times:
        """Return the times to a target of all cells whose median over seeds is known (`median_arrival`)."""
        parts = []
        for of, combination in self.combinations.items():
            cells = _usable(combination.cells)
            steps, seconds = self.learnt(of, target) if cells else None, self.timed(of)
            if steps is not None and seconds is not None:
                parts.append(times_of(cells, steps, seconds, by_law=self.timing_runs is not None))
        return Times.joined(parts)

    def _generator(self, of: str) -> np.random.Generator:
        """Return a generator for a combination: the same records give the same answer, and combinations differ."""
        return np.random.default_rng(list(self.combinations).index(of))


def _usable(cells: Sequence[Cell]) -> list[Cell]:
    return [cell for cell in cells if cell.learning_rate > 0 and cell.trials and cell.is_timed]


def _examples(trainings: Sequence[Training]) -> dict[int, float]:
    """Return the examples of a step by batch size: fewer where an epoch ends in a smaller step."""
    each: dict[int, list[float]] = defaultdict(list)
    for training in trainings:
        each[training.batch_size].append(training.examples_per_step)
    return {batch_size: statistics.median(found) for batch_size, found in each.items()}


def steps_untried(law: BatchLaw, batch_size: int) -> Told:
    """Return the steps to the target of a batch size that was not trained with, at its best rate."""
    return Told(value=law.steps(batch_size).value, logs=law.untried(batch_size))


def seconds_of_steps(steps: float, seconds: Timed, batch_size: int, num_gpus: int, *, across_nodes: bool) -> float:
    """Return the seconds that so many steps take, warm-up included."""
    step = seconds.seconds(num_gpus, batch_size, across_nodes=across_nodes)
    return steps * step + seconds.warm_up_beside(num_gpus, batch_size)


def time_of_steps(steps: Told, seconds: Timed, batch_size: int, num_gpus: int, *, across_nodes: bool) -> Told:
    """Return the same with its draws."""
    draws = steps.logs + seconds.draws(num_gpus, batch_size, across_nodes=across_nodes)
    warm_up = max(seconds.warm_up_beside(num_gpus, batch_size), NO_SECONDS)
    return Told(
        value=seconds_of_steps(steps.value, seconds, batch_size, num_gpus, across_nodes=across_nodes),
        logs=np.logaddexp(draws, math.log(warm_up)),
    )


def seconds_untried(
    steps: Learnt, seconds: Timed, batch_size: int, rate: float, num_gpus: int, *, across_nodes: bool
) -> float:
    """Return the seconds to the target of a batch size and rate that were tried, with workers that may not have been.

    A cell that was tried has what `times_of` says.
    """
    count = math.exp(steps.mean_beside(batch_size, rate, num_gpus))
    return seconds_of_steps(count, seconds, batch_size, num_gpus, across_nodes=across_nodes)


def time_untried(
    steps: Learnt, seconds: Timed, batch_size: int, rate: float, num_gpus: int, *, across_nodes: bool
) -> Told:
    """Return the same with its draws."""
    count = steps.beside(batch_size, rate, num_gpus)
    return time_of_steps(count, seconds, batch_size, num_gpus, across_nodes=across_nodes)


def times_of(cells: Sequence[Cell], steps: Learnt, seconds: Timed, *, by_law: bool = False) -> Times:
    """Return the times of the cells of one combination whose median over seeds is known.

    by_law: whether a cell whose steps were not timed has those of the law.
    """
    known = [cell for cell in cells if steps.has(cell) and (by_law or seconds.has(cell))]
    learnt = np.array([steps.place(cell) for cell in known], dtype=np.int64)
    untimed = [index for index, cell in enumerate(known) if not seconds.has(cell)]
    timed = np.array([seconds.place(cell) if seconds.has(cell) else 0 for cell in known], dtype=np.int64)
    later = np.array([steps.later(cell) for cell in known])
    longer = [seconds.warm_up(cell) if seconds.has(cell) else 0.0 for cell in known]
    warm_up = np.log(np.maximum(longer, NO_SECONDS))
    draws, mean = seconds.found.draws[:, timed], seconds.found.mean[timed]
    for index in untimed:
        draws[:, index] = seconds.draws(known[index].num_gpus, known[index].batch_size)
        mean[index] = draws[:, index].mean()
    draws += steps.found.draws[:, learnt]
    draws += later
    return Times(
        labels=tuple(cell.label for cell in known),
        mean=np.logaddexp(steps.found.mean[learnt] + later + mean, warm_up),
        draws=np.logaddexp(draws, warm_up, out=draws),
        learnt=tuple(
            (steps.found.draws, place, more) for place, more in zip(learnt.tolist(), later.tolist(), strict=True)
        ),
        of_training=np.full(len(known), steps.found.scatter),
        of_run=np.full(len(known), np.median(seconds.found.noise)),
    )
