"""The trainings that would tell most about a study's answer, for whoever runs them: `recommend --next`, `judge --next`.

The rule is that of an adaptive search (`gain`): the next training is the one that lowers the least time to be expected
most for its worker-seconds; what it is expected to show is taken as shown, and the next one is chosen. The least time
is that of the cells that may be recommended: those whose time is known, and those that the training adds.

Shapes: k draws, c cells, j cells that may be trained.
"""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from scalestudy.experiments.analysis.answers.analysis import Analysis, asked
from scalestudy.experiments.analysis.answers.beliefs import Beliefs, Place, Recipe, Size
from scalestudy.experiments.analysis.answers.evidence import Evidence, places_of
from scalestudy.experiments.analysis.answers.gain import conditioned, gains, most_for_its_cost
from scalestudy.experiments.analysis.answers.judged import why_no_law
from scalestudy.experiments.analysis.answers.posterior import Posterior
from scalestudy.experiments.analysis.laws.shrinkage import Places, Vector
from scalestudy.experiments.analysis.measures.cells import Combination, combination_of, settings_of
from scalestudy.experiments.analysis.measures.parts import Figure, missing, present
from scalestudy.experiments.analysis.measures.targets import cost_of
from scalestudy.experiments.analysis.measures.usable import without_timing_runs
from scalestudy.experiments.plan.plan import Plan, label
from scalestudy.experiments.spec.search_space import ordered

MOST_CELLS = 1000
"""Of the combinations of values that were tried. Beyond it every other value of the longest list is left out."""
LOST_SHARE = 0.5
"""A batch size and rate of whose trainings at least this share diverged is not trained again."""
LEAST_LISTED = 1e-6
"""No training is listed that is worth less: a millionth of the time."""


def next_trainings(
    analysis: Analysis, recommendation: Figure, count: int, *, max_gpus: int | None = None, by_cost: bool = False
) -> Figure:
    """Return at most so many trainings, the one that tells most for its cost first, each given those before it.

    Args:
        analysis: of the study.
        recommendation: from `Analysis.recommend`: its target and the settings of its choice count.
        count: of trainings. There are fewer where no other would lower the least time.
        max_gpus: cells with more workers are left out.
        by_cost: whether the cell of fewest worker-seconds is looked for, in place of the soonest.

    Returns:
        `{of, target, by, rows}`, or missing with a why. by: "time" or "cost", of which the least is looked for. A row
        has `label`, `params` (with a `seed` that the training has not had), `seeds` (how many its cell has had),
        `gain`: by what share the least time or cost to be expected falls after so many `repeats`; `seconds`,
        `worker_seconds` and `cost` of one training's steps, without start and evaluation.
    """
    if not present(recommendation["recommended"]):
        return missing(recommendation["recommended"]["why"])
    if recommendation["target"] is None:
        return missing("the study names no target, by which times are compared")
    if (why := why_no_law(analysis.progress)) is not None:
        return missing(why)
    of, target = combination_of(recommendation["choice"]["params"]), float(recommendation["target"])
    choosing = _Choosing.of(analysis, analysis.posterior.combinations[of], target, max_gpus=max_gpus, by_cost=by_cost)
    rows = list(itertools.islice(choosing.rows(), count))
    if not rows:
        return missing("no further training is expected to lower the time to the target")
    return {"of": of, "target": target, "by": "cost" if by_cost else "time", "rows": rows}


@dataclass(frozen=True, kw_only=True)
class _Choosing:
    """What trainings are chosen from."""

    analysis: Analysis
    combination: Combination
    evidence: Evidence
    beliefs: Beliefs
    known: NDArray[np.bool_]  # (c,), whether the time of a cell is known
    apart: NDArray[np.bool_]  # (s,), whether timing runs give the seconds of a step, of which trainings say nothing

    @classmethod
    def of(
        cls, analysis: Analysis, combination: Combination, target: float, *, max_gpus: int | None, by_cost: bool
    ) -> "_Choosing":
        """Take the combination's cells whose time to the target is known, and all that could be trained."""
        own, most = analysis.posterior, math.inf if max_gpus is None else max_gpus
        labels = {row["label"] for row in analysis.times(target).rows if row["seconds"] is not None}
        known = {Place.of(cell) for cell in combination.cells if cell.label in labels}
        stated = places_of(analysis.spec) if analysis.plan.is_adaptive else _crossed(combination)
        cells = sorted(place for place in known | set(stated) if place.num_gpus <= most)
        pooled = own.pooled(combination.of)
        posterior = Posterior(
            analysis.spec,
            combination.cells,
            pools=pooled,
            timing_runs=own.timing_runs,
            untried=sorted({place.recipe(pooled=pooled) for place in cells}),
        )
        settings = combination.settings.items()
        trials = [trial for trial in analysis.trials if settings_of(trial.params).items() <= settings]
        lengths = [each.evaluations for each in analysis.plan.trials if settings_of(each.params).items() <= settings]
        evaluations = max(lengths, default=analysis.spec.evaluations)
        evidence = Evidence(asked(analysis.spec, accuracy=target), posterior, cells, trials, evaluations)
        beliefs = evidence.beliefs_of(cells)
        assert beliefs is not None  # the time of the choice is known
        at = [index for index, place in enumerate(cells) if place in known]
        latest = beliefs.latest.copy()
        latest[beliefs.of_recipe[at]] = math.inf  # their seeds have reached the target, or half of them at least
        timed_apart = {Size.of(cell) for cell in combination.cells if cell.timings}
        return cls(
            analysis=analysis,
            combination=combination,
            evidence=evidence,
            beliefs=replace(beliefs, by_cost=by_cost, latest=latest),
            known=np.array([place in known for place in cells]),
            apart=np.array([own.timing_runs is not None or size in timed_apart for size in beliefs.sizes]),
        )

    def rows(self) -> Iterator[Figure]:
        """Yield the rows, until no training is worth one."""
        beliefs, known, generator = self.beliefs, self.known.copy(), np.random.default_rng(0)
        cells, spent = self.trained, self.worker_seconds[self.trained]
        recipes, sizes = beliefs.of_recipe[cells], beliefs.of_size[cells]
        opened = [self._opened(cell) for cell in cells.tolist()]
        apart = self.apart[sizes]
        noise = np.where(apart, beliefs.scatter, math.hypot(beliefs.scatter, beliefs.noise))
        had = _Seeds.of(self.analysis.plan, self.evidence)
        while len(cells):
            opens = np.array([each[beliefs.means[each].argmin()] for each in opened])
            looks = beliefs.steps[:, recipes] + np.where(apart, 0.0, beliefs.seconds[:, sizes])
            worth = gains(beliefs.shown, looks, noise, known=known, opens=opens)
            worth *= beliefs.arriving[recipes, None]  # one that misses the target tells next to nothing
            best, repeats, gain = most_for_its_cost(worth, spent)
            if gain < LEAST_LISTED:
                return
            yield self._row(int(cells[best]), had, gain, repeats)
            known[opened[best]] = True
            recipe, size = int(recipes[best]), int(sizes[best])
            steps = conditioned(beliefs.steps, beliefs.steps[:, recipe], beliefs.scatter, generator)
            seconds = beliefs.seconds
            if not apart[best]:
                seconds = conditioned(seconds, seconds[:, size], beliefs.noise, generator)
            beliefs = replace(beliefs, steps=steps, seconds=seconds)

    @cached_property
    def trained(self) -> Places:
        """(j,), the cells that may be trained.

        Without those that have no room in memory, of which trials fail, or whose batch size and rate diverged. Where a
        training stands for the same with any num_gpus, the cheapest is enough.
        """
        possible, pooled = set(self.evidence.possible), self.evidence.pooled
        lost = [each for each in without_timing_runs(self.evidence.trials) if each.status == "diverged"]
        diverged = Counter(Place.of(each).recipe(pooled=pooled) for each in lost)
        found, stands = [], set()
        for index in np.argsort(self.worker_seconds, kind="stable").tolist():
            place = self.beliefs.places[index]
            recipe = place.recipe(pooled=pooled)
            is_lost = diverged[recipe] > 0 and diverged[recipe] >= LOST_SHARE * self.evidence.trainings[recipe]
            if place in possible and not is_lost and recipe not in stands:
                found.append(index)
                if self.analysis.plan.is_adaptive:
                    stands.add(recipe)
        return np.array(sorted(found), dtype=np.int64)

    def _opened(self, cell: int) -> Places:
        """Return the cells that may be recommended once a cell is trained."""
        if not self.analysis.plan.is_adaptive:
            return np.array([cell])
        timed = self.evidence.timed
        known = np.array([timed is not None and size in timed.places for size in self.beliefs.sizes])
        alike = self.beliefs.of_recipe == self.beliefs.of_recipe[cell]
        return np.flatnonzero(alike & (known[self.beliefs.of_size] | (np.arange(len(alike)) == cell)))

    @cached_property
    def seconds(self) -> Vector:
        """(c,), of one training's steps: to the target, or to the last evaluation where the study's trainings go on."""
        spec, beliefs, evidence = self.analysis.spec, self.beliefs, self.evidence
        stops = spec.judged or evidence.target == spec.stop_target
        expected = zip(beliefs.expected_steps.tolist(), beliefs.recipes, strict=True)
        made = [
            evidence.made(steps, recipe.batch_size) if stops else evidence.longest(recipe.batch_size)
            for steps, recipe in expected
        ]
        return np.asarray(np.array(made)[beliefs.of_recipe] * beliefs.expected_seconds[beliefs.of_size])

    @cached_property
    def worker_seconds(self) -> Vector:
        """(c,), of one training."""
        return self.seconds * [place.num_gpus for place in self.beliefs.places]

    def _row(self, cell: int, had: "_Seeds", gain: float, repeats: int) -> Figure:
        place = self.beliefs.places[cell]
        params, spent = {**self.combination.settings, **place._asdict()}, float(self.worker_seconds[cell])
        seeds, seed = had.next(place)
        return {
            "label": label(ordered(params)),
            "params": ordered({**params, "seed": seed}),
            "seeds": seeds,
            "gain": -math.expm1(-gain),
            "repeats": repeats,
            "seconds": float(self.seconds[cell]),
            "worker_seconds": spent,
            "cost": cost_of(spent, self.analysis.spec.targets.price_per_gpu_hour),
        }


@dataclass(frozen=True, kw_only=True)
class _Seeds:
    """The seeds that trainings have had. Those of the study come before fresh ones: cells are best compared by them."""

    usual: Sequence[int]
    pooled: bool
    counts: Counter[Place]
    of_recipe: dict[Recipe, set[int]]

    @classmethod
    def of(cls, plan: Plan, evidence: Evidence) -> "_Seeds":
        """Take those of the plan and of the trainings that ended."""
        trained = without_timing_runs([*evidence.trials, *evidence.confirmations])
        of_recipe: dict[Recipe, set[int]] = defaultdict(set)
        for trial in trained:
            of_recipe[Place.of(trial).recipe(pooled=evidence.pooled)].add(trial.seed)
        usual = dict.fromkeys(trial.seed for trial in (*plan.trials, *trained))
        return cls(
            usual=tuple(usual), pooled=evidence.pooled, counts=Counter(map(Place.of, trained)), of_recipe=of_recipe
        )

    def next(self, place: Place) -> tuple[int, int]:
        """Return how many seeds a cell has had, and take the next one, which its steps have not had."""
        had = self.of_recipe[place.recipe(pooled=self.pooled)]
        fresh = itertools.count(max(self.usual, default=-1) + 1)
        seed = next(each for each in itertools.chain(self.usual, fresh) if each not in had)
        had.add(seed)
        self.counts[place] += 1
        return self.counts[place] - 1, seed


def _crossed(combination: Combination) -> list[Place]:
    """Return every combination of the values that the cells have, but those with fewer examples than workers."""
    cells = [Place.of(cell) for cell in combination.cells if cell.learning_rate > 0]
    values = [sorted(set(each)) for each in zip(*cells, strict=True)]
    while math.prod(map(len, values)) > MOST_CELLS:
        longest = max(values, key=len)
        longest[:] = longest[::2]
    return [
        place for place in itertools.starmap(Place, itertools.product(*values)) if place.num_gpus <= place.batch_size
    ]
