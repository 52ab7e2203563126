"""Asynchronous successive halving (ASHA; Li et al. 2018, arXiv 1810.05934) over a study's trials.

A trial that is among the worst at a rung – an evaluation after which a share of the trials goes on – is stopped there.
If a target is listed, the time to it decides, and only trials of the same kind are compared: with a larger batch an
epoch has fewer steps and takes other seconds, so the metric after equally many epochs does not show which batch size
reaches the target sooner. A resumed study replays the past, and `Asha` decides as it would have.
"""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np

from scalestudy.experiments.plan.plan import TrialPlan, step_params, without
from scalestudy.experiments.spec.search_space import cell_key
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.orchestration.sweep.stopping import Stopping
from scalestudy.training.records import EpochRecord


class Asha(Stopping):
    """The rule that decides after each evaluation whether a trial goes on."""

    def __init__(self, spec: StudySpec) -> None:
        """Make the ASHA that a spec asks for."""
        super().__init__(spec)
        search = spec.search
        self._like_with_like = spec.hardest_target is not None
        self._last = spec.evaluations
        self._reduction = search.reduction
        steps = range(math.ceil(math.log(self._last, search.reduction)) + 1)
        rungs = [search.grace_epochs * search.reduction**step for step in steps]
        self._rungs = [rung for rung in rungs if rung < self._last]
        self._judged: set[tuple[int, str]] = set()  # (rung, trial)
        self._come: dict[tuple[int, str], dict[str, float]] = defaultdict(dict)  # (rung, kind) → training → value

    def _ends(self, trial: TrialPlan, record: EpochRecord) -> bool:
        """Return whether a trial is among the worst at a rung.

        The last evaluation is no rung. One without a finite value is skipped; the next one with a value is judged.
        """
        trial_id, value = trial.trial_id, record.test_metric
        if not math.isfinite(value):
            return False
        rung = max((rung for rung in self._rungs if rung <= record.epoch), default=None)
        if rung is None or record.epoch >= self._last or (rung, trial_id) in self._judged:
            return False
        self._judged.add((rung, trial_id))
        return not self._goes_on(rung, trial, -self._metric.order(value))

    def _goes_on(self, rung: int, trial: TrialPlan, value: float) -> bool:
        """Return whether it is among the best of the trainings that have reached a rung. value: more is better.

        The same training with another num_gpus learns the same: it counts once, and does not compete with its copies.
        """
        kind, training = "", trial.trial_id
        if self._like_with_like:
            kind = cell_key(without(step_params(trial.params), ["num_gpus"]))
            training = cell_key(without(trial.params, ["num_gpus"]))
        come = self._come[rung, kind]
        others = [other for name, other in come.items() if name != training]
        come.setdefault(training, value)
        return not others or value >= float(np.percentile(others, 100 * (1 - 1 / self._reduction)))
