"""The best trial's model in MLflow, exported without pickle."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from scalestudy.experiments.study.mlflow_limits import LONGEST_TAG, fitted_text
from scalestudy.orchestration.groups.failures import describe
from scalestudy.orchestration.storage.trial_states import read_from
from scalestudy.training.config import TrainConfig

logger = logging.getLogger(__name__)

MODEL = "scalestudy.model"
"""Tag of a trial's run whose kept model is no MLflow model, or one of other code: why. Such a model has it too."""


def log_best_model(client: Any, run_id: str, config: TrainConfig, model_path: str, changed: Sequence[str] = ()) -> str:
    """Log a trained model to its trial's run, so that `mlflow.pytorch.load_model` gives it back.

    A model that `torch.export` refuses, or that only a user's task knows how to call, is logged as a file of
    parameters, with a tag that says why. The export is tried before MLflow is asked: if the store goes away in between,
    that is an error, and the call is tried again.

    Args:
        client: an `MlflowClient`, which names the store.
        run_id: the trial's run.
        config: the trial's training configuration.
        model_path: of its saved parameters, a path or a URI.
        changed: modules of its code that are not here as they were when it was trained.

    Returns what the tag says; "": the model is there, of the code that it was trained with.
    """
    import torch

    if find_model(client, run_id) is not None:
        return ""
    other = f"its code is not what it was trained with: {', '.join(changed)}" if changed else ""
    with read_from(model_path) as file:
        if config.task is not None:
            return _log_parameters(client, run_id, str(file), f"only its task, {config.task}, knows how it is called")
        refused = "it can't be built here"
        try:
            model, example = trained_model(config, str(file))
            refused = "torch.export refused"
            dynamic = [{0: torch.export.Dim.AUTO}]  # as mlflow.pytorch does
            torch.export.export(model, (example,), dynamic_shapes=dynamic)
        except BaseException as error:  # torch.export refuses in many ways, and a user's code in any
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                raise  # Python raises a Ctrl-C there alone
            why = "; ".join(filter(None, (other, f"{refused}: {describe(error)[:500]}")))
            logger.warning("the model is logged as its parameters alone: %s", why)
            return _log_parameters(client, run_id, str(file), why)
        tags = {MODEL: fitted_text(other, LONGEST_TAG)} if other else {}
        for name, text in tags.items():
            client.set_tag(run_id, name, text)
        _log_exported(client, run_id, model, example, tags)
        return other


def _log_parameters(client: Any, run_id: str, file: str, why: str) -> str:
    said = fitted_text(f"state_dict only; {why}", LONGEST_TAG)
    client.log_artifact(run_id, file, "model")
    client.set_tag(run_id, MODEL, said)
    return said


def find_model(client: Any, run_id: str, status: str = "READY") -> str | None:
    """Return the id of the model that was logged to a trial's run, by default a complete one; None: there is none."""
    experiment = client.get_run(run_id).info.experiment_id
    models = client.search_logged_models([experiment], filter_string=f"source_run_id = '{run_id}'")
    found = [model.model_id for model in models if model.status == status]
    return str(found[0]) if found else None


def trained_model(config: TrainConfig, model_path: str) -> tuple[Any, Any]:
    """Return the module with its trained parameters, in evaluation mode on the CPU, and two rows of its test inputs."""
    import torch

    from scalestudy.training.data.loading import load_splits
    from scalestudy.training.models import build_model
    from scalestudy.training.state import load_state

    splits = load_splits(config, torch.device("cpu"))
    model = build_model(config.model, splits.for_model, dict(config.model_args))
    model.load_state_dict(load_state(model_path))
    inputs, _ = splits.test_examples(2)  # one row would specialise the graph to batch 1
    return model.eval(), inputs


def _log_exported(client: Any, run_id: str, model: Any, example: Any, tags: Mapping[str, str]) -> None:
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
    model_id = find_model(client, run_id, "PENDING")  # from an earlier try that got no answer, or broke off
    if model_id is None:  # by `Model.log` alone it would go to MLflow's default experiment
        about = {"source_run_id": run_id, "params": run.data.params, "tags": dict(tags)}
        model_id = client.create_logged_model(run.info.experiment_id, name="model", **about).model_id
    with _default_store(client.tracking_uri):
        Model.log(
            artifact_path=None,
            model_id=model_id,
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
    """Make a store MLflow's default for a while, since `Model.log` takes no other.

    MLflow also puts its default into the environment. It is restored, or this process's next study would find it.
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
