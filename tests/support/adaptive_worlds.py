"""Adaptive searches in worlds whose truth is known: each look is answered by the world, until the search ends.

A training's steps and a timing's seconds are drawn as in the studies of `worlds`; the records are lines of
`trials.jsonl`, from which the search decides as the engine's does.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from scalestudy.experiments.analysis.answers.analysis import Analysis
from scalestudy.experiments.analysis.answers.evidence import Evidence
from scalestudy.experiments.analysis.answers.next_look import WITHIN, Over, Room, Wanted, decide
from scalestudy.experiments.plan.plan import TrialPlan, make_plan
from scalestudy.experiments.plan.timing_runs import TIMED_SECONDS, TIMED_STEPS, timed_steps
from scalestudy.experiments.spec.study_spec import StudySpec
from tests.support.synthetic_studies import spec_of
from tests.support.worlds import EPOCHS, TARGET, Place, World, place_of

BEST_SECONDS = 60.0
"""Worlds are so slow that the best cell takes this long: a timing run takes two seconds at least."""
COLD_START, EVALUATION = 6.0, 0.03
"""Seconds to start workers; and those of an evaluation, over an epoch's."""
MOST_LOOKS = 3000


@dataclass(kw_only=True)
class Searched:
    """A search in a world. share: the budget, as a share of the whole grid's worker-seconds."""

    world: World
    share: float
    lines: list[dict[str, Any]] = field(default_factory=list)
    over: Over | None = None
    sizes: set[int] = field(default_factory=set)  # num_gpus whose workers were started
    looks: int = 0

    @cached_property
    def spec(self) -> StudySpec:
        """The study's spec."""
        world, hours = self.world, self.share * self.grid_worker_seconds / 3600
        return spec_of(
            f"name: world\ntrain: {{epochs: {EPOCHS}}}\ntargets: {{accuracy: [{TARGET}]}}\n"
            f"search: {{method: adaptive}}\nbudget: {{worker_hours: {hours!r}}}\n"
            f"sweep: {{num_gpus: {list(world.workers)}, batch_size: {list(world.batches)}, "
            f"learning_rate: {list(world.rates)}}}\n"
        )

    @cached_property
    def grid_worker_seconds(self) -> float:
        """What every cell with every seed would take, each training to the target, else to its last epoch."""
        return self.world.seeds * math.fsum(map(self.expected, self.world.places))

    def expected(self, place: Place) -> float:
        """Worker-seconds of one training of a cell."""
        num_gpus, batch_size, rate = place
        each, lost = math.ceil(self.world.samples / batch_size), self.world.losing(rate)
        to_target = min(self.world.steps(batch_size, rate) + each, EPOCHS * each)
        beyond = 2 * each if self.world.bend == "divergence" else EPOCHS * each
        steps = (1 - lost) * to_target + lost * beyond
        return steps * self.step_seconds(num_gpus, batch_size) * num_gpus * (1 + EVALUATION)

    def run(self) -> "Searched":
        """Answer looks until the search is over."""
        plan = make_plan(self.spec)
        generator = np.random.default_rng([self.world.draw_seed, 1])
        evidence: Evidence | None = None
        while self.looks < MOST_LOOKS:
            evidence = Evidence.of(self.spec, plan, Analysis(self.spec, plan, self.lines).usable, evidence)
            decision = decide(evidence, (), Room(workers=1, start_seconds=COLD_START))
            if isinstance(decision, Over):
                self.over = decision
                break
            assert isinstance(decision, Wanted)
            self.looks += 1
            self.lines.append(self.answer(decision.trial, generator))
        return self

    def step_seconds(self, num_gpus: int, batch_size: int) -> float:
        """True seconds of a step."""
        return self.world.step_seconds(num_gpus, batch_size) * self.slower

    @cached_property
    def slower(self) -> float:
        """By how much the world is slowed down."""
        return BEST_SECONDS / self.world.seconds(self.world.best)

    def answer(self, trial: TrialPlan, generator: np.random.Generator) -> dict[str, Any]:
        """The line of a look."""
        world, batch = self.world, trial.batch_size
        step = self.step_seconds(trial.num_gpus, batch) * math.exp(generator.normal(0, world.noise))
        start = 0.0
        if trial.num_gpus not in self.sizes:
            self.sizes.add(trial.num_gpus)
            start = COLD_START
        assert trial.look is not None
        if trial.kind == "timing":
            return timing_line(trial, step, start)
        steps, lost = world.drawn_steps(batch, trial.learning_rate, trial.seed)
        line = world.record(trial, steps, np.full(EPOCHS, step), lost=lost)
        limit = trial.look.evaluations
        if limit is not None and len(line["epochs"]) > limit:
            line = {**line, "status": "stopped", "epochs": line["epochs"][:limit]}
            line["train_seconds"] = math.fsum(epoch["train_seconds"] for epoch in line["epochs"])
        wall = line["train_seconds"] * (1 + EVALUATION)
        return {**line, "look": trial.look.to_dict(), "wall_seconds": wall + start}

    @property
    def worker_seconds(self) -> float:
        """What all looks took."""
        return worker_seconds(self.lines)

    @property
    def chosen(self) -> Place | None:
        """The cell that the search chose."""
        confirmed = self.of_kind("confirmation")
        return place_of(confirmed[0]["params"]) if confirmed else None

    @property
    def probability(self) -> float | None:
        """Of its being near the best, by the search."""
        confirmed = self.of_kind("confirmation")
        return confirmed[0]["look"]["probability"] if confirmed else None

    @property
    def regret(self) -> float:
        """Of the chosen cell."""
        return self.world.regret(self.chosen)

    @property
    def is_right(self) -> bool:
        """Whether the chosen cell is near the best."""
        return self.regret <= WITHIN

    def of_kind(self, *kinds: str) -> Sequence[Mapping[str, Any]]:
        """The lines of some kinds of looks."""
        return [line for line in self.lines if line["look"]["kind"] in kinds]


def timing_line(trial: TrialPlan, step: float, start: float) -> dict[str, Any]:
    """The line of a timing run whose steps take so many seconds, after a start of its workers."""
    made = timed_steps(trial) + max(0, math.ceil(TIMED_SECONDS / step) - TIMED_STEPS)
    epoch = {
        "epoch": 1,
        "steps": made,
        "samples": made * trial.batch_size,
        "train_seconds": made * step,
        "samples_per_second": trial.batch_size / step,
    }
    return {
        "trial_id": trial.trial_id,
        "kind": trial.kind,
        "params": dict(trial.params),
        "look": trial.look.to_dict() if trial.look else None,
        "status": "finished",
        "epochs": [epoch],
        "train_seconds": made * step,
        "wall_seconds": made * step + start,
        "flags": [],
    }


def worker_seconds(lines: Sequence[Mapping[str, Any]]) -> float:
    """What the trials of some lines took."""
    return math.fsum(line["wall_seconds"] * line["params"]["num_gpus"] for line in lines)
