"""What every test may lean on: one Ray for the session, and an environment that does not reach outside."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from scalestudy.orchestration.base.environment import prepare_environment

prepare_environment()  # before any test module imports Ray, which reads some of it then

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session", autouse=True)
def _own_environment(tmp_path_factory):
    """The defaults that commands set, and folders of the session's own."""
    for name in ("MLFLOW_TRACKING_URI", "RAY_ADDRESS", "SCALESTUDY_DATA", "SCALESTUDY_HOME"):
        os.environ.pop(name, None)
    os.environ["SCALESTUDY_HOME"] = str(tmp_path_factory.mktemp("home"))
    # Ray's workers import the tests' own models from the repository, wherever the test's current folder is
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    prepare_environment()


@pytest.fixture(autouse=True)
def _no_default_store():
    """MLflow keeps its default store in the process and in the environment; no test hands one on."""
    yield
    if "mlflow" in sys.modules:
        sys.modules["mlflow"].set_tracking_uri(None)
