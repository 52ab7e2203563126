"""MLflow's SQLite database as a file: real ones, made by MLflow."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from scalestudy.experiments.spec.addresses import path_of
from scalestudy.orchestration.tracking.database import has_study, make_database, open_database
from scalestudy.orchestration.tracking.mlflow_store import open_experiment
from scalestudy.orchestration.tracking.server import TrackingAddress


@pytest.fixture
def project(tmp_path, empty_database):
    """A folder with a database, an experiment of an odd name, a run with an artifact, and a registered model."""
    folder = tmp_path / "before?"
    folder.mkdir()
    shutil.copy(empty_database, folder)
    client, experiment = open_experiment(TrackingAddress.of_database(folder / "mlflow.db"), "a b%41")
    run = client.create_run(experiment, tags={"scalestudy.study_id": "x-1"}).info.run_id
    client.log_text(run, "report", "report.html")
    model = client.create_logged_model(experiment, name="model", source_run_id=run)
    place = path_of(model.artifact_location)
    place.mkdir(parents=True)
    (place / "MLmodel").write_text("flavors: {}\n")
    client.finalize_logged_model(model.model_id, "READY")
    client.create_registered_model("digits")
    client.create_model_version("digits", model.artifact_location, run)
    return folder


def addresses_in(database):
    """Every address of artifacts that is in a database, by run, model and version."""
    client, experiment = open_experiment(TrackingAddress.of_database(database), "a b%41")
    [run], [model] = client.search_runs([experiment]), client.search_logged_models([experiment])
    [version] = client.search_model_versions("name = 'digits'")
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["report.html"]
    given = (run.info.artifact_uri, model.artifact_location, version.source, client.get_experiment(experiment))
    return [path_of(each) for each in (*given[:3], given[3].artifact_location)]


@pytest.mark.parametrize("name", ["after", "100% #1", "müll & co"])
def test_a_moved_database_finds_its_artifacts(project, name):
    after = project.rename(project.parent / name)
    for address in addresses_in(after / "mlflow.db"):
        assert address.is_dir()
        assert address.is_relative_to(after / "mlartifacts")
    assert not project.exists()


def test_a_copied_database_has_artifacts_apart_from_the_original_s(project):
    copy = Path(shutil.copytree(project, project.parent / "copy"))
    for folder in (copy, project):
        assert all(address.is_relative_to(folder / "mlartifacts") for address in addresses_in(folder / "mlflow.db"))


def test_a_database_that_was_moved_alone_leaves_the_artifacts_where_they_are(project, tmp_path):
    (tmp_path / "other").mkdir()
    database = (project / "mlflow.db").rename(tmp_path / "other" / "mlflow.db")
    assert all(address.is_relative_to(project / "mlartifacts") for address in addresses_in(database))


def test_a_database_reached_through_a_link_stays_as_it_is(project, tmp_path):
    (tmp_path / "link").symlink_to(project)
    assert all(address.is_relative_to(project) for address in addresses_in(tmp_path / "link" / "mlflow.db"))


def test_addresses_of_others_stay(project):
    client, _ = open_experiment(TrackingAddress.of_database(project / "mlflow.db"), "a b%41")
    others = ["s3://bucket/mlartifacts/x", "mlflow-artifacts:/7", (project / "mine" / "x").as_uri()]
    ids = [client.create_experiment(f"other {n}", artifact_location=uri) for n, uri in enumerate(others)]
    after = project.rename(project.parent / "after")
    client, _ = open_experiment(TrackingAddress.of_database(after / "mlflow.db"), "a b%41")
    assert [client.get_experiment(each).artifact_location for each in ids] == others


def test_which_studies_a_database_has(project, tmp_path):
    assert has_study(project / "mlflow.db", "x-1")
    assert not has_study(project / "mlflow.db", "x-2")
    assert not has_study(tmp_path / "none.db", "x-1")
    assert not (tmp_path / "none.db").exists()
    (tmp_path / "text.db").write_text("no database")
    assert not has_study(tmp_path / "text.db", "x-1")


def test_a_database_of_another_kind_is_left_to_mlflow(tmp_path):
    with closing(sqlite3.connect(tmp_path / "mine.db")) as connection, connection:
        connection.execute("CREATE TABLE mine (x)")
    open_database(tmp_path / "mine.db")


@pytest.mark.parametrize("links", [True, False])
def test_what_is_there_is_never_replaced(empty_database, tmp_path, monkeypatch, links):
    """Not by the second of two that make it, and not on a file system without hard links."""

    def laid_out(uri, _):
        shutil.copy(empty_database, path_of(uri))
        return type("Store", (), {"engine": type("Engine", (), {"dispose": staticmethod(lambda: None)})})

    monkeypatch.setattr("mlflow.store.tracking.sqlalchemy_store.SqlAlchemyStore", laid_out)
    if not links:
        monkeypatch.setattr("os.link", lambda *_: (_ for _ in ()).throw(PermissionError()))
    (tmp_path / "first.db").write_text("the first")
    make_database(tmp_path / "first.db")
    assert (tmp_path / "first.db").read_text() == "the first"
    for name in ("new.db", "empty.db"):
        if name == "empty.db":
            (tmp_path / name).touch()
        make_database(tmp_path / name)
        assert (tmp_path / name).read_bytes() == empty_database.read_bytes()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["empty.db", "first.db", "new.db"]
