"""Which trial the sweep runs next: planned ones in their order, or points that TPE suggests while the study runs.

A `Search` is the same for every method. It learns from the events of its trials. A resumed study replays the events of
earlier runs in their order, and the search goes on as if nothing had happened.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from scalestudy.experiments.analysis.answers.objective import Objective, Score
from scalestudy.experiments.analysis.measures.units import plural
from scalestudy.experiments.plan.plan import TrialPlan, point_trials
from scalestudy.experiments.spec.search_space import Cell, Space
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.orchestration.groups.events import (
    Ended,
    EpochDone,
    JournalEvent,
    Reopened,
    Retried,
    Suggested,
    TrialError,
)
from scalestudy.orchestration.sweep.stopping import Stopping

logger = logging.getLogger(__name__)

Past = Sequence[tuple[str, JournalEvent]]
"""(trial id, event) of earlier runs of the study, in the order in which they came."""

OBJECTIVE = "objective"
HITS = 3
"""Times that a trial may be put off while none ends. Then it waits for an end; the study breaks off if all trials left
do."""


class Suggestion(NamedTuple):
    """The next trial."""

    trial: TrialPlan
    point: int | None = None  # number of its point, from 1; None: the trial was planned from the start


class TrialSource(Protocol):
    """The origin of a search's trials."""

    def next(self) -> Suggestion | None:
        """Return the next trial; None: there are no more."""
        ...

    def was_suggested(self, trial: TrialPlan, point: int) -> None:
        """Take a trial that an earlier run was given."""
        ...

    def ended(self, trial_id: str, record: Mapping[str, Any]) -> None:
        """Take the end of a trial, in this run or an earlier one.

        record: as in trials.jsonl, without the plan's keys.
        """
        ...

    def reopened(self, trial_id: str) -> None:
        """Take an ended trial that runs again."""
        ...


class Search:
    """The source of the sweep's trials, which learns from their events.

    A trial that was put off comes again after all others.
    """

    def __init__(self, source: TrialSource, rule: Stopping | None = None, trials: Iterable[TrialPlan] = ()) -> None:
        """Make a search over a source's trials.

        rule: decides which trials stop early; None: no trial does. trials: the known ones; suggested ones come with
        their events.
        """
        self._source, self._rule = source, rule
        self._trials = {trial.trial_id: trial for trial in trials}
        self._open: set[str] = set()  # trials that have not ended and of which the rule has seen an epoch
        self._running: set[str] = set()  # see `runs`
        self._put_off: list[str] = []
        self._hits: dict[str, int] = {}  # by trial: times that it was put off since a trial ended
        self._last_hit: TrialError | None = None

    def next(self) -> Suggestion | None:
        """Return the next trial to run; None: there is none now, or `is_over`."""
        suggestion = self._source.next()
        if suggestion is None:
            suggestion = self._again()
        if suggestion is not None:
            self._trials[suggestion.trial.trial_id] = suggestion.trial
            self._running.add(suggestion.trial.trial_id)
        return suggestion

    def _again(self) -> Suggestion | None:
        """Return the first trial that was put off, unless that was so often that it waits until another has ended."""
        trial_id = next((each for each in self._put_off if self._hits.get(each, 0) < HITS), None)
        if trial_id is None:
            return None
        self._put_off.remove(trial_id)
        return Suggestion(self._trials[trial_id])

    def runs(self, trial_id: str) -> bool:
        """Return whether a trial was given, and has neither ended nor been put off since."""
        return trial_id in self._running

    def put_off(self, trial_id: str) -> None:
        """Put off a trial whose attempt a cause outside it has ended."""
        self._running.discard(trial_id)
        self._put_off.append(trial_id)
        self._hits[trial_id] = self._hits.get(trial_id, 0) + 1

    @property
    def running(self) -> int:
        """The number of trials that run, see `runs`."""
        return len(self._running)

    @property
    def is_over(self) -> bool:
        """Whether no trial comes any more, after `next` has given none."""
        return not self._running

    @property
    def gave_up(self) -> str | None:
        """Why no trial that was put off comes again: each was put off `HITS` times, and none ended in between."""
        left = self._put_off
        if not left or self._running or any(self._hits.get(trial_id, 0) < HITS for trial_id in left):
            return None
        last = f"; the last time: {self._last_hit.kind}: {self._last_hit.message}" if self._last_hit else ""
        return f"each of {plural(len(left), 'trial')} left was put off {HITS} times, and none ended in between{last}"

    def learn(self, past: Past) -> None:
        """Take the events of earlier runs, which must come before anything else."""
        for trial_id, event in past:
            if isinstance(event, Suggested) and event.point is not None:
                self._source.was_suggested(event.trial, event.point)
            self.take(trial_id, event)
            self.stops(trial_id, event)

    def take(self, trial_id: str, event: JournalEvent) -> None:
        """Take an event of a trial that runs; most leave the search as it was."""
        if isinstance(event, Ended) and event.is_final:
            self._open.discard(trial_id)
            self._running.discard(trial_id)
            self._put_off = [each for each in self._put_off if each != trial_id]
            self._hits.clear()
            self._source.ended(trial_id, event.to_facts())
        elif isinstance(event, EpochDone) and self._rule:
            self._open.add(trial_id)
        elif isinstance(event, Reopened):
            self._source.reopened(trial_id)
        elif isinstance(event, Suggested):
            self._trials[trial_id] = event.trial
        elif isinstance(event, Retried):
            self._last_hit = event.error

    def stops(self, trial_id: str, event: JournalEvent) -> bool:
        """Return whether a trial stops with an event that `take` has taken."""
        if self._rule is None or not isinstance(event, EpochDone):
            return False
        return self._rule.stops(self._trials[trial_id], event.record)

    def cut_short(self) -> dict[str, int]:
        """Return the last epochs of trials that the rule has stopped and that have not ended, as after a cut."""
        stopped = self._rule.stopped if self._rule else {}
        return {trial_id: epoch for trial_id, epoch in stopped.items() if trial_id in self._open}


class PlannedTrials:
    """The trials of a plan, in its order."""

    def __init__(self, trials: Iterable[TrialPlan]) -> None:
        self._trials = {trial.trial_id: trial for trial in trials}
        self._left = dict(self._trials)

    def next(self) -> Suggestion | None:
        """Return the first trial that was not given and has not ended."""
        first = next(iter(self._left), None)
        return None if first is None else Suggestion(self._left.pop(first))

    def was_suggested(self, trial: TrialPlan, point: int) -> None:
        """Do nothing: the plan has them all."""

    def ended(self, trial_id: str, record: Mapping[str, Any]) -> None:
        """Do not give the trial again."""
        self._left.pop(trial_id, None)

    def reopened(self, trial_id: str) -> None:
        """Give the trial again, at its place in the order."""
        self._left = {each: trial for each, trial in self._trials.items() if each in self._left or each == trial_id}


# --- points that TPE suggests -------------------------------------------------------------------------------------
@dataclass
class _Point:
    """A point that runs or has run."""

    trials: dict[str, TrialPlan]
    asks: list[int] = field(default_factory=list)  # numbers under which it was suggested and not yet scored
    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    score: Score | None = None
    adopted: bool = False
    """Whether its score came without this search's suggestion: an earlier run had the point though this search has not
    suggested it, or it was scored before a trial was reopened."""


class TpeTrials:
    """Trials of the points that TPE suggests, as many as the spec has samples, one trial for each seed.

    The search sees a point as a whole: one score, when the last of its seeds has ended. A point that is suggested again
    is not run again. After a replay of an earlier run, in its order, it suggests what that run would have suggested.
    """

    def __init__(self, spec: StudySpec) -> None:
        self._spec = spec
        self._objective = Objective.of(spec)
        self._tpe = Tpe(Space.of(spec.sweep), self._objective.mode, spec.search.seed)
        self._asked: list[_Point] = []
        self._point_of: dict[str, _Point] = {}  # by trial
        self._left: dict[str, Suggestion] = {}

    def next(self) -> Suggestion | None:
        """Return a trial of a suggested point that has not run, else of the next point."""
        while not self._left and len(self._asked) < self._spec.search.samples:
            self._ask()
        first = next(iter(self._left), None)
        return None if first is None else self._left.pop(first)

    def was_suggested(self, trial: TrialPlan, point: int) -> None:
        """Take a trial of an earlier run: ask for as many points, and hand it out again unless it has ended."""
        while len(self._asked) < point:
            self._ask()
        if trial.trial_id not in self._point_of:
            self._adopt(trial, point)
        self._left[trial.trial_id] = Suggestion(trial)

    def ended(self, trial_id: str, record: Mapping[str, Any]) -> None:
        """Score the trial's point when it is the last of its seeds."""
        self._left.pop(trial_id, None)
        point = self._point_of.get(trial_id)
        if point is None or point.score:
            return
        point.records[trial_id] = {**record, "params": point.trials[trial_id].params}
        if len(point.records) == len(point.trials):
            point.score = self._objective.score(point.records.values())
            self._tell(point)

    def reopened(self, trial_id: str) -> None:
        """Hand a trial out again. The score that its point had stays with the search; the new one is added."""
        point = self._point_of.get(trial_id)
        if point is None:
            return
        point.records.pop(trial_id, None)
        if point.score is not None:
            point.score, point.adopted = None, True
        self._left[trial_id] = Suggestion(point.trials[trial_id])

    def _ask(self) -> None:
        number = len(self._asked) + 1
        trials = {trial.trial_id: trial for trial in point_trials(self._spec, self._tpe.suggest(number))}
        point = self._point_of.get(next(iter(trials)))
        if point is None:
            point = self._enter(_Point(trials), number)
        self._asked.append(point)
        point.asks.append(number)
        self._tell(point)

    def _enter(self, point: _Point, number: int) -> _Point:
        for trial_id, trial in point.trials.items():
            self._point_of[trial_id] = point
            self._left[trial_id] = Suggestion(trial, number)
        return point

    def _tell(self, point: _Point) -> None:
        """Score every suggestion of a point that was waiting for it."""
        if point.score is None:
            return
        if point.adopted:
            self._tpe.add(next(iter(point.trials.values())).cell, point.score)
            point.adopted = False
        for number in point.asks:
            self._tpe.tell(number, point.score)
        point.asks.clear()

    def _adopt(self, trial: TrialPlan, number: int) -> None:
        """Take in a point that an earlier run had and that this search would not have suggested."""
        logger.warning(
            "the search now suggests another point %d than before (another Optuna?) and goes on with both", number
        )
        replaced = self._asked[number - 1]
        if replaced.asks == [number]:
            for trial_id in replaced.trials:
                self._left.pop(trial_id, None)
                self._point_of.pop(trial_id, None)
            self._tpe.forget(number)
        trials = {each.trial_id: each for each in point_trials(self._spec, trial.cell)}
        self._asked[number - 1] = self._enter(_Point(trials, adopted=True), number)


class Tpe:
    """Optuna's tree-structured Parzen estimator over a space, behind Tune's OptunaSearch.

    A choice is categorical. The same space, seed and scores give the same points.
    """

    def __init__(self, space: Space, mode: str, seed: int) -> None:
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
        from optuna.samplers import TPESampler
        from ray.tune.search.optuna import OptunaSearch

        self._space = space
        # the number of its option identifies a choice, so that any value can be one
        distributions: dict[str, Any] = {
            _name(choice): CategoricalDistribution(range(len(choice))) for choice in space.choices if len(choice) > 1
        }
        for key, values in space.ranges.items():
            kind: Any = IntDistribution if values.whole else FloatDistribution
            distributions[key] = kind(values.low, values.high, log=values.kind == "log_uniform")
        # multivariate and constant_liar are Optuna 5's defaults, named because the sequence depends on them
        sampler = TPESampler(seed=seed, multivariate=True, constant_liar=True)
        self._search = OptunaSearch(distributions, metric=OBJECTIVE, mode=mode, sampler=sampler)

    def suggest(self, number: int) -> Cell:
        """Return the next point. Its score is reported by this number."""
        suggested = self._search.suggest(str(number))
        options = [suggested.get(_name(choice), 0) for choice in self._space.choices]
        return self._space.cell(options, {key: each.tidy(suggested[key]) for key, each in self._space.ranges.items()})

    def tell(self, number: int, score: Score) -> None:
        """Take the score of a point.

        A score without a value is a pruned trial of Optuna's, which it ranks below all others and learns from.
        """
        name = str(number)
        if score.progress is not None:
            self._search.on_trial_result(name, {OBJECTIVE: score.progress, "training_iteration": 1})
        self._search.on_trial_complete(name, None if score.value is None else {OBJECTIVE: score.value})

    def forget(self, number: int) -> None:
        """Drop a point that gets no score: a failed trial of Optuna's, which it leaves out."""
        self._search.on_trial_complete(str(number), error=True)

    def add(self, cell: Cell, score: Score) -> None:
        """Teach the search a point that it has not suggested."""
        params = {key: cell[key] for key in self._space.ranges}
        for choice in self._space.choices:
            if len(choice) > 1:
                params[_name(choice)] = next(n for n, option in enumerate(choice) if option.items() <= cell.items())
        steps = None if score.progress is None else [score.progress]
        self._search.add_evaluated_point(params, score.value, pruned=score.value is None, intermediate_values=steps)


def _name(choice: tuple[Cell, ...]) -> str:
    """Return the parameter that a choice sets."""
    return next(iter(choice[0]), "points")
