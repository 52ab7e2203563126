"""Asynchronous successive halving (ASHA) over a study's trials, by Tune's own scheduler.

A trial that is among the worst at a rung – an epoch after which a share of the trials goes on – is stopped there.
`Asha` knows a trial by our id, which is the same in every run of a study; Tune's differs from run to run. So a resumed
study tells it the past, and it decides as it would have.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Literal

from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.training.records import EpochRecord


class Asha:
    """Decides after each epoch whether a trial goes on.

    stopped: trials that were stopped, and after which epoch.
    """

    def __init__(self, mode: Literal["max", "min"], *, epochs: int, grace_epochs: int, reduction: int) -> None:
        """mode: whether more or less of the metric is better. epochs: of a trial that is not stopped. grace_epochs: the
        first rung. reduction: one of so many goes on."""
        from ray.tune.schedulers import AsyncHyperBandScheduler

        self.stopped: dict[str, int] = {}
        self._epochs = epochs
        self._known: dict[str, SimpleNamespace] = {}  # what Tune's scheduler knows a trial by
        self._asha = AsyncHyperBandScheduler(
            time_attr="epoch",
            metric="value",
            mode=mode,
            max_t=epochs,
            grace_period=grace_epochs,
            reduction_factor=reduction,
            stop_last_trials=False,  # a trial that has reached its last epoch ends by itself, with its model
        )

    @classmethod
    def of(cls, spec: StudySpec) -> Asha:
        """The ASHA that a spec asks for."""
        search, swept = spec.search, spec.sweep.values_of("train.epochs")
        return cls(
            StudyMetric.of(spec.workload).mode,
            epochs=max(swept, default=spec.train.epochs),
            grace_epochs=search.grace_epochs,
            reduction=search.reduction,
        )

    def stops(self, trial_id: str, record: EpochRecord) -> bool:
        """Whether a trial stops after an epoch.

        The last epoch is no rung. Tune's cut-off lets NaN pass, so we skip epochs without a finite value; the next one
        with a value is judged.
        """
        if trial_id in self.stopped:
            return True
        if record.epoch >= self._epochs or not math.isfinite(record.test_metric):
            return False
        from ray.tune.schedulers import TrialScheduler

        if trial_id not in self._known:
            self._known[trial_id] = SimpleNamespace(trial_id=trial_id)
            self._asha.on_trial_add(None, self._known[trial_id])
        result = {"epoch": record.epoch, "value": record.test_metric}
        if self._asha.on_trial_result(None, self._known[trial_id], result) != TrialScheduler.STOP:
            return False
        self.stopped[trial_id] = record.epoch
        return True
