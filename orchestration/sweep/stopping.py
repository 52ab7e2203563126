"""Which trainings are stopped early: what all rules for it share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import defaultdict

from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.plan.plan import TrialPlan
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.training.records import EpochRecord


class Stopping(ABC):
    """A rule that ends trainings early. It knows a trial by our id, so it says the same in a resumed study."""

    def __init__(self, spec: StudySpec) -> None:
        """Make the rule of a study."""
        self.stopped: dict[str, int] = {}  # trial → evaluation after which it was stopped
        self._metric, self._target = StudyMetric.of(spec.workload), spec.stop_target
        self._values: dict[str, list[float]] = defaultdict(list)  # by trial, one an evaluation

    def stops(self, trial: TrialPlan, record: EpochRecord) -> bool:
        """Return whether a trial stops after an evaluation; once it does, it always does.

        A training that ends at its target by itself is not stopped.
        """
        trial_id = trial.trial_id
        if trial_id not in self.stopped:
            if math.isfinite(record.test_metric):
                self._values[trial_id].append(record.test_metric)
            arrived = (
                self._target is not None and self._metric.arrival(self._values[trial_id], self._target) is not None
            )
            if not arrived and self._ends(trial, record):
                self.stopped[trial_id] = record.epoch
        return trial_id in self.stopped

    @abstractmethod
    def _ends(self, trial: TrialPlan, record: EpochRecord) -> bool:
        """Return whether a trial that has not stopped ends after this evaluation."""
