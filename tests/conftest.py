"""What every test may lean on: one Ray for the session, and an environment that does not reach outside."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator

import hypothesis
import pytest

from scalestudy.orchestration.base.environment import prepare_environment
from tests.support.costs import Costs
from tests.support.gloo import GlooPool, gloo_pool
from tests.support.project_files import REPOSITORY

prepare_environment()  # before any test module imports Ray, which reads some of it then
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell leaves it that starts the tests in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # as nohup leaves it
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# No deadline: the first example of a test may import SciPy, and the machine may be busy.
hypothesis.settings.register_profile("ci", deadline=None, max_examples=50)
hypothesis.settings.load_profile("ci")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bounds", metavar="PART", help="a part of tests/bounds.toml that this run is held to")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Costs(), "costs")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported now lives to the end: to look for garbage in it, now and at the exit, costs 4 s a process."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


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


@pytest.fixture(scope="session")
def ranks() -> Iterator[GlooPool]:
    """Four gloo ranks for the whole session; a process of xdist has its own."""
    with gloo_pool(4) as pool:
        yield pool
