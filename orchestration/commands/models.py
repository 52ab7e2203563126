"""The models that a study trains, in their initial state: a part of `scalestudy plan --rehearse`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalestudy.experiments.plan.plan import TrialPlan
from scalestudy.orchestration.study.trials import train_config

if TYPE_CHECKING:
    from scalestudy.training.loop.memory_fit import Inspection


CHANGES = ("workload.", "train.optimizer.name", "train.optimizer.momentum")
"""Prefixes of the parameters that change the table or the memory. The seed changes only the numbers."""


@dataclass(frozen=True)
class Variant:
    """One of the models that a study trains."""

    model: str
    data: str
    optimizer: str
    seed: int  # the sweep's first seed, from which its numbers were drawn
    params: dict[str, Any]  # the swept parameters in which the study's models differ
    inspection: Inspection

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for --json."""
        return {**vars(self), "inspection": self.inspection.to_dict()}


def inspect_models(trials: Iterable[TrialPlan], data_root: Path) -> list[Variant]:
    """Load the data, and build every model that these trials train, in their order.

    A rehearsal has already built each.
    """
    import torch

    from scalestudy.training.data.loading import open_data
    from scalestudy.training.distributed import Worker
    from scalestudy.training.loop.memory_fit import inspect_config

    variants: dict[str, Variant] = {}
    for trial in trials:
        params = {key: value for key, value in trial.params.items() if key.startswith(CHANGES)}
        word = json.dumps(params, sort_keys=True)
        if word not in variants:
            config = train_config(trial, data_root)
            inspection = inspect_config(config, open_data(config, Worker(0, 1, torch.device("cpu"))))
            variants[word] = Variant(config.model, config.data, config.optimizer.name, config.seed, params, inspection)
    return list(variants.values())
