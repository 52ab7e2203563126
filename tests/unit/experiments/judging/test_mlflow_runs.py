"""How a run of MLflow's becomes one to be judged, and stores that are none."""

import sqlite3
from contextlib import closing

import pytest

from scalestudy.experiments.judging.mlflow_runs import MlflowRun, Point, read_database, read_folder
from scalestudy.experiments.judging.runs import SourceError


def recorded(metric=None, status="FINISHED", params=None, tags=None, **points):
    run = MlflowRun(
        run_id="4f0c",
        name="warm-sun",
        status=status,
        started=1_700_000_000_250,
        stopped=None,
        params=params or {},
        tags=tags or {},
        points={name: [Point(*point) for point in each] for name, each in points.items()},
    )
    return run.recorded(metric)


def test_what_is_said_once():
    run = recorded(
        params={"lr": "0.1", "optimizer": "adam", "nesterov": "True", "seed": "3"},
        tags={"team": "a", "mlflow.user": "ann", "mlflow.source.git.commit": "abc", "mlflow.runName": "x", "seed": "4"},
    )
    assert run.values == {
        **{"lr": 0.1, "optimizer": "adam", "nesterov": True, "seed": 3},
        **{"team": "a", "mlflow.source.git.commit": "abc"},
    }
    assert (run.where, run.name, list(run.history)) == ("MLflow run 4f0c", "warm-sun", [])
    assert (run.started, run.stopped) == (1_700_000_000.25, None)


def test_metrics_of_a_step_are_a_row():
    run = recorded(acc=[(10, 1000, 0.5), (20, 2000, 0.7)], loss=[(10, 1005, 2.5), (20, 2005, 1.5), (30, 3000, 1.0)])
    assert list(run.history) == [
        {"timestamp": 1.005, "step": 10, "acc": 0.5, "loss": 2.5},
        {"timestamp": 2.005, "step": 20, "acc": 0.7, "loss": 1.5},
        {"timestamp": 3.0, "step": 30, "loss": 1.0},
    ]


@pytest.mark.parametrize("names", [("acc", "loss"), ("loss", "acc")])
def test_a_row_has_the_time_of_the_metric_that_is_asked_for(names):
    points = {"acc": [(10, 1000, 0.5)], "loss": [(10, 9000, 2.5), (20, 9500, 2.0)]}
    run = recorded("acc", **{name: points[name] for name in names})
    assert [row["timestamp"] for row in run.history] == [1.0, 9.5]


def test_steps_that_were_not_named():
    run = recorded(acc=[(0, 1000, 0.5), (0, 2000, 0.7)], loss=[(0, 1000, 2.5), (0, 2000, 1.5)])
    assert list(run.history) == [
        {"timestamp": 1.0, "acc": 0.5, "loss": 2.5},
        {"timestamp": 2.0, "acc": 0.7, "loss": 1.5},
    ]


def test_a_metric_logged_twice_a_step():
    run = recorded(acc=[(1, 1000, 0.5), (1, 1001, 0.6), (2, 2000, 0.7)])
    assert [(row["step"], row["acc"]) for row in run.history] == [(1, 0.5), (1, 0.6), (2, 0.7)]


@pytest.mark.parametrize(
    ("status", "ended"),
    [
        ("FINISHED", "finished"),
        ("FAILED", "failed"),
        ("KILLED", "cut"),
        ("RUNNING", "running"),
        ("SCHEDULED", "running"),
    ],
)
def test_how_a_run_ended(status, ended):
    assert recorded(status=status).ended == ended


def database(file, *statements):
    with closing(sqlite3.connect(file)) as connection, connection:
        for statement in statements:
            connection.execute(statement)
    return file


def test_a_folder_as_old_versions_wrote_it(tmp_path):
    """Integers for ids, no run_name, no steps, the folders that were empty gone, and the last line torn."""
    run = tmp_path / "0" / "abc"
    (run / "metrics" / "val").mkdir(parents=True)
    (run / "params").mkdir()
    (tmp_path / "0" / "meta.yaml").write_text("experiment_id: 0\nname: Default\nlifecycle_stage: active\n")
    (run / "meta.yaml").write_text("run_uuid: abc\nname: old\nstatus: 3\nstart_time: 1000\nend_time: 5000\n")
    (run / "metrics" / "val" / "acc").write_text("2000 0.5\n3000 nan 2\n4000 0.")
    (run / "params" / "lr").write_text("0.1")
    [found] = read_folder(tmp_path, "0")
    assert found.params == {"lr": "0.1"}
    assert [(point.step, point.milliseconds) for point in found.points["val/acc"]] == [(0, 2000), (2, 3000)]
    assert (found.run_id, found.status, found.started, found.stopped) == ("abc", "FINISHED", 1000, 5000)


BAD = {
    "no folder": (lambda folder: read_folder(folder / "none", "a"), "can't be read"),
    "an empty folder": (lambda folder: read_folder(folder, "a"), "is no store of MLflow"),
    "no database": (lambda folder: read_database(folder / "none.db", "a"), "is not there"),
    "an empty database": (lambda folder: read_database(database(folder / "a.db"), "a"), "is no database of MLflow"),
    "another database": (
        lambda folder: read_database(database(folder / "a.db", "CREATE TABLE runs (x)"), "a"),
        "is no database of MLflow",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_store_that_is_none(tmp_path, name):
    read, words = BAD[name]
    with pytest.raises(SourceError, match=words) as caught:
        read(tmp_path)
    assert caught.value.what.startswith(str(tmp_path))
    assert caught.value.remedy


def test_a_file_that_is_no_database(tmp_path):
    file = tmp_path / "a.db"
    file.write_text("SQLite it is not, however long this text may be")
    with pytest.raises(SourceError, match="can't be read"):
        read_database(file, "a")
