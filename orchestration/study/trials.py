"""A planned trial as the plain data that a worker group needs to train it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scalestudy.experiments.plan.plan import TrialPlan
from scalestudy.experiments.spec.addresses import child
from scalestudy.experiments.study.folder import MODEL_FILE
from scalestudy.training.config import TrainKnobs, keys

WORKLOAD_KEYS = ("model", "model_args", "data", "data_args", "loss", "metric")


def train_config(trial: TrialPlan, data_root: str | Path) -> dict[str, Any]:
    """The keyword arguments of `scalestudy.training.config.TrainConfig` for a trial."""
    return {
        **{key: trial.workload[key] for key in WORKLOAD_KEYS},
        **{key.name: trial.train[key.name] for key in keys(TrainKnobs) if key.name in trial.train},
        "max_steps": trial.train.get("max_steps"),  # of a timing run
        "data_root": str(data_root),
        "batch_size": trial.batch_size,
        "learning_rate": trial.learning_rate,
        "seed": trial.seed,
    }


def order(
    trial: TrialPlan, data_root: str | Path, checkpoints: str | Path, history: dict[str, Any] | None = None
) -> dict[str, Any]:
    """What the worker groups are handed: how many workers, what to train, where its state and, if best, its model go.

    checkpoints: the trial's place for both, a path or a URI. history: what earlier runs have left,
    `TrialHistory.to_order`.
    """
    return {
        "trial_id": trial.trial_id,
        "num_workers": trial.num_gpus,
        "config": train_config(trial, data_root),
        "metric_mode": trial.workload["metric_mode"],
        "model_path": child(checkpoints, MODEL_FILE),
        "history": history,
        "checkpoints": {"store": str(checkpoints), "every_epochs": trial.train["checkpoint_every"]},
    }
