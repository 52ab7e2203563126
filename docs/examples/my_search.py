"""A search of your own: hill climbing over the lists of a sweep, one point at a time."""

from experiments.plan import TrialPlan, point_trials
from experiments.search_objective import Objective
from experiments.search_space import Space, cell_key
from experiments.spec import StudySpec
from orchestration.search import Event, Suggestion


class HillClimb:
    """A `orchestration.search.Source`: begins in the middle of every list, and goes to a better neighbour while there is
    one. A point is judged when all its seeds have ended; `search.samples` bounds the points.
    """

    def __init__(self, spec: StudySpec) -> None:
        self._spec, self._objective, self._space = spec, Objective.of(spec), Space.of(spec.sweep)
        self._best: tuple[float, tuple[int, ...]] | None = None
        self._tried: set[str] = set()
        self._records: dict[str, Event] = {}
        self._left: list[TrialPlan] = []
        self._now: dict[str, TrialPlan] = {}
        self._enter(tuple(len(choice) // 2 for choice in self._space.choices))

    def next(self) -> Suggestion | None:
        """The next seed of the point that is being tried; None once there is nothing better beside the best."""
        return Suggestion(self._left.pop(0), point=len(self._tried)) if self._left else None

    def was_suggested(self, trial: TrialPlan, point: int) -> None:
        """An earlier run was given this trial: the ends of that run's trials, told in their order, lead here anyhow."""

    def ended(self, trial_id: str, record: Event) -> None:
        """Takes a trial's line of trials.jsonl; the last one of the point decides where to go."""
        self._left = [trial for trial in self._left if trial.trial_id != trial_id]
        if trial_id not in self._now:
            return
        self._records[trial_id] = {**record, "params": self._now[trial_id].params}
        if len(self._records) == len(self._now):
            self._judge()

    def _judge(self) -> None:
        value = self._objective.score(self._records.values()).value
        loss = float("inf") if value is None else -value if self._objective.mode == "max" else value
        if self._best is None or loss < self._best[0]:
            self._best = (loss, self._place)
        for place in self._neighbours(self._best[1]):
            if cell_key(self._space.cell(place, {})) not in self._tried and len(self._tried) < self._spec.search.samples:
                return self._enter(place)
        return None

    def _neighbours(self, place: tuple[int, ...]) -> list[tuple[int, ...]]:
        """One step up or down in one list."""
        sizes = [len(choice) for choice in self._space.choices]
        moved = [
            (*place[:at], place[at] + step, *place[at + 1 :]) for at in range(len(place)) for step in (-1, 1)
        ]  # fmt: skip
        return [each for each in moved if all(0 <= where < size for where, size in zip(each, sizes, strict=True))]

    def _enter(self, place: tuple[int, ...]) -> None:
        cell = self._space.cell(place, {})
        self._place, self._records = place, {}
        self._tried.add(cell_key(cell))
        self._left = point_trials(self._spec, cell)
        self._now = {trial.trial_id: trial for trial in self._left}
