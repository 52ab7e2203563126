"""The best trial's model in MLflow, exported without pickle."""

from __future__ import annotations

import importlib.metadata
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from scalestudy.orchestration.groups.failures import describe
from scalestudy.orchestration.storage.trial_states import read_from
from scalestudy.training.config import TrainConfig

logger = logging.getLogger(__name__)


def log_best_model(client: Any, run_id: str, config: TrainConfig, model_path: str) -> None:
    """Logs a trained model to its trial's run, so that `mlflow.pytorch.load_model` gives it back.

    A model that `torch.export` refuses is logged as its parameters' file, with a tag that says why. The export is tried
    before MLflow is asked: a store that goes away in between is an error, and is tried again.

    Args:
        client: an `MlflowClient`, which names the store.
        run_id: the trial's run.
        config: the trial's training configuration.
        model_path: where its saved parameters lie, a path or a URI.
    """
    import torch

    experiment = client.get_run(run_id).info.experiment_id
    models = client.search_logged_models([experiment], filter_string=f"source_run_id = '{run_id}'")
    if any(model.status == "READY" for model in models):  # of any other, MLflow may not have all files
        return
    with read_from(model_path) as file:
        try:
            model, example = trained_model(config, str(file))
            dynamic = [{0: torch.export.Dim.AUTO}]  # as mlflow.pytorch does
            torch.export.export(model, (example,), dynamic_shapes=dynamic)
        except Exception as error:  # torch.export refuses in many ways, and a user's code in any
            logger.warning("the model is logged as its parameters alone: %s", error)
            client.log_artifact(run_id, str(file), "model")
            reason = describe(error)[:500]
            client.set_tag(run_id, "scalestudy.model", f"state_dict only; torch.export refused: {reason}")
            return
        _log_exported(client, run_id, model, example)


def trained_model(config: TrainConfig, model_path: str) -> tuple[Any, Any]:
    """The module with its trained parameters, in evaluation mode on the CPU, and two rows of its test inputs."""
    import torch

    from scalestudy.training.data.loading import load_splits
    from scalestudy.training.models import build_model
    from scalestudy.training.state import load_state

    splits = load_splits(config, torch.device("cpu"))
    model = build_model(config.model, splits.num_classes, splits.in_channels, dict(config.model_args))
    model.load_state_dict(load_state(model_path))
    return model.eval(), splits.test_examples(2)  # one row would specialise the graph to batch 1


def _log_exported(client: Any, run_id: str, model: Any, example: Any) -> None:
    import mlflow.pytorch
    import numpy as np
    from mlflow.models import Model, ModelSignature
    from mlflow.types import Schema, TensorSpec

    rows = example.numpy()
    output = model(example).detach().numpy()
    signature = ModelSignature(
        inputs=Schema([TensorSpec(np.dtype(rows.dtype), (-1, *rows.shape[1:]))]),
        outputs=Schema([TensorSpec(np.dtype(output.dtype), (-1, *output.shape[1:]))]),
    )
    run = client.get_run(run_id)
    logged = client.create_logged_model(  # by `Model.log` alone it would go to MLflow's default experiment
        run.info.experiment_id, name="model", source_run_id=run_id, params=run.data.params
    )
    with _default_store(client.tracking_uri):
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


@contextmanager
def _default_store(uri: str) -> Iterator[None]:
    """Makes a store MLflow's default for a while, since `Model.log` takes no other.

    MLflow also puts its default into the environment. It is put back, or this process's next study would find it.
    """
    import mlflow

    named = os.environ.get("MLFLOW_TRACKING_URI")
    mlflow.set_tracking_uri(uri)
    try:
        yield
    finally:
        mlflow.set_tracking_uri(None)
        if named is not None:
            os.environ["MLFLOW_TRACKING_URI"] = named
