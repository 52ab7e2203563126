"""Studies with synthetic trials whose seconds are those of timing runs, in the order of the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from scalestudy.experiments.analysis import summarise
from scalestudy.experiments.plan.plan import Plan, cell_trial, make_plan
from scalestudy.experiments.plan.timing_runs import TIMING_RUNS, timing_kinds, timing_trial, timing_trials
from scalestudy.experiments.spec.search_space import stated_places
from scalestudy.experiments.spec.study_spec import StudySpec
from tests.support.synthetic_studies import spec_of
from tests.support.trials import Law, make_timings, make_trials

Record = dict[str, Any]


@dataclass(frozen=True)
class TimedStudy:
    """spec, the plan at the end of the study, and the lines of trials.jsonl by what they are."""

    spec: StudySpec
    plan: Plan
    trained: list[Record]
    timings: list[Record]

    @property
    def trials(self) -> list[Record]:
        """All lines."""
        return [*self.trained, *self.timings]

    def summary(self) -> dict[str, Any]:
        """What is written at the end."""
        return summarise(self.spec, self.plan, self.trials)


def packed_study(
    text: str, law: Law | None = None, *, change: Callable[[Record], Record] = lambda record: record, **keywords: Any
) -> TimedStudy:
    """A grid whose trials ran side by side, and its timing runs. change: made to each training's record.

    keywords: of `make_trials`.
    """
    spec, law = spec_of(text), law or Law()
    plan = make_plan(spec)
    trained = [change(record) for record in make_trials(plan, law, flags={"*": ["shared_node"]}, **keywords)]
    timed = timing_trials(spec, plan.trials, {record["trial_id"]: record for record in trained})
    return TimedStudy(spec, plan, trained, make_timings(timed, law))


def lent_study(
    text: str, law: Law | None = None, *, seeds: Iterable[int] = range(3), train_with: int = 1, **keywords: Any
) -> TimedStudy:
    """An adaptive study that trained with one num_gpus and timed the steps of all, as if it had asked for that.

    seeds: of each batch size and rate. keywords: of `make_trials`.
    """
    spec, law = spec_of(text), law or Law()
    stated = stated_places(spec)
    trials = [cell_trial(spec, cell, seed) for cell in stated if cell["num_gpus"] == train_with for seed in seeds]
    plan = make_plan(spec).with_trials(trials)
    kinds = timing_kinds(cell_trial(spec, cell, 0) for cell in stated)
    timed = [timing_trial(spec, kind, number) for number in range(TIMING_RUNS) for kind in kinds]
    trained = make_trials(plan, law, **{"flags": {"*": ["shared_node"]}, **keywords})
    if spec.workload.loop:  # its timing runs are three reports
        reports = make_trials(Plan(spec.name, tuple(timed)), law)
        return TimedStudy(spec, plan, trained, [{**line, "kind": "timing"} for line in reports])
    return TimedStudy(spec, plan, trained, make_timings(timed, law))


def stopped_after(record: Record, epochs: int) -> Record:
    """A training that a scheduler has stopped."""
    kept = record["epochs"][:epochs]
    seconds = sum(epoch["train_seconds"] for epoch in kept)
    return {**record, "status": "stopped", "epochs": kept, "train_seconds": seconds}
