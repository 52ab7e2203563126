"""`scalestudy inspect`: the model that a study trains, as its trials start from it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scalestudy.experiments.plan.plan import make_plan
from scalestudy.orchestration.study.blame import blamed
from scalestudy.orchestration.study.folders import read_spec
from scalestudy.orchestration.study.ready import check_callables, check_configs, check_data, known_trials
from scalestudy.orchestration.study.trials import train_config

if TYPE_CHECKING:
    from scalestudy.training.loop.memory_fit import Inspection


CHANGES = ("workload.", "train.optimizer.name", "train.optimizer.momentum")
"""How the parameters begin that change the table or the memory. The seed changes only the numbers."""


@dataclass(frozen=True)
class Variant:
    """One of the models that a study trains."""

    model: str
    data: str
    optimizer: str
    seed: int  # its numbers were drawn with the sweep's first seed
    params: dict[str, Any]  # the swept parameters in which the study's models differ
    inspection: Inspection

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data, for --json."""
        return {**vars(self), "inspection": self.inspection.to_dict()}


def inspect_study(source: str, overrides: Sequence[str] = ()) -> list[Variant]:
    """Loads the data, and builds every model that the study's trials train, in the plan's order.

    Raises SpecError for a bad spec, RequestError for missing data or a model that can't be built.
    """
    spec = read_spec(source, overrides)
    root = check_data(spec)
    check_callables(spec)
    trials = known_trials(spec, make_plan(spec))
    check_configs(trials, root)
    # imported late, since they take torch along: a bad spec is refused at once
    import torch

    from scalestudy.training.data.loading import open_data
    from scalestudy.training.distributed import Worker
    from scalestudy.training.loop.memory_fit import inspect_config

    variants: dict[str, Variant] = {}
    for trial in trials:
        params = {key: value for key, value in trial.params.items() if key.startswith(CHANGES)}
        word = json.dumps(params, sort_keys=True)
        if word in variants:
            continue
        config = train_config(trial, root)
        try:
            inspection = inspect_config(config, open_data(config, Worker(0, 1, torch.device("cpu"))))
        except Exception as error:  # the user's callables may raise anything
            raise blamed(error, config, "correct it") from error
        variants[word] = Variant(config.model, config.data, config.optimizer.name, config.seed, params, inspection)
    return list(variants.values())
