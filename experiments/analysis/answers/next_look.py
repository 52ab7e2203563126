"""The next look of an adaptive search: the training or timing that tells most for its cost, or the end. Pure.

First come short timings of sizes that lie apart, then trainings until one reaches the target. From then on the
posterior says what each look is worth (`gain`), and the search goes on until the cell that is believed best is likely
enough near the best of all cells that can run, or the budget has no room for another training. Fresh seeds then confirm
the choice.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from scalestudy.experiments.analysis.answers.beliefs import Beliefs, Place, Recipe, Size
from scalestudy.experiments.analysis.answers.evidence import Evidence, is_confirmation, number_of
from scalestudy.experiments.analysis.answers.gain import REPEATS, conditioned, gains, most_for_its_cost, variance_taken
from scalestudy.experiments.analysis.answers.posterior import HALF
from scalestudy.experiments.analysis.laws.shrinkage import Vector
from scalestudy.experiments.analysis.measures.targets import SECONDS_PER_HOUR
from scalestudy.experiments.analysis.measures.trial import Trial
from scalestudy.experiments.analysis.measures.usable import TIMED
from scalestudy.experiments.plan.look import Ending, Look
from scalestudy.experiments.plan.plan import TrialPlan, cell_trial
from scalestudy.experiments.plan.timing_runs import timing_trial
from scalestudy.experiments.spec.study_spec import StudySpec

WITHIN, SURE = 0.05, 0.9
"""Looking ends once the chosen cell is within 5 % of the best with this probability."""
CONFIRMATIONS = 5
"""Fresh seeds of the chosen cell, and of its rival."""
FRESH = 1000
"""Fresh seeds are so far above those of looks."""
MOST_CENSORED, TESTED = 0.1, 0.1
"""If more trainings end at their limit than this share, a random tenth has none, which tests the limits."""
SEEDS = 2
"""Of a batch size and rate, until one training has reached the target."""
MOST_FIRST = 10
"""Trainings without one that reaches the target, after which the search gives up."""
SECONDS_PER_MINUTE = 60.0


@dataclass(frozen=True, kw_only=True)
class Room:
    """What a search has for its looks."""

    workers: int  # that run at a time
    start_seconds: float = 0.0  # until workers of another num_gpus are ready
    minutes: float = 0.0  # that the study has taken so far


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A look to start now."""

    trial: TrialPlan


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Nothing is to start before what runs has ended."""


@dataclass(frozen=True, kw_only=True)
class Over:
    """No look comes any more.

    unreached: no training has reached the target. none_can_run: trials of every cell failed or ran out of memory.
    untimed: no timing run came to its end. no_steps: one did, and told no steps, as a Ray Train loop may.
    """

    why: Ending | Literal["unreached", "none_can_run", "untimed", "no_steps"]


Decision = Wanted | Wait | Over
WAIT = Wait()


def needs_quiet(trial: TrialPlan) -> bool:
    """Whether a look's seconds count, so that nothing may run beside it."""
    return trial.kind == "timing" or is_confirmation(trial)


def may_run_beside(trial: TrialPlan, others: Sequence[TrialPlan]) -> bool:
    """Whether a look may run beside others: none of their seconds counts."""
    return not others or not any(map(needs_quiet, (trial, *others)))


def decide(evidence: Evidence, running: Sequence[TrialPlan], room: Room) -> Decision:
    """Return what to start next. The same evidence and the same running trials give the same answer.

    running: looks that have begun and not ended.
    """
    return _Deciding(evidence, running, room).decision()


def first_sizes(places: Sequence[Place]) -> list[Size]:
    """Return sizes that lie apart, those with the most workers first: what a law of the step's time needs."""
    counts, batches = (sorted(set(values)) for values in zip(*(place.size for place in places), strict=True))
    low, second, middle, high = counts[0], counts[min(1, len(counts) - 1)], counts[len(counts) // 2], counts[-1]
    small, usual, large = batches[0], batches[len(batches) // 3], batches[-1]
    wanted = {
        *((low, batch) for batch in (small, large)),
        (second, usual),
        *((middle, batch) for batch in (small, large)),
        *((high, batch) for batch in (usual, large)),
    }
    return sorted({place.size for place in places} & {Size(*each) for each in wanted}, reverse=True)


def first_recipe(
    places: Sequence[Place], ended: Sequence[tuple[int, float, float]], untold: Sequence[tuple[int, float]]
) -> tuple[int, float] | None:
    """Return the batch size and rate that are tried next while none has reached the target; None: all were tried.

    A middle rate comes first, below all that diverged; then the middle of the wider gap beside the rate that came
    nearest to the target; where no gap is left, that rate and the one that diverged, with the smallest batch, which
    makes the most steps, and with another seed; then all that is left.

    Args:
        places: that may be the answer, one or more.
        ended: batch size, rate, and how far the training came: the less the nearer, infinity where it diverged.
        untold: batch size and rate of those that run, or failed.
    """
    batches, rates = sorted({place.batch_size for place in places}), sorted({place.learning_rate for place in places})
    usual = dict.fromkeys((batches[len(batches) // 3], batches[2 * len(batches) // 3], batches[0]))
    stated = {(place.batch_size, place.learning_rate) for place in places}
    asked = Counter([*((batch, rate) for batch, rate, _ in ended), *untold])
    most = min((rate for _, rate, far in ended if math.isinf(far)), default=math.inf)
    tried = {rate for _, rate in asked}
    nearest = min(((far, rate) for _, rate, far in ended if rate < most), default=None)
    best = nearest[1] if nearest else most
    ends = [0.0, *sorted(rate for rate in tried if rate < most), most]
    gaps = [
        [rate for rate in rates if low < rate < high]
        for low, high in itertools.pairwise(ends)
        if nearest is None or best in (low, high)
    ]
    gap = max(gaps, key=len)
    wanted = [gap[(len(gap) - 1) // 2]] if gap else []
    pairs = [(batch, rate) for rate in wanted for batch in usual if not asked[batch, rate]]
    again = [(batch, rate) for batch in (batches[0], *usual) for rate in (best, most)]
    pairs += sorted((pair for pair in again if asked[pair] < SEEDS), key=lambda pair: asked[pair])
    pairs += [(batch, rate) for batch in usual for rate in rates if rate < most and not asked[batch, rate]]
    return next((pair for pair in pairs if pair in stated), None)


class _Deciding:
    """One decision."""

    def __init__(self, evidence: Evidence, running: Sequence[TrialPlan], room: Room) -> None:
        self.evidence, self.room = evidence, room
        self.running = sorted(running, key=number_of)
        self.spec = evidence.spec
        [(self.unit, amount)] = self.spec.budget.limits.items()
        self.amount = float(amount)  # the budget, in its unit

    def decision(self) -> Decision:
        if any(needs_quiet(trial) for trial in self.running):
            return WAIT
        beliefs = self.evidence.beliefs
        if beliefs is not None and self.confirming:
            return self.confirm(beliefs)
        if beliefs is not None and (again := self.again(beliefs)) is not None:
            return self.wanted(again)
        possible = {place.size for place in self.evidence.possible}
        sizes = [size for size in first_sizes(self.evidence.stated) if size in possible - self.evidence.timings.keys()]
        if sizes and self.used < self.amount and not self.evidence.tells_no_steps:
            return self.wanted(self.timing(sizes[0]))
        if beliefs is None:
            return self.first()
        return self.next(beliefs)

    def again(self, beliefs: Beliefs) -> TrialPlan | None:
        """Return the next look of a row that was begun: one alone would hardly change the choice.

        None: there is none, the last one has missed the target, the search is sure by now, or the budget has no room.
        """
        near = beliefs.chance(beliefs.best, WITHIN)
        looked: list[Trial | TrialPlan] = [*self.evidence.trials, *self.running]
        last = max(looked, key=number_of, default=None)
        look = last.look if last else None
        if near >= SURE or last is None or look is None or look.row is None or look.row < 2:
            return None
        if isinstance(last, Trial) and not (
            last.status in TIMED and (last.is_timing or self.evidence.has_arrived(last))
        ):
            return None
        best = self.evidence.label_of(beliefs.places[beliefs.best])
        same = replace(look, number=self.number, row=look.row - 1, best=best, probability=near)
        place = Place.of(last)
        if last.kind == "timing":
            again = self.timing(place.size, same) if place.size in beliefs.sizes else None
        elif (recipe := place.recipe(pooled=True)) in beliefs.recipes:
            one_more = self.limited(replace(same, kind="training"), beliefs, beliefs.recipes.index(recipe))
            again = self.training(recipe, one_more)
        else:
            again = None
        return again if again is not None and self.cost_of(again) <= self.left(beliefs) else None

    # --- before the law is known ----------------------------------------------------------------------------------
    def first(self) -> Decision:
        evidence = self.evidence
        over = self.without_first()
        if over is not None:
            return WAIT if self.running else over
        trained = [trial for trial in evidence.trials if not trial.is_timing]
        told = [trial for trial in trained if trial.status in (*TIMED, "diverged")]
        untold = [*self.running, *(trial for trial in trained if trial not in told)]
        pair = first_recipe(
            evidence.possible,
            [(trial.batch_size, trial.learning_rate, evidence.distance(trial)) for trial in told],
            [(trial.batch_size, trial.learning_rate) for trial in untold],
        )
        if pair is None or len(trained) + len(self.running) >= MOST_FIRST:
            return WAIT if self.running else Over(why="unreached")
        most = evidence.most_worker_seconds(pair[0])
        if most is None and self.running and self.unit == "worker_hours":
            return WAIT  # several whose cost is unknown could overrun the budget by as many
        return self.wanted(self.training(Recipe(*pair, 1), Look(number=self.number, kind="first", worker_seconds=most)))

    def without_first(self) -> Over | None:
        """Return why no training is tried as long as none has reached the target; None: one may be."""
        evidence = self.evidence
        if evidence.tells_no_steps:
            return Over(why="no_steps")
        if not evidence.possible:
            return Over(why="none_can_run")
        no_run_ended = evidence.timings and not evidence.posterior.timing_runs
        if no_run_ended or (evidence.posterior.combinations and evidence.timed is None):
            return Over(why="untimed")
        return Over(why="budget") if self.used + self.in_work >= self.amount else None

    # --- by the posterior -----------------------------------------------------------------------------------------
    def next(self, beliefs: Beliefs) -> Decision:
        near = beliefs.chance(beliefs.best, WITHIN)
        if near >= SURE:
            return WAIT if self.running else self.confirm(beliefs)
        wanted = self.look(beliefs, near)
        if not isinstance(wanted, TrialPlan):
            return WAIT if self.running else self.confirm(beliefs, wanted)
        return self.wanted(wanted)

    def look(self, beliefs: Beliefs, near: float) -> TrialPlan | Ending:
        """Return the look that tells most for its cost, of those that the budget has room for, or why there is none."""
        after = beliefs
        for trial in self.running:
            after = self.told(after, trial)
        count, left = len(beliefs.recipes), self.left(beliefs)  # of the looks, trainings come before timings
        seconds, worker_seconds = self.spending(beliefs)
        of_budget = (seconds if self.unit == "minutes" else worker_seconds).tolist()
        costs = np.array([self.priced(cost, int(index < count)) for index, cost in enumerate(of_budget)])
        if (costs[:count] > left).all():  # timings alone would never end a budget of trainings
            return "budget"
        looks = np.hstack([after.steps, after.seconds])
        noise = np.r_[np.full(count, beliefs.scatter), np.full(len(beliefs.sizes), beliefs.noise)]
        arriving = np.r_[after.arriving, np.ones(len(beliefs.sizes))]
        worth = gains(after.shown, looks, noise) * arriving[:, None]  # what misses the target tells next to nothing
        uses = self.spec.budget.uses
        if uses is not None:
            unit = math.exp(float(beliefs.small(beliefs.reaching)[:, beliefs.best].mean()))
            price = worker_seconds if beliefs.by_cost else seconds
            if (uses * worth[:count] * unit < np.multiply.outer(price[:count], REPEATS)).all():
                return "uses"
        weighed = np.maximum(worker_seconds, LEAST_SHARE * worker_seconds[:count].min())
        often = [self.evidence.timings[size] >= MOST_TIMINGS for size in beliefs.sizes]
        weighed[(costs > left) | np.r_[np.zeros(count, dtype=bool), often]] = math.inf
        index, repeats, gain = most_for_its_cost(worth, weighed)
        if gain <= LEAST_GAIN:  # no look would lower the time: one tells whether the best cell is near the best
            gain, repeats = 0.0, 1
            settled = variance_taken(after.near(beliefs.best, WITHIN), looks, noise) * arriving
            index = int(np.argmax(np.where(np.isinf(weighed), -1.0, settled / weighed)))
        row = repeats // 2
        look = Look(
            number=self.number,
            kind="training" if index < count else "size",
            gain=gain,
            repeats=repeats,
            row=row if row > 1 and row * costs[index] <= left else None,
            worker_seconds=float(worker_seconds[index]),
            best=self.evidence.label_of(beliefs.places[beliefs.best]),
            probability=near,
        )
        if index < count:
            return self.training(beliefs.recipes[index], self.limited(look, beliefs, index))
        return self.timing(beliefs.sizes[index - count], look)

    def limited(self, look: Look, beliefs: Beliefs, index: int) -> Look:
        """Return the look of a training with its limit, or as a test of the limits."""
        look = replace(look, evaluations=None)
        drawn = np.random.default_rng(look.number).random()
        if self.evidence.censored_share > MOST_CENSORED and drawn < TESTED:
            return replace(look, kind="whole")
        batch = beliefs.recipes[index].batch_size
        return replace(look, evaluations=self.evidence.evaluations(beliefs.steps[:, index], beliefs.scatter, batch))

    def told(self, beliefs: Beliefs, trial: TrialPlan) -> Beliefs:
        """Return the beliefs after a running training has ended as is expected."""
        recipe = Place.of(trial).recipe(pooled=True)
        if recipe not in beliefs.recipes:
            return beliefs
        steps = beliefs.steps[:, beliefs.recipes.index(recipe)]
        generator = np.random.default_rng(self.number)
        return replace(beliefs, steps=conditioned(beliefs.steps, steps, beliefs.scatter, generator))

    # --- the confirmation -----------------------------------------------------------------------------------------
    @cached_property
    def confirming(self) -> bool:
        """Whether fresh seeds confirm the choice by now. A larger budget goes on with looks where one had ended."""
        asked = self.evidence.confirmations
        if not asked:
            return False
        look = asked[-1].look
        assert look is not None
        then, now = look.budget, self.amount
        if look.ended == "uses":
            then, now = look.uses, self.spec.budget.uses or math.inf
        return look.ended == "sure" or then is None or now <= then

    def confirm(self, beliefs: Beliefs, ended: Ending | None = None) -> Decision:
        asked = [trial.look for trial in self.evidence.confirmations if trial.look is not None]
        if ended is None:
            ended = (asked[-1].ended if asked and self.confirming else None) or "sure"
        pair = chosen_and_next(beliefs)
        look = Look(
            number=self.number,
            kind="confirmation",
            best=self.evidence.label_of(beliefs.places[pair[0]]),
            probability=beliefs.chance(pair[0], WITHIN),
            ended=ended,
            budget=self.amount,
            uses=self.spec.budget.uses,
        )
        if self.used >= self.amount:
            return WAIT if self.running else Over(why=ended)  # looks, or others, took longer than they were to take
        done = {trial.trial_id for trial in self.evidence.confirmations} | {each.trial_id for each in self.running}
        for seed in fresh_seeds(self.spec):
            for index in pair:
                trial = cell_trial(self.spec, self.evidence.cells[beliefs.places[index]], seed)
                if trial.trial_id not in done:
                    return self.wanted(replace(trial, look=look))
        return Over(why=ended)

    # --- what looks take ------------------------------------------------------------------------------------------
    def start_seconds(self, num_gpus: int) -> float:
        """Return how long a look's workers take to start: nothing if a look has had as many."""
        started = {trial.num_gpus for trial in (*self.evidence.trials, *self.running)}
        return 0.0 if num_gpus in started else self.room.start_seconds

    def spending(self, beliefs: Beliefs) -> tuple[Vector, Vector]:
        """Return what trainings of recipes, then timings of sizes, take (r + s,): seconds, and worker-seconds."""
        evidence, step = self.evidence, beliefs.expected_seconds
        workers = np.array([size.num_gpus for size in beliefs.sizes])
        begin = np.array([self.start_seconds(count) for count in workers.tolist()])
        of_size = zip(beliefs.sizes, step.tolist(), strict=True)
        timings = begin + [evidence.timing_seconds(each, size.batch_size) for size, each in of_size]
        cheapest = {
            batch: beliefs.sizes.index(Size(evidence.cheapest(batch), batch))
            for batch in {size.batch_size for size in beliefs.sizes}
        }
        chosen = np.array([cheapest[recipe.batch_size] for recipe in beliefs.recipes])
        expected = zip(beliefs.recipes, beliefs.expected_steps.tolist(), step[chosen].tolist(), strict=True)
        trainings = begin[chosen] + [
            evidence.training_seconds(steps, each, recipe.batch_size) for recipe, steps, each in expected
        ]
        seconds = np.r_[trainings, timings]
        return seconds, seconds * np.r_[workers[chosen], workers]

    @property
    def used(self) -> float:
        """What was used of it, without what runs."""
        if self.unit == "minutes":
            return self.room.minutes
        every = [*self.evidence.trials, *self.evidence.confirmations]
        if self.unit == "trials":
            return float(sum(not trial.is_timing for trial in every))
        return math.fsum(trial.wall_seconds * trial.num_gpus for trial in every) / SECONDS_PER_HOUR

    def priced(self, cost: float, trials: int) -> float:
        """Return a cost (seconds of a budget of minutes, else worker-seconds) in the budget's unit."""
        per = {"minutes": SECONDS_PER_MINUTE, "worker_hours": SECONDS_PER_HOUR}
        return float(trials) if self.unit == "trials" else cost / per[self.unit]

    def cost_of(self, trial: TrialPlan) -> float:
        """Return what a look is to take, in the budget's unit; 0 where that is not known."""
        spent = (trial.look.worker_seconds if trial.look else None) or 0.0
        seconds = spent / trial.num_gpus if self.unit == "minutes" else spent
        return self.priced(seconds, trials=int(trial.kind == "training"))

    @property
    def in_work(self) -> float:
        """What the running looks are to take, in the budget's unit; of minutes, the longest of them."""
        costs = [self.cost_of(trial) for trial in self.running]
        return max(costs, default=0.0) if self.unit == "minutes" else math.fsum(costs)

    def left(self, beliefs: Beliefs) -> float:
        """Return what of the budget is left for another look."""
        return self.amount - self.used - self.reserve(beliefs) - self.in_work

    def reserve(self, beliefs: Beliefs) -> float:
        """Return what is set aside for the confirmation, in the budget's unit: fresh seeds of an earlier one count.

        A cell that is believed best now may be dear, and not the answer: it counts with `DEARER` times what the best
        cell takes in the median draw at the most.
        """
        done = Counter(Place.of(trial) for trial in self.evidence.confirmations)
        best = beliefs.logs.argmin(axis=1)
        taken = beliefs.times[np.arange(len(best)), best]
        if self.unit != "minutes":
            taken = taken + np.log([place.num_gpus for place in beliefs.places])[best]
        usual = DEARER * math.exp(float(np.median(taken))) * self.evidence.overhead
        seconds, seeds = [], 0
        for index in chosen_and_next(beliefs):
            place = beliefs.places[index]
            left = CONFIRMATIONS - done[place]
            seeds += left
            steps = float(beliefs.expected_steps[beliefs.of_recipe[index]])
            step = float(beliefs.expected_seconds[beliefs.of_size[index]])
            once = self.evidence.training_seconds(steps, step, place.batch_size)
            whole = left * once + self.start_seconds(place.num_gpus)
            workers = 1 if self.unit == "minutes" else place.num_gpus
            seconds.append(min(whole * workers, left * usual))
        return self.priced(math.fsum(seconds), seeds)

    # --- trials ---------------------------------------------------------------------------------------------------
    @property
    def number(self) -> int:
        """The number of the look that is decided."""
        ended = [*self.evidence.trials, *self.evidence.confirmations]
        return 1 + len(ended) + len(self.running)

    def timing(self, size: Size, look: Look | None = None) -> TrialPlan:
        """Return the next timing run of a size, with the lowest rate, at which its steps diverge least."""
        place = min(place for place in self.evidence.cells if place.size == size)
        like = cell_trial(self.spec, self.evidence.cells[place], first_seed(self.spec))
        trial = timing_trial(self.spec, like, self.evidence.timings[size])
        return replace(trial, look=look or Look(number=self.number, kind="size"))

    def training(self, recipe: Recipe, look: Look) -> TrialPlan:
        """Return the next training of a batch size and rate, with the num_gpus that take the fewest worker-seconds."""
        batch, rate, _ = recipe
        used = self.evidence.trainings[recipe]
        beside = sum(Place.of(trial).recipe(pooled=True) == recipe for trial in self.running)
        cell = self.evidence.cells[Place(self.evidence.cheapest(batch), batch, rate)]
        return replace(cell_trial(self.spec, cell, first_seed(self.spec) + used + beside), look=look)

    def wanted(self, trial: TrialPlan) -> Decision:
        """Return a look to start now, beside what runs if it fits and its seconds do not count; else wait."""
        taken = sum(each.num_gpus for each in self.running)
        fits = not self.running or taken + trial.num_gpus <= self.room.workers
        return Wanted(trial=trial) if fits and may_run_beside(trial, self.running) else WAIT


LEAST_SHARE = 0.25
"""Of the cheapest training, that every look counts for: else ever more timings of next to no worth would be made."""
MOST_TIMINGS = 16
"""Of a size: what so many timing runs leave open is the machine's unrest, which one more would not settle."""
DEARER = 1.5
"""See `reserve`: the best of each draw takes less than the cell that is the best of all will."""
LEAST_GAIN = 1e-4
"""A smaller gain counts as none: less than a hundredth of a per cent of the time."""


def chosen_and_next(beliefs: Beliefs) -> list[int]:
    """Return the cell that is believed best, and the second, if there is one that is believed to reach the target."""
    best, *others = np.argsort(beliefs.means, kind="stable")[:2].tolist()
    return [best, *(each for each in others if (beliefs.leap[:, beliefs.of_recipe[each]] > 0).mean() <= HALF)]


def first_seed(spec: StudySpec) -> int:
    """Return the seed of the first training of a batch size and rate."""
    return (spec.sweep.seed or (0,))[0]


def fresh_seeds(spec: StudySpec) -> Iterator[int]:
    """Return the seeds of a confirmation, fixed before the study begins."""
    first = first_seed(spec) + FRESH
    yield from range(first, first + CONFIRMATIONS)
