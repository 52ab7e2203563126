"""Adaptive searches played through look by look, in a small space whose law is known.

A step takes `step_seconds`, and a training needs `steps_of` steps to the target of 0.8, in epochs of 1,437 examples. A
look ends as the engine would end it, and its record is the engine's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from scalestudy.experiments.analysis.answers.analysis import Analysis
from scalestudy.experiments.analysis.answers.evidence import Evidence
from scalestudy.experiments.analysis.answers.next_look import Decision, Over, Room, Wanted, decide
from scalestudy.experiments.plan.plan import Plan, TrialPlan, make_plan
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.orchestration.groups.events import Ended, Status
from scalestudy.training.records import EpochRecord
from tests.support.epochs import epoch_of
from tests.support.fake_pool import ended
from tests.support.synthetic_studies import spec_of

TEXT = """
name: looked
workload: {model: lenet, data: digits}
train: {epochs: 20}
sweep: {num_gpus: [1, 2], batch_size: [32, 64, 128], learning_rate: [0.05, 0.1, 0.2, 0.4]}
search: {method: adaptive}
budget: {trials: 60}
targets: {accuracy: [0.8]}
"""
LOOP_TEXT = TEXT.replace("{model: lenet, data: digits}", "{loop: 'my_loop:train', exact: true}")
SAMPLES, FLOOR, CEILING, TARGET = 1437, 0.1, 0.92, 0.8
SHAPE = math.log((CEILING - FLOOR) / (CEILING - TARGET))
START_SECONDS = 3.0
"""Of a look, beside its steps."""
MOST_LOOKS = 200


def steps_of(batch_size: int, rate: float) -> float:
    """Median steps to the target: the larger the batch the fewer, and fewest at a rate of 0.2."""
    return 100 * (1 + 64 / batch_size) * math.exp(0.25 * math.log2(rate / 0.2) ** 2)


def step_seconds(num_gpus: int, batch_size: int) -> float:
    """Seconds of a step: 20 ms, 2 ms for each example of a worker, and 10 ms to add two workers' gradients."""
    return 0.02 + 0.002 * batch_size / num_gpus + 0.01 * (num_gpus > 1)


def end_of(trial: TrialPlan, status: Status | None = None, steps: float | None = None) -> Ended:
    """How a look ends. status: None: as the law says. steps: to the target, in place of the law's."""
    batch = trial.batch_size
    chance = np.random.default_rng([int(trial.trial_id, 16)])
    seconds = step_seconds(trial.num_gpus, batch) * math.exp(chance.normal(0, 0.01))
    if status in ("failed", "out_of_memory") or (status == "diverged" and trial.kind == "timing"):
        return replace(ended([], status), wall_seconds=START_SECONDS)
    if trial.kind == "timing":
        made = max(int(trial.train.get("max_steps", 0)), math.ceil(2 / seconds))
        records = [record_of(1, None, made, batch, seconds)]
        return replace(ended(records, "finished"), wall_seconds=made * seconds + START_SECONDS)
    needed = (steps or steps_of(batch, trial.learning_rate)) * math.exp(chance.normal(0, 0.03))
    each = math.ceil(SAMPLES / batch)
    limit = trial.look.evaluations if trial.look else None
    values: list[float | None] = []
    found: Status = "finished"
    for number in range(1, trial.evaluations + 1):
        if status == "diverged" and number == 2:
            values.append(None)
            found = "diverged"
            break
        values.append(CEILING - (CEILING - FLOOR) * math.exp(-SHAPE * number * each / needed))
        if number > 1 and values[-2] >= TARGET:
            found = "at_target"
            break
        if limit is not None and number >= limit:
            found = "stopped"
            break
    records = [record_of(number, value, each, batch, seconds) for number, value in enumerate(values, start=1)]
    return replace(ended(records, found), wall_seconds=len(values) * each * seconds * 1.1 + START_SECONDS)


def record_of(number: int, value: float | None, steps: int, batch: int, seconds: float) -> EpochRecord:
    """An epoch of so many steps; value: None: it was not evaluated, or diverged."""
    return epoch_of(
        number,
        value,
        seconds=steps * seconds,
        steps=steps,
        samples=steps * batch if value is None else SAMPLES,
        samples_per_second=(batch if value is None else SAMPLES / steps) / seconds,
    )


@dataclass(kw_only=True)
class Looking:
    """A search. ends: how a look ends, other than by the law; None: by it."""

    spec: StudySpec = field(default_factory=lambda: spec_of(TEXT))
    room: Room = field(default_factory=lambda: Room(workers=1, start_seconds=START_SECONDS))
    ends: Callable[[TrialPlan], Status | None] = lambda trial: None
    lines: list[dict[str, Any]] = field(default_factory=list)
    asked: list[TrialPlan] = field(default_factory=list)
    running: list[TrialPlan] = field(default_factory=list)
    evidence: Evidence | None = None
    over: Over | None = None

    @property
    def plan(self) -> Plan:
        """The study's plan, as its folder has it."""
        return make_plan(self.spec).with_trials(trial for trial in self.asked if trial.kind == "training")

    def decide(self) -> Decision:
        """What comes next."""
        analysis = self.analysis
        self.evidence = Evidence.of(self.spec, analysis.plan, analysis.usable, self.evidence)
        return decide(self.evidence, self.running, self.room)

    @property
    def analysis(self) -> Analysis:
        """The records so far, analysed."""
        return Analysis(self.spec, self.plan, self.lines)

    def start(self, decision: Decision | None = None) -> TrialPlan:
        """Begin the next look, which there is. decision: that was just made."""
        decision = decision or self.decide()
        assert isinstance(decision, Wanted), decision
        self.running.append(decision.trial)
        self.asked.append(decision.trial)
        return decision.trial

    def end(self, trial: TrialPlan, status: Status | None = None, steps: float | None = None) -> dict[str, Any]:
        """End a look; return its line."""
        self.running.remove(trial)
        line = end_of(trial, status or self.ends(trial), steps).to_line(trial)
        self.lines.append(line)
        return line

    def until(self, stop: Callable[[TrialPlan], bool]) -> TrialPlan:
        """Run looks one at a time until one begins of which this is true; return it, which runs."""
        for _ in range(MOST_LOOKS):
            trial = self.start()
            if stop(trial):
                return trial
            self.end(trial)
        raise AssertionError("no such look came")

    def run(self) -> Over:
        """Run looks one at a time to the end."""
        for _ in range(MOST_LOOKS):
            decision = self.decide()
            if isinstance(decision, Over):
                self.over = decision
                return decision
            self.end(self.start(decision))
        raise AssertionError("the search did not end")

    def kinds(self) -> Sequence[str]:
        """What the looks so far are for."""
        return [trial.look.kind for trial in self.asked if trial.look]


@cache
def finished_search() -> Looking:
    """A search that ran to its end, one look at a time, and is not changed."""
    search = Looking()
    assert search.run() == Over(why="sure")
    return search
