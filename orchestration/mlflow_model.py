"""Stage 7, tracking: the best trial's model in MLflow, exported without pickle."""

from __future__ import annotations

import importlib.metadata
import logging
from typing import Any

logger = logging.getLogger(__name__)


def log_best_model(client: Any, run_id: str, operation: dict[str, Any]) -> None:
    """Logs a trained model to its trial's run, so that `mlflow.pytorch.load_model` gives it back.

    Args:
        client: an `MlflowClient`, which names the store.
        run_id: the trial's run.
        operation: `config` (the trial's training configuration) and `model_path` (its saved parameters).

    A model that `torch.export` refuses is logged as its parameters' file, with a tag that says why.
    """
    if _has_model(client, run_id):
        return
    try:
        _log_exported(client, run_id, operation)
    except Exception as error:  # torch.export refuses in many ways
        logger.warning("the model is logged as its parameters alone: %s", error)
        client.log_artifact(run_id, operation["model_path"], "model")
        reason = f"{type(error).__name__}: {error}"[:500]
        client.set_tag(run_id, "scalestudy.model", f"state_dict only; torch.export refused: {reason}")


def _has_model(client: Any, run_id: str) -> bool:
    outputs = client.get_run(run_id).outputs
    return bool(outputs and outputs.model_outputs)


def trained_model(config: dict[str, Any], model_path: str) -> tuple[Any, Any]:
    """The module with its trained parameters, in evaluation mode on the CPU, and two rows of its test inputs."""
    import torch

    from training.config import TrainConfig
    from training.data.loading import load_splits
    from training.models import build_model
    from training.state import load_state

    settings = TrainConfig.from_dict(config)
    splits = load_splits(settings, torch.device("cpu"))
    model = build_model(settings.model, splits.num_classes, splits.in_channels, dict(settings.model_args))
    model.load_state_dict(load_state(model_path))
    return model.eval(), splits.test_inputs[:2].clone()  # one row would specialise the graph to batch 1


def _log_exported(client: Any, run_id: str, operation: dict[str, Any]) -> None:
    import mlflow.pytorch
    import numpy as np
    from mlflow.models import Model, ModelSignature
    from mlflow.types import Schema, TensorSpec

    model, example = trained_model(operation["config"], operation["model_path"])
    rows = example.numpy()
    output = model(example).detach().numpy()
    signature = ModelSignature(
        inputs=Schema([TensorSpec(np.dtype(rows.dtype), (-1, *rows.shape[1:]))]),
        outputs=Schema([TensorSpec(np.dtype(output.dtype), (-1, *output.shape[1:]))]),
    )
    run = client.get_run(run_id)
    logged = client.create_logged_model(  # by `Model.log` alone it would go to MLflow's default experiment
        run.info.experiment_id, name="model", source_run_id=run_id, params=run.data.params, flavor="pytorch"
    )
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(client.tracking_uri)
    try:
        Model.log(
            artifact_path=None,
            model_id=logged.model_id,
            flavor=mlflow.pytorch,
            run_id=run_id,
            pytorch_model=model,
            signature=signature,
            input_example=rows,
            serialization_format="pt2",
            pip_requirements=[f"torch=={importlib.metadata.version('torch').partition('+')[0]}"],
        )
    finally:
        mlflow.set_tracking_uri(before)
