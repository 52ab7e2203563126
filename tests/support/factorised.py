"""Factorised studies with synthetic trials: trainings, held-out cells and timing runs in the order of the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scalestudy.experiments.analysis import summarise
from scalestudy.experiments.analysis.answers.factorised import held_out_trials
from scalestudy.experiments.plan.plan import Plan, make_plan
from scalestudy.experiments.plan.timing_runs import timing_trials
from scalestudy.experiments.spec.study_spec import StudySpec
from tests.support.synthetic_studies import spec_of
from tests.support.trials import Law, make_timings, make_trials

Record = dict[str, Any]

METHOD = "search: {method: factorised}\n"
SWEEP = "sweep: {num_gpus: [1, 2], batch_size: [32, 128], learning_rate: [0.1, 0.2], seed: [0, 1]}\n"
SMALL = f"name: x\ntrain: {{epochs: 4}}\ntargets: {{accuracy: [0.2]}}\n{SWEEP}{METHOD}"
"""A factorised spec of 8 trainings; as a grid it has 16 trials."""
TINY = """
name: tiny
workload: {model: lenet, data: digits}
train: {epochs: 2}
sweep: {num_gpus: [2, 4], batch_size: [32], learning_rate: [0.1, 0.2]}
search: {method: factorised, held_out: 1}
"""
"""One of two trainings, for what looks at a spec and its plan alone."""


@dataclass(frozen=True)
class FactorisedStudy:
    """spec, the plan at the end of the study, and the lines of trials.jsonl by what they are."""

    spec: StudySpec
    plan: Plan
    trained: list[Record]
    held_out: list[Record]
    timings: list[Record]

    @property
    def trials(self) -> list[Record]:
        """All lines."""
        return [*self.trained, *self.held_out, *self.timings]

    def summary(self) -> dict[str, Any]:
        """What is written at the end."""
        return summarise(self.spec, self.plan, self.trials)


def factorised_study(
    text: str, law: Law | None = None, *, change: Callable[[Record], Record] = lambda record: record, **keywords: Any
) -> FactorisedStudy:
    """Runs a factorised spec on paper. change: made to each training's record. keywords: of `make_trials`, for the
    trainings; by default these run side by side."""
    spec, law = spec_of(text), law or Law()
    plan = make_plan(spec)
    trained = [change(record) for record in make_trials(plan, law, **{"flags": {"*": ["shared_node"]}, **keywords})]
    records = {record["trial_id"]: record for record in trained}
    chosen = held_out_trials(spec, plan, plan.trials, records)
    timed = timing_trials(spec, plan.swept, records, plan.factorised)
    held_out = make_trials(Plan(spec.name, tuple(chosen)), law)
    return FactorisedStudy(spec, plan.with_trials(chosen), trained, held_out, make_timings(timed, law))


def stopped_after(record: Record, epochs: int) -> Record:
    """A training that a scheduler has stopped."""
    kept = record["epochs"][:epochs]
    seconds = sum(epoch["train_seconds"] for epoch in kept)
    return {**record, "status": "stopped", "epochs": kept, "train_seconds": seconds}


def grid_of(text: str) -> Plan:
    """The plan of a factorised spec's grid."""
    return make_plan(spec_of(text.replace("method: factorised", "method: grid")))


def records_of(plan: Plan, **keywords: Any) -> dict[str, Record]:
    """The records of a plan's trials by their ids. keywords: of `make_trials`."""
    return {record["trial_id"]: record for record in make_trials(plan, Law(), **keywords)}
