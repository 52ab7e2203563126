"""Asynchronous successive halving (ASHA) over a study's trials, by Tune's own scheduler.

A trial that is among the worst at a rung – an epoch after which a share of the trials goes on – is stopped there. The
rungs know a trial by our id, which is the same in every run of a study, and not by Tune's, which is another in each:
so a resumed study tells them its past and they decide as they would have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.spec.study_spec import StudySpec


class Rungs:
    """Decides after each epoch whether a trial goes on.

    stopped: trials that were stopped, and after which epoch.
    """

    def __init__(self, metric: StudyMetric, *, epochs: int, grace_epochs: int, reduction: int) -> None:
        """epochs: of a trial that is not stopped. grace_epochs: the first rung. reduction: one of so many goes on."""
        from ray.tune.schedulers import AsyncHyperBandScheduler

        self.stopped: dict[str, int] = {}
        self._metric, self._epochs = metric, epochs
        self._known: dict[str, SimpleNamespace] = {}
        self._asha = AsyncHyperBandScheduler(
            time_attr="epoch",
            metric="value",
            mode=metric.mode,
            max_t=epochs,
            grace_period=grace_epochs,
            reduction_factor=reduction,
            stop_last_trials=False,  # a trial that has reached its last epoch ends by itself, with its model
        )

    @classmethod
    def of(cls, spec: StudySpec, metric: StudyMetric) -> Rungs:
        """The rungs that a spec asks for."""
        search, swept = spec.search, spec.sweep.values_of("train.epochs")
        epochs = max(swept, default=spec.train.epochs)
        return cls(metric, epochs=epochs, grace_epochs=search.grace_epochs, reduction=search.reduction)

    def stops(self, trial_id: str, epoch: Mapping[str, Any]) -> bool:
        """Whether a trial stops after an epoch. epoch: its record.

        The last epoch is no rung. An epoch without a finite value is not judged, the next one with a value is: Tune's
        cut-off would take NaN for neither better nor worse, and let it go on.
        """
        number, value = epoch["epoch"], epoch.get(self._metric.key)
        if trial_id in self.stopped:
            return True
        if number >= self._epochs or value is None or not math.isfinite(value):
            return False
        from ray.tune.schedulers import TrialScheduler

        decision = self._asha.on_trial_result(None, self._trial(trial_id), {"epoch": number, "value": value})
        if decision == TrialScheduler.STOP:
            self.stopped[trial_id] = number
        return bool(decision == TrialScheduler.STOP)

    def _trial(self, trial_id: str) -> SimpleNamespace:
        """What Tune's scheduler knows a trial by."""
        if trial_id not in self._known:
            self._known[trial_id] = SimpleNamespace(trial_id=trial_id)
            self._asha.on_trial_add(None, self._known[trial_id])
        return self._known[trial_id]
