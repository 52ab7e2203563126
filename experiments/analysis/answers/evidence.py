"""What the records of a study say to a sequential design: its beliefs, what a look costs, and what ran already."""

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from scalestudy.experiments.analysis.answers.beliefs import Beliefs, Place, Recipe, Size
from scalestudy.experiments.analysis.answers.posterior import Posterior, Timed
from scalestudy.experiments.analysis.laws.shrinkage import Vector
from scalestudy.experiments.analysis.measures.cells import gather
from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.analysis.measures.trial import Trial
from scalestudy.experiments.analysis.measures.usable import TIMED, Usable, test_values, time_to_target
from scalestudy.experiments.plan.plan import Plan, TrialPlan, label
from scalestudy.experiments.plan.timing_runs import LOOP_REPORTS, timing_run_seconds
from scalestudy.experiments.spec.search_space import Cell, stated_places
from scalestudy.experiments.spec.study_spec import StudySpec

MOST_OFTEN = 0.99
"""Up to this quantile of its prediction a training goes on."""
LEAST_CURVE = 6
"""Fewest evaluations that tell where a training comes to rest."""
FAILED = ("failed", "skipped")
MOST_FAILED = 2
"""Trials of a recipe or a size that failed, after which no more are asked for."""


class Evidence:
    """The records of a study, as its design takes them.

    Trials are those of looks: confirmations, which never reopen a choice, are kept apart.
    """

    @classmethod
    def of(cls, spec: StudySpec, plan: Plan, known: Usable, before: "Evidence | None" = None) -> "Evidence":
        """Take the records of an adaptive study (`Analysis.usable`).

        before: the evidence of some of them, which spares work.
        """
        places, metric = list(places_of(spec)), StudyMetric.of(spec.workload)
        trials = sorted(known.trials, key=number_of)  # however they came
        explored = _with_lost([trial for trial in trials if not is_confirmation(trial)], spec)
        known = replace(known, trials=tuple(explored))
        posterior = Posterior(
            spec,
            gather(plan, known, metric),
            timing_runs=known.timing_runs,
            untried=sorted({place.recipe(pooled=True) for place in places}),
        )
        if before is not None:
            posterior.take(before.posterior)
        return cls(spec, posterior, places, trials, spec.evaluations)

    def __init__(
        self,
        spec: StudySpec,
        posterior: Posterior,
        stated: Sequence[Place],
        trials: Sequence[Trial],
        evaluations: int,
    ) -> None:
        """Take the parts.

        Args:
            spec: of the study.
            posterior: of the looks, with the steps of the recipes of all stated cells.
            stated: the cells that the answer is one of.
            trials: all that ended, confirmations too.
            evaluations: that a training has, if it comes to its end.
        """
        self.spec, self.posterior = spec, posterior
        # a Ray Train loop may report more often than was said
        self.most_evaluations = max([evaluations, *(len(trial.epochs) for trial in trials if not trial.is_timing)])
        self.combination = next(iter(posterior.combinations), "")
        self.pooled = not posterior.combinations or posterior.pooled(self.combination)
        self.confirmations = [trial for trial in trials if is_confirmation(trial)]
        self.trials = [trial for trial in trials if not is_confirmation(trial)]
        self.stated = tuple(stated)

    @cached_property
    def cells(self) -> dict[Place, Cell]:
        """The stated cells of the spec (`places_of`)."""
        return places_of(self.spec)

    def label_of(self, place: Place) -> str:
        """Return the label of a stated cell."""
        return label(self.cells[place])

    @property
    def target(self) -> float:
        """The metric's value to reach."""
        target = self.spec.hardest_target
        assert target is not None
        return target

    @cached_property
    def timings(self) -> Counter[Size]:
        """How many timing runs of each size have ended, in whatever way."""
        return Counter(Size.of(trial) for trial in self.trials if trial.is_timing)

    @cached_property
    def trainings(self) -> Counter[Recipe]:
        """How many trainings of each recipe have ended, in whatever way."""
        return Counter(self._recipe(trial) for trial in self.trials if not trial.is_timing)

    @cached_property
    def possible(self) -> tuple[Place, ...]:
        """The stated cells that may still be the answer.

        Those are out that ran out of memory, or have as many examples a worker as one that did, and those of which
        trials fail: a batch size and rate of which two did, and a size of which two timing runs or two rates did.
        """
        heavy = [trial for trial in self.trials if trial.status == "out_of_memory"]
        share = min((trial.batch_size / trial.num_gpus for trial in heavy), default=math.inf)
        failed = [trial for trial in self.trials if _has_failed(trial)]
        ways = {(Size.of(trial), trial.trial_id if trial.is_timing else trial.learning_rate) for trial in failed}
        sizes = Counter(size for size, _ in ways)
        recipes = Counter(self._recipe(trial) for trial in failed if not trial.is_timing)
        return tuple(
            place
            for place in self.stated
            if place.batch_size / place.num_gpus < share
            and sizes[place.size] < MOST_FAILED
            and recipes[place.recipe(pooled=self.pooled)] < MOST_FAILED
        )

    @property
    def timed(self) -> Timed | None:
        """Seconds of steps; None: nothing was timed, or no training has ended."""
        return self.posterior.timed(self.combination) if self.posterior.combinations else None

    def cheapest(self, batch_size: int) -> int:
        """Return the num_gpus that take the fewest worker-seconds a step, the fewest workers where none is timed."""
        counts = sorted({place.num_gpus for place in self.possible if place.batch_size == batch_size})
        timed = self.timed
        return counts[0] if timed is None else min(counts, key=lambda count: count * timed.seconds(count, batch_size))

    @cached_property
    def beliefs(self) -> Beliefs | None:
        """The beliefs of the cells that may be the answer.

        None: no training has reached the target, or no step is timed.
        """
        return self.beliefs_of(self.possible) if self.possible else None

    def beliefs_of(self, places: Sequence[Place]) -> Beliefs | None:
        """Return the same of any stated cells."""
        if self.timed is None:
            return None
        learnt, timed = self.posterior.learnt(self.combination, self.target), self.timed
        if learnt is None:
            return None
        fates = {  # of copies on several num_gpus one counts
            (each.batch_size, each.rate, each.seed, 1 if learnt.pooled else each.num_gpus): (
                each.rate,
                each.status == "diverged",
            )
            for each in self.posterior.trainings(self.combination)
            if each.status == "diverged"
            or math.isfinite(time_to_target(each.curve, self.target, self.posterior.metric))
        }
        return Beliefs.of(
            places,
            learnt,
            timed,
            list(fates.values()),
            latest=lambda batch: self.longest(batch) - self.steps_between(batch),  # two in a row meet it
            by_cost=self.spec.minimises == "cost",
        )

    @cached_property
    def evaluation_steps(self) -> dict[int, float]:
        """Steps from one evaluation to the next, by batch size, as far as trainings tell."""
        found: dict[int, list[float]] = {}
        for trial in self.trials:
            counts = [epoch.steps_at(trial.batch_size) for epoch in trial.epochs]
            if not trial.is_timing and counts and counts[0]:
                found.setdefault(trial.batch_size, []).append(counts[0])
        return {batch: statistics.median(counts) for batch, counts in found.items()}

    def steps_between(self, batch_size: int) -> float:
        """Return the steps between two evaluations: of another batch size, as many examples are taken to lie there."""
        known = self.evaluation_steps
        if batch_size in known or not known:
            return known.get(batch_size, 1.0)
        near = min(known, key=lambda other: abs(math.log(other / batch_size)))
        if self.spec.train.unit == "steps":
            return known[near]
        samples = [trial.epochs[0].samples for trial in self.trials if not trial.is_timing and trial.epochs]
        told = [count for count in samples if count]
        return float(math.ceil((statistics.median(told) if told else known[near] * near) / batch_size))

    def longest(self, batch_size: int) -> float:
        """Return the steps to a training's last evaluation; infinity of runs that others made, which may go on."""
        return math.inf if self.spec.judged else self.most_evaluations * self.steps_between(batch_size)

    def made(self, steps: float, batch_size: int) -> float:
        """Return the steps of a training that needs so many to the target.

        Another evaluation follows the one that meets the target, unless it is the last.
        """
        return min(steps + self.steps_between(batch_size), self.longest(batch_size))

    def evaluations(self, draws: Vector, scatter: float, batch_size: int) -> int | None:
        """Return after how many evaluations a training ends whose steps are drawn (k,); None: at its last one.

        The target is reached once two in a row meet it.
        """
        chance = np.random.default_rng(0).standard_normal(len(draws))
        most = math.exp(float(np.quantile(draws + scatter * chance, MOST_OFTEN)))
        count = math.ceil(most / self.steps_between(batch_size)) + 1
        return count if count < self.most_evaluations else None

    def has_arrived(self, trial: Trial) -> bool:
        """Whether a training has reached the target."""
        metric = self.posterior.metric
        return metric.arrival(test_values(trial, metric), self.target) is not None

    def distance(self, trial: Trial) -> float:
        """Return how far a training came, by its best value: the less the nearer; infinity if it diverged."""
        metric = self.posterior.metric
        orders = [metric.order(value) for value in test_values(trial, metric)]
        return min(orders, default=math.inf) if trial.status in TIMED else math.inf

    @cached_property
    def censored_share(self) -> float:
        """The share of the trainings with a limit that ended at it."""
        limited = [each for each in self.trials if each.look and each.look.evaluations and each.status in TIMED]
        return sum(trial.status == "stopped" for trial in limited) / len(limited) if limited else 0.0

    def timing_seconds(self, step: float, batch_size: int) -> float:
        """Return how long a timing run takes whose steps take so many seconds."""
        if self.spec.workload.loop:
            return LOOP_REPORTS * self.steps_between(batch_size) * step + self.beside_timing
        return timing_run_seconds(self.spec.train.warm_up_steps, step) + self.beside_timing

    @property
    def tells_no_steps(self) -> bool:
        """Whether a timing run has come to its end without saying what a step takes, as no other will then."""
        runs = [trial for trial in self.trials if trial.is_timing and trial.status in TIMED]
        return any(not all(epoch.steps_at(run.batch_size) for epoch in run.epochs) for run in runs)

    def training_seconds(self, steps: float, step: float, batch_size: int) -> float:
        """Return how long a training takes that needs so many steps of so many seconds to the target."""
        return self.overhead * self.made(steps, batch_size) * step

    def most_worker_seconds(self, batch_size: int) -> float | None:
        """Return the worker-seconds of a training to its last evaluation; None: too little is known."""
        timed = self.timed
        if timed is None or not self.evaluation_steps:
            return None
        count = self.cheapest(batch_size)
        return count * self.training_seconds(self.longest(batch_size), timed.seconds(count, batch_size), batch_size)

    @cached_property
    def beside_timing(self) -> float:
        """Seconds of a timing run beside its steps: the median, so that of workers that were ready."""
        runs = [trial.wall_seconds - trial.train_seconds for trial in self.trials if trial.is_timing]
        return max(statistics.median(runs), 0.0) if runs else 0.0

    @cached_property
    def overhead(self) -> float:
        """By how much a training takes longer than its steps, evaluation included: a factor, the median."""
        trained = [trial for trial in self.trials if not trial.is_timing and trial.train_seconds > 0]
        factors = [trial.wall_seconds / trial.train_seconds for trial in trained]
        return max(statistics.median(factors), 1.0) if factors else 1.0

    def _recipe(self, trial: Trial) -> Recipe:
        return Place.of(trial).recipe(pooled=self.pooled)


def _has_failed(trial: Trial) -> bool:
    """Whether a trial says nothing of its cell: a timing run too without a timing, as one that diverged."""
    return trial.status in FAILED or (trial.is_timing and not (trial.status in TIMED and trial.epochs))


def _with_lost(trials: Sequence[Trial], spec: StudySpec) -> list[Trial]:
    """Return the trials, those that came to rest short of the target as diverged: they would never reach it.

    With too low a rate a training may come to rest too, since its schedule ends: it counts if a lower rate arrived.
    """
    metric, target = StudyMetric.of(spec.workload), spec.hardest_target
    values = {trial.trial_id: test_values(trial, metric) for trial in trials if not trial.is_timing}
    arrived = {name for name, each in values.items() if target is not None and metric.arrival(each, target) is not None}
    lowest = min((trial.learning_rate for trial in trials if trial.trial_id in arrived), default=math.inf)
    return [
        replace(trial, status="diverged")
        if trial.status == "finished"
        and trial.trial_id in values.keys() - arrived
        and trial.learning_rate > lowest
        and rests_short(values[trial.trial_id], target, metric)
        else trial
        for trial in trials
    ]


def rests_short(values: Sequence[float], target: float | None, metric: StudyMetric) -> bool:
    """Whether a metric comes to rest before it meets a target.

    Its best values after a third, two thirds and all evaluations give the value at which a geometric approach ends
    (Aitken 1926).
    """
    best = np.minimum.accumulate([metric.order(value) for value in values])
    if target is None or len(best) < LEAST_CURVE:
        return False
    first, second, last = (float(best[math.ceil(len(best) * part / 3) - 1]) for part in (1, 2, 3))
    before, after = first - second, second - last
    if after > 0 and not after < before:
        return False  # it does not slow down
    end = last - after**2 / (before - after) if after > 0 else last
    return end > metric.order(target)


def places_of(spec: StudySpec) -> dict[Place, Cell]:
    """Return the stated cells of a spec."""
    return {Place(cell["num_gpus"], cell["batch_size"], cell["learning_rate"]): cell for cell in stated_places(spec)}


def number_of(trial: Trial | TrialPlan) -> int:
    """Return the number of a look; 0 of a trial that is none."""
    return trial.look.number if trial.look else 0


def is_confirmation(trial: Trial | TrialPlan) -> bool:
    """Whether a trial was run to confirm a choice."""
    return trial.look is not None and trial.look.kind == "confirmation"
