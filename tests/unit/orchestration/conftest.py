"""What tests of several rooms share."""

import shutil

import pytest

from scalestudy.orchestration.tracking.database import open_database


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty current folder, with a home that no other test has."""
    monkeypatch.setenv("SCALESTUDY_HOME", str(tmp_path / "home"))
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory):
    """MLflow's database with its tables and nothing in them: it takes seconds to make, and no time to copy."""
    database = tmp_path_factory.mktemp("empty") / "mlflow.db"
    open_database(database)
    return database


@pytest.fixture(scope="module")
def database(empty_database, tmp_path_factory):
    """A database of the module's own, with nothing in it yet."""
    return shutil.copy(empty_database, tmp_path_factory.mktemp("mlflow"))
