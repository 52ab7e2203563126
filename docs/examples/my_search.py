"""A search of your own: mostly beside the best point so far, sometimes anywhere, over the lists of a sweep."""

import itertools
import random
from collections.abc import Mapping
from typing import Any

from scalestudy.experiments.analysis.answers.objective import Objective
from scalestudy.experiments.plan.plan import TrialPlan, point_trials
from scalestudy.experiments.spec.search_space import Space, cell_key
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.orchestration.sweep.search import Suggestion

ANYWHERE = 0.25
"""Share of the points that are drawn from the whole space."""

Place = tuple[int, ...]
"""For each list of the sweep, the index of a value."""


class BesideTheBest:
    """A `scalestudy.orchestration.sweep.search.TrialSource`. Tune asks ahead, while other trials run: so it
    always answers with what is known, and never waits; None would end the sweep. `search.samples` bounds the points.
    """

    def __init__(self, spec: StudySpec) -> None:
        self._spec, self._objective = spec, Objective.of(spec)
        space = Space.of(spec.sweep)
        places = itertools.product(*(range(len(choice)) for choice in space.choices))
        self._new = {cell_key(cell): (place, cell) for place in places for cell in [space.cell(place, {})]}
        self._random = random.Random(spec.search.seed)
        self._points: list[tuple[Place, dict[str, TrialPlan]]] = []
        self._records: dict[str, Mapping[str, Any]] = {}
        self._left: dict[str, Suggestion] = {}
        self._best: tuple[float, Place] | None = None

    def next(self) -> Suggestion | None:
        """A trial of a chosen point that has not run; if there is none, of a new point."""
        if not self._left and self._new and len(self._points) < self._spec.search.samples:
            self._enter(self._choose())
        first = next(iter(self._left), None)
        return None if first is None else self._left.pop(first)

    def was_suggested(self, trial: TrialPlan, point: int) -> None:
        """An earlier run was given this trial: it is suggested again, unless its end is reported too."""
        if cell_key(trial.cell) in self._new:
            self._enter(cell_key(trial.cell))

    def ended(self, trial_id: str, record: Mapping[str, Any]) -> None:
        """Takes a trial's line of trials.jsonl; with the last seed of a point, the point is judged."""
        self._left.pop(trial_id, None)
        for place, trials in self._points:
            if trial_id in trials:
                self._records[trial_id] = {**record, "params": trials[trial_id].params}
                if trials.keys() <= self._records.keys():
                    self._judge(place, [self._records[each] for each in trials])

    def _choose(self) -> str:
        """The key of a point that has not been tried."""
        keys = list(self._new)
        if self._best and self._random.random() >= ANYWHERE:
            near = [key for key in keys if _steps(self._new[key][0], self._best[1]) == 1]
            keys = near or keys
        return keys[int(self._random.random() * len(keys))]

    def _enter(self, key: str) -> None:
        place, cell = self._new.pop(key)
        trials = {trial.trial_id: trial for trial in point_trials(self._spec, cell)}
        self._points.append((place, trials))
        number = len(self._points)
        self._left |= {trial_id: Suggestion(trial, number) for trial_id, trial in trials.items()}

    def _judge(self, place: Place, records: list[Mapping[str, Any]]) -> None:
        value = self._objective.score(records).value
        if value is not None:
            loss = -value if self._objective.mode == "max" else value
            self._best = min(self._best or (loss, place), (loss, place))


def _steps(one: Place, other: Place) -> int:
    """The distance of two points, summed over all lists."""
    return sum(abs(here - there) for here, there in zip(one, other, strict=True))
