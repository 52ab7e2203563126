"""A planned trial as the order that the pool takes."""

from __future__ import annotations

from pathlib import Path

from scalestudy.experiments.plan.plan import TrialPlan
from scalestudy.experiments.spec.addresses import child
from scalestudy.experiments.study.folder import MODEL_FILE
from scalestudy.orchestration.groups.model import TrialOrder
from scalestudy.orchestration.groups.trial_record import TrialRecord
from scalestudy.training.config import TrainConfig


def train_config(trial: TrialPlan, data_root: str | Path) -> TrainConfig:
    """Return a trial's training configuration. Raises ConfigError for an impossible training."""
    plain = {
        **trial.workload,
        **trial.train,  # of a timing run, max_steps and min_seconds too
        "data_root": str(data_root),
        "batch_size": trial.batch_size,
        "learning_rate": trial.learning_rate,
        "seed": trial.seed,
    }
    return TrainConfig.from_dict(plain)


def order(
    trial: TrialPlan,
    data_root: str | Path,
    place: str | Path,
    so_far: TrialRecord | None = None,
    *,
    stop_at: float | None = None,
) -> TrialOrder:
    """Return the pool's order for a trial.

    place: where the trial's checkpoints and, if it is the best, its model go: a path or a URI. so_far: the record of
    earlier runs. stop_at: the target at which a training ends; a timing run is not evaluated. Raises ValueError for an
    impossible training.
    """
    config = train_config(trial, data_root)
    return TrialOrder(
        trial_id=trial.trial_id,
        num_workers=trial.num_gpus,
        config=config,
        model_path=child(place, MODEL_FILE),
        checkpoints=str(place) if config.checkpoint_every and not config.loop else None,  # a loop has Ray's
        stop_at=stop_at if trial.kind == "training" else None,
        reports=config.epochs if config.loop and trial.kind == "timing" else None,
        so_far=so_far or TrialRecord(),
    )
