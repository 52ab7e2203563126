"""Stage 3, Ray Tune: which trial the sweep runs next, and which one it stops before its last epoch.

A `Search` is the same for every method: planned trials in their order, or points that TPE suggests while the study
runs. It is told what becomes of its trials; told the events of earlier runs in their order, it stands where they
stood, so that a resumed study goes on as an undisturbed one would have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from experiments.analysis.metric import StudyMetric
from experiments.plan import Plan, TrialPlan
from experiments.spec import StudySpec
from orchestration.rungs import Rungs

Event = Mapping[str, Any]
Past = Sequence[tuple[str, Event]]
"""(trial id, event) of earlier runs of the study, in the order in which they came."""

NOT_AN_END = "stopped"
"""Kind of the error of a trial that ended because the study did: a later run takes it up."""


class Suggestion(NamedTuple):
    """The next trial. point: number of the point that it is of, from 1; None: it was planned from the start."""

    trial: TrialPlan
    point: int | None = None


class Source(Protocol):
    """Where trials come from."""

    def next(self) -> Suggestion | None:
        """The next trial; None: there are no more."""
        ...

    def was_suggested(self, trial: TrialPlan, point: int) -> None:
        """An earlier run was given this trial."""
        ...

    def ended(self, trial_id: str, record: Event) -> None:
        """A trial has ended, in this run or an earlier one; record: as in trials.jsonl."""
        ...


class PlannedTrials:
    """The trials of a plan, in its order."""

    def __init__(self, trials: Iterable[TrialPlan]) -> None:
        self._left = {trial.trial_id: trial for trial in trials}

    def next(self) -> Suggestion | None:
        """The first trial that was not given and has not ended."""
        first = next(iter(self._left), None)
        return None if first is None else Suggestion(self._left.pop(first))

    def was_suggested(self, trial: TrialPlan, point: int) -> None:
        """Nothing to learn: the plan has them all."""

    def ended(self, trial_id: str, record: Event) -> None:
        """The trial is not given again."""
        self._left.pop(trial_id, None)


class Search:
    """Gives the sweep its trials and learns from their events.

    rungs: decides which trials stop early; None: none does.
    """

    def __init__(self, source: Source, rungs: Rungs | None = None) -> None:
        self.rungs = rungs
        self._source = source
        self._open: dict[str, list[Any]] = {}

    @classmethod
    def of_plan(cls, plan: Plan) -> Search:
        """Runs a plan's trials, each to its end."""
        return cls(PlannedTrials(plan.trials))

    def next(self) -> Suggestion | None:
        """The next trial to run; None: there are no more."""
        return self._source.next()

    def learn(self, past: Past) -> None:
        """Takes the events of earlier runs, which must come before anything else."""
        for trial_id, event in past:
            if event["type"] == "suggested":
                self._source.was_suggested(TrialPlan(**event["trial"]), event["point"])
                continue
            if event["type"] == "epoch" and self.rungs:
                self.rungs.stops(trial_id, event["epoch"])
            self.take(trial_id, event)

    def take(self, trial_id: str, event: Event) -> None:
        """Takes an event of a trial that runs; those that it does not learn from leave it as it was."""
        if is_end(event):
            self._open.pop(trial_id, None)
            self._source.ended(trial_id, event)
        elif event["type"] == "epoch" and self.rungs:
            self._open.setdefault(trial_id, []).append(event["epoch"])

    def cut_short(self) -> dict[str, list[Any]]:
        """Trials that are to stop and have not ended, as after a cut between the two: their epochs so far."""
        stopped = self.rungs.stopped if self.rungs else {}
        return {
            trial_id: [epoch for epoch in epochs if epoch["epoch"] <= stopped[trial_id]]
            for trial_id, epochs in self._open.items()
            if trial_id in stopped
        }


def is_end(event: Event) -> bool:
    """Whether an event is a trial's last one; a trial that was ended because the study stops is not at its end."""
    if event["type"] == "ended":
        return (event.get("error") or {}).get("kind") != NOT_AN_END
    return bool(event["type"] == "lost")


def search_for(spec: StudySpec, plan: Plan, past: Past = ()) -> Search:
    """The search that a spec asks for, as it stands after the events of earlier runs.

    A search serves one sweep: after a sweep that broke off, make another from the events so far.
    """
    from orchestration.suggested_points import SuggestedPoints

    metric = StudyMetric.of(spec.workload)
    source: Source = SuggestedPoints(spec) if spec.search.method == "tpe" else PlannedTrials(plan.swept)
    search = Search(source, Rungs.of(spec, metric) if spec.search.scheduler == "asha" else None)
    search.learn(past)
    return search
