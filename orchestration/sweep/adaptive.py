"""The trials of an adaptive search, as `next_look` decides them from what has ended and what runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from scalestudy.experiments.analysis.answers.analysis import Analysis
from scalestudy.experiments.analysis.answers.evidence import Evidence
from scalestudy.experiments.analysis.answers.next_look import Decision, Over, Room, Wanted, decide, may_run_beside
from scalestudy.experiments.plan.plan import TrialPlan, make_plan
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.orchestration.groups.events import line_of
from scalestudy.orchestration.sweep.search import Suggestion
from scalestudy.orchestration.sweep.stopping import Stopping
from scalestudy.training.records import EpochRecord


class AdaptiveTrials:
    """The looks of an adaptive search, one at a time or side by side where their seconds do not count.

    The same ends of the same trials give the same next look, so a resumed study goes on as if nothing had happened.
    """

    def __init__(self, spec: StudySpec, room: Callable[[], Room], over: Callable[[Over], None]) -> None:
        """Make the source. room: what looks have, as it is now. over: takes why looking ended, when it has."""
        self._spec, self._plan, self._room, self._over = spec, make_plan(spec), room, over
        self._running: dict[str, TrialPlan] = {}  # given, or to be given again, and not ended
        self._left: dict[str, TrialPlan] = {}  # of these, to be given
        self._lines: dict[str, dict[str, Any]] = {}  # of trials that ended
        self._trials: dict[str, TrialPlan] = {}
        self._evidence: Evidence | None = None
        self._decided: tuple[tuple[int, tuple[str, ...]], Decision] | None = None  # until a trial ends

    def next(self) -> Suggestion | None:
        """Return the next look; None: it comes after another's end, or never."""
        if self._left:
            trial = next(iter(self._left.values()))
            others = [each for name, each in self._running.items() if name not in self._left]
            if not may_run_beside(trial, others):
                return None
            return Suggestion(self._left.pop(trial.trial_id))
        decision = self._decision()
        if not isinstance(decision, Wanted):
            return None
        trial = decision.trial
        self._running[trial.trial_id] = self._trials[trial.trial_id] = trial
        return Suggestion(trial, trial.look.number if trial.look else None)

    def _decision(self) -> Decision:
        """Return what comes next, decided once for the same ends and running trials: Tune asks many times a second."""
        room = self._room()
        key = room.workers, tuple(self._running)
        if self._decided is None or self._decided[0] != key:
            known = Analysis(self._spec, self._plan, list(self._lines.values())).usable
            self._evidence = Evidence.of(self._spec, self._plan, known, self._evidence)
            self._decided = key, decide(self._evidence, list(self._running.values()), room)
            if isinstance(self._decided[1], Over):
                self._over(self._decided[1])
        return self._decided[1]

    def was_suggested(self, trial: TrialPlan, point: int) -> None:
        """Take a look of an earlier run, and give it again unless it has ended."""
        self._trials[trial.trial_id] = self._running[trial.trial_id] = self._left[trial.trial_id] = trial

    def ended(self, trial_id: str, record: Mapping[str, Any]) -> None:
        """Take what a look has shown."""
        self._lines[trial_id] = line_of(self._trials[trial_id], record)
        self._running.pop(trial_id, None)
        self._left.pop(trial_id, None)
        self._decided = None

    def reopened(self, trial_id: str) -> None:
        """Forget what a look has shown, and give it again."""
        self._lines.pop(trial_id, None)
        self._running[trial_id] = self._left[trial_id] = self._trials[trial_id]
        self._decided = None


class LookLimits(Stopping):
    """The rule that ends a training where its prediction ends."""

    def _ends(self, trial: TrialPlan, record: EpochRecord) -> bool:
        limit = trial.look.evaluations if trial.look else None
        return limit is not None and record.epoch >= limit
