"""`scalestudy inspect`: the model that a study trains, as its trials start from it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalestudy.experiments.plan.plan import TrialPlan, make_plan
from scalestudy.orchestration.base.errors import RequestError, request_error
from scalestudy.orchestration.groups.failures import describe
from scalestudy.orchestration.study.folders import read_spec
from scalestudy.orchestration.study.ready import check_callables, check_configs, check_data, known_trials
from scalestudy.orchestration.study.trials import train_config

if TYPE_CHECKING:
    from scalestudy.training.loop.memory_fit import Inspection


CHANGES = ("workload.", "train.optimizer.name", "train.optimizer.momentum")
"""What parameters begin with that change the table or the memory; the seed changes the numbers alone."""


@dataclass(frozen=True)
class Variant:
    """One of the models that a study trains."""

    model: str
    data: str
    optimizer: str
    seed: int  # that its numbers were drawn with: the first of the sweep
    params: dict[str, Any]  # the swept parameters that make it differ from the study's other ones
    inspection: Inspection

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for --json."""
        return {**vars(self), "inspection": self.inspection.to_dict()}


def inspect_study(source: str, overrides: Sequence[str] = ()) -> list[Variant]:
    """Every model that the study's trials train, in the plan's order.

    Raises SpecError for the spec, RequestError for data that are not there or a model that can't be built.
    """
    spec = read_spec(source, overrides)
    root = check_data(spec)
    check_callables(spec)
    trials = known_trials(spec, make_plan(spec))
    check_configs(trials, root)
    first_of: dict[str, TrialPlan] = {}
    for trial in trials:
        first_of.setdefault(json.dumps(_changes(trial), sort_keys=True), trial)
    return [_variant(trial, root) for trial in first_of.values()]


def _changes(trial: TrialPlan) -> dict[str, Any]:
    return {key: value for key, value in trial.params.items() if key.startswith(CHANGES)}


def _variant(trial: TrialPlan, data_root: Path) -> Variant:
    from scalestudy.training.config import TrainConfig
    from scalestudy.training.loop.memory_fit import inspect_config

    config = TrainConfig.from_dict(train_config(trial, data_root))
    try:
        inspection = inspect_config(config)
    except ValueError as error:
        raise request_error(error, "correct the spec") from error
    except Exception as error:  # the user's callables may raise anything
        said = " ".join(describe(error).split())
        raise RequestError(f"workload.model: {config.model}: {said}", "correct the callable") from error
    return Variant(config.model, config.data, config.optimizer.name, config.seed, _changes(trial), inspection)
