"""Libraries that a run will need, loaded while it waits for other processes."""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Sequence

logger = logging.getLogger(__name__)

WHILE_RAY_STARTS = (
    "scalestudy.orchestration.study.running",
    "ray.train.v2.api.data_parallel_trainer",
    "ray.tune",
    "mlflow",
    "mlflow.store.tracking.sqlalchemy_store",
)
"""What the first worker group, the sweep and MLflow's writer need, as soon as there is a cluster."""
WHILE_THE_REPORT_IS_WRITTEN = ("torch", "mlflow.pytorch")
"""What MLflow's writer needs to log the best model, which it does last."""


def load_ahead(modules: Sequence[str]) -> threading.Thread:
    """Imports modules in their order, on a thread. One that can't be imported is left to whoever needs it."""
    thread = threading.Thread(target=_load, args=(modules,), name="load-ahead", daemon=True)
    thread.start()
    return thread


def _load(modules: Sequence[str]) -> None:
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:  # a library raises anything while it is imported
            logger.info("not loaded ahead: %s: %s", name, error)
