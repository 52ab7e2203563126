"""MLflow's own stores, written by its plain calls, read back."""

import math
import shutil
import sqlite3
import threading
from contextlib import closing
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import mlflow
import pytest

from scalestudy.experiments.judging.mlflow_runs import ignore
from scalestudy.orchestration.base.errors import RefusedError, RequestError, UnreachableError
from scalestudy.orchestration.judging import mlflow_source
from scalestudy.orchestration.judging.mlflow_source import read_mlflow
from tests.support.ports import free_port
from tests.support.studies import tree
from tests.support.tracking_server import TrackingServer

SWEEP = "sweep, größe 1"
NAMES = ["finished", "failed", "killed", "running", "no steps"]


def fail():
    with mlflow.start_run(run_name="failed"):
        mlflow.log_metric("val/acc", 0.1, step=10)
        raise RuntimeError("out of memory")


def train(uri):
    """A sweep by somebody who never heard of us."""
    mlflow.set_tracking_uri(uri)
    mlflow.set_experiment("other")
    mlflow.set_experiment(SWEEP)
    client = mlflow.MlflowClient()
    with mlflow.start_run(run_name="finished", tags={"team": "a"}) as run:
        mlflow.log_params({"lr": 0.1, "batch size": 64, "model": 'résumé, "x"', "note": "two\nlines"})
        for step, accuracy in ((10, 0.5), (20, 0.7), (30, 0.9)):
            mlflow.log_metrics({"val/acc": accuracy, "loss": math.nan if step == 30 else 1 / accuracy}, step=step)
            mlflow.log_metric("system/gpu_0", 50.0, step=step)
        mlflow.log_metric("grad norm", math.inf, step=30)
    with pytest.raises(RuntimeError, match="out of memory"):
        fail()
    mlflow.start_run(run_name="killed")
    mlflow.log_metric("val/acc", 0.2, step=10)
    mlflow.end_run("KILLED")
    client.create_run(run.info.experiment_id, run_name="running")
    with mlflow.start_run(run_name="no steps"):
        mlflow.log_metric("val/acc", 0.3)
        mlflow.log_metric("val/acc", 0.4)
    with mlflow.start_run(run_name="deleted") as run:
        pass
    client.delete_run(run.info.run_id)
    mlflow.set_experiment("ours")
    with mlflow.start_run(tags={"scalestudy.study_id": "s-1"}):
        pass
    mlflow.set_experiment("mixed")
    for tags in ({"scalestudy.study_id": "s-1"}, {}):
        with mlflow.start_run(run_name="one", tags=tags):
            mlflow.log_metric("val/acc", 0.3)
    client.delete_experiment(client.create_experiment("gone"))
    mlflow.set_tracking_uri(None)


@pytest.fixture(scope="module")
def stores(tmp_path_factory, empty_database):
    """The same sweep in a database and in a folder, whose parents have odd names."""
    parent = tmp_path_factory.mktemp("a folder, ü")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        train(f"sqlite:///{shutil.copy(empty_database, parent)}")
        train((parent / "mlruns").as_uri())
    return parent


@pytest.fixture
def here(stores, monkeypatch):
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(stores)
    return stores


ADDRESSES = {
    "database": lambda folder: f"sqlite:///{folder / 'mlflow.db'}",
    "folder": lambda folder: str(folder / "mlruns"),
    "folder's URI": lambda folder: (folder / "mlruns").as_uri(),
    "folder from here": lambda _: "mlruns",
    "default": lambda _: None,
}


@pytest.mark.parametrize("name", ADDRESSES)
def test_runs_of_a_store(here, name):
    runs = {run.name: run for run in read_mlflow(SWEEP, ADDRESSES[name](here))}
    assert list(runs) == NAMES  # as they began
    assert {name: run.ended for name, run in runs.items()} == {
        **{"finished": "finished", "failed": "failed", "killed": "cut", "running": "running", "no steps": "finished"}
    }
    first = runs["finished"]
    commit = {"mlflow.source.git.commit": first.values.get("mlflow.source.git.commit")}
    assert {**first.values, **commit} == {
        **{"team": "a", "lr": 0.1, "batch size": 64, "model": 'résumé, "x"', "note": "two\nlines"},
        **commit,
    }
    rows = [{key: value for key, value in row.items() if key != "timestamp"} for row in first.history]
    assert rows == [
        {"step": 10, "val/acc": 0.5, "loss": 2.0},
        {"step": 20, "val/acc": 0.7, "loss": pytest.approx(1 / 0.7)},
        {"step": 30, "val/acc": 0.9, "loss": pytest.approx(math.nan, nan_ok=True), "grad norm": math.inf},
    ]
    assert all(first.started <= row["timestamp"] <= first.stopped for row in first.history)
    assert [row.get("step") for row in runs["no steps"].history] == [None, None]
    assert (runs["running"].stopped, list(runs["running"].history)) == (None, [])


def test_the_client_reads_the_same(here):
    """What a server is asked by, and a database that is no file."""
    uri = f"sqlite:///{here / 'mlflow.db'}"
    done = []
    asked = mlflow_source._asked(uri, "tracking.uri", SWEEP, lambda *both: done.append(both))
    read = read_mlflow(SWEEP, uri)
    assert done == [(number, 5) for number in range(1, 6)]
    told = {run.run_id: run.recorded() for run in asked}
    known = {run.where.rpartition(" ")[2]: run for run in read}
    assert told.keys() == known.keys()
    for run_id, run in told.items():
        assert repr(replace(run, history=list(run.history))) == repr(known[run_id]), run_id


def test_the_client_reads_page_by_page(here, monkeypatch):
    monkeypatch.setattr(mlflow_source, "RUNS_A_PAGE", 2)
    assert len(mlflow_source._asked(f"sqlite:///{here / 'mlflow.db'}", "tracking.uri", SWEEP, ignore)) == 5


def test_nothing_is_written(here, tmp_path):
    """Also where what MLflow makes at once, or git leaves out, is not there."""
    shutil.copytree(here / "mlruns", tmp_path / "mlruns")
    shutil.copy(here / "mlflow.db", tmp_path / "mlflow.db")
    for empty in [folder for folder in tmp_path.rglob("*") if folder.is_dir() and not any(folder.iterdir())]:
        empty.rmdir()
    shutil.rmtree(tmp_path / "mlruns" / ".trash", ignore_errors=True)
    before = tree(tmp_path)
    assert len(read_mlflow(SWEEP, str(tmp_path / "mlruns"))) == 5
    assert len(read_mlflow(SWEEP, f"sqlite:///{tmp_path / 'mlflow.db'}")) == 5
    assert tree(tmp_path) == before


def test_a_database_of_another_version(here, tmp_path):
    shutil.copy(here / "mlflow.db", tmp_path / "old.db")
    with closing(sqlite3.connect(tmp_path / "old.db")) as database, database:
        database.execute("UPDATE alembic_version SET version_num = 'bd07f7e963c5'")
    assert len(read_mlflow(SWEEP, f"sqlite:///{tmp_path / 'old.db'}")) == 5


def test_the_folder_is_the_default_where_there_is_no_database(here, tmp_path, monkeypatch):
    shutil.copytree(here / "mlruns", tmp_path / "mlruns")
    monkeypatch.chdir(tmp_path)
    assert len(read_mlflow(SWEEP)) == 5
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{here / 'mlflow.db'}")
    assert len(read_mlflow(SWEEP)) == 5


def test_progress_is_told(here):
    done = []
    read_mlflow(SWEEP, "mlruns", progress=lambda *both: done.append(both))
    assert done == [(number, 5) for number in range(1, 6)]


@pytest.mark.parametrize("uri", [None, "mlruns"])
def test_runs_of_our_own_are_left_out(here, uri):
    said = []
    assert [run.name for run in read_mlflow("mixed", uri, say=said.append)] == ["one"]
    assert said == [
        "mlflow:mixed: 1 of 2 runs are of a study of scalestudy; left out: "
        "give the folder of the study as a source instead"
    ]


BAD = {
    "unknown": ("swep", f"has no experiment 'swep'; name one of Default, mixed, other, ours, {SWEEP}"),
    "deleted": ("gone", "has no experiment 'gone'"),
    "empty": ("other", "mlflow:other: has no runs, but for deleted ones"),
    "ours": ("ours", "mlflow:ours: all its runs are of a study of scalestudy; give the folder of the study"),
}


@pytest.mark.parametrize("uri", [None, "mlruns"])
@pytest.mark.parametrize("name", BAD)
def test_an_experiment_that_can_t_be_read(here, name, uri):
    experiment, words = BAD[name]
    with pytest.raises(RequestError) as caught:
        read_mlflow(experiment, uri)
    assert words in str(caught.value)


@pytest.mark.parametrize("experiment", ["swep", "gone", "77"])
def test_the_client_lacks_it_too(here, experiment):
    with pytest.raises(ValueError, match=f"has no experiment '{experiment}'"):
        mlflow_source._asked(f"sqlite:///{here / 'mlflow.db'}", "tracking.uri", experiment, ignore)


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("sqlite:///none.db", "none.db: is not there"),
        ("none", "none: can't be read"),
        ("oracle://host/db", "MLflow takes no such store"),
    ],
)
def test_a_store_that_is_not_there(here, uri, words):
    with pytest.raises(RequestError) as caught:
        read_mlflow(SWEEP, uri)
    assert words in str(caught.value)
    assert caught.value.remedy


class Asks(BaseHTTPRequestHandler):
    """A server that lets nobody in, or nobody in to its runs."""

    def do_GET(self):
        self.answer(self.server.status if "search" in self.path else 200)

    def do_POST(self):
        self.answer(403)

    def answer(self, status):
        text = b"{}" if status == 200 else b'{"error_code": "PERMISSION_DENIED", "message": "no"}'
        if "get-by-name" in self.path:
            text = b'{"experiment": {"experiment_id": "1", "name": "x", "lifecycle_stage": "active"}}'
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


@pytest.mark.parametrize(
    ("status", "words"), [(401, "asks for a user name and a password"), (200, "the user may not read experiment 'x'")]
)
def test_a_server_that_asks_for_a_password(monkeypatch, tmp_path, status, words):
    monkeypatch.setenv("HOME", str(tmp_path))  # MLflow also reads ~/.mlflow/credentials
    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Asks)
    server.status = status
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        with pytest.raises(RefusedError, match=words) as caught:
            read_mlflow("x", f"http://127.0.0.1:{server.server_port}")
        assert "MLFLOW_TRACKING_PASSWORD" in caught.value.remedy
    finally:
        server.shutdown()
        server.server_close()


def test_a_server_that_does_not_answer():
    with pytest.raises(UnreachableError, match="nobody listens there") as caught:
        read_mlflow("x", f"http://127.0.0.1:{free_port()}")
    assert caught.value.remedy


@pytest.mark.slow
def test_a_server(tmp_path, empty_database):
    server = TrackingServer(tmp_path)
    shutil.copy(empty_database, server.store.removeprefix("sqlite:///"))
    server.start()
    try:
        train(server.uri)
        assert sorted(run.name for run in read_mlflow(SWEEP, server.uri)) == sorted(NAMES)
        with pytest.raises(RequestError, match="has no experiment 'swep'"):
            read_mlflow("swep", server.uri)
    finally:
        server.stop()
    known = {run.where: repr(run) for run in read_mlflow(SWEEP, server.store)}
    assert len(known) == 5


class Trial:
    """What Ray's callback asks of a trial."""

    config: ClassVar = {"train_loop_config": {"lr": 0.1}}
    trial_id = "a_00000"
    local_path = "."

    def __str__(self):
        return "train_a_00000"


@pytest.mark.slow  # it imports Ray Tune
@pytest.mark.parametrize("store", ["sqlite:///{}/mlflow.db", "file://{}/mlruns"])
def test_runs_by_ray(tmp_path, monkeypatch, store, empty_database):
    """By `setup_mlflow` in a training function, and by the callback of a Tuner, which logs all that Tune fills in."""
    from ray.air.integrations.mlflow import MLflowLoggerCallback, setup_mlflow

    shutil.copy(empty_database, tmp_path)
    uri = store.format(tmp_path)
    with monkeypatch.context() as patch:
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        ours = {"tracking_uri": uri, "experiment_name": "tuned"}
        used = setup_mlflow({"lr": 0.1, "seed": 3}, **ours, run_name="worker", create_experiment_if_not_exists=True)
        for epoch, value in enumerate((0.5, 0.7), start=1):
            used.log_metrics({"val/accuracy": value, "epoch": epoch}, step=10 * epoch)
        used.end_run()
        callback, trial = MLflowLoggerCallback(**ours), Trial()
        callback.setup()
        callback.log_trial_start(trial)
        for epoch, value in enumerate((0.6, 0.8), start=1):
            filled = {"timestamp": 1_700_000_000 + epoch, "time_total_s": 1.5 * epoch, "training_iteration": epoch}
            callback.log_trial_result(epoch, trial, {"accuracy": value, **filled, "config": trial.config})
        callback.log_trial_end(trial, failed=True)
    runs = {run.name: run for run in read_mlflow("tuned", uri)}
    assert runs.keys() == {"worker", "train_a_00000"}
    assert runs["worker"].values.items() >= {"lr": 0.1, "seed": 3}.items()
    rows = [[row["step"], row["val/accuracy"], row["epoch"]] for row in runs["worker"].history]
    assert rows == [[10, 0.5, 1], [20, 0.7, 2]]
    assert runs["train_a_00000"].ended == "failed"
    rows = [[row["accuracy"], row["time_total_s"], row["timestamp"]] for row in runs["train_a_00000"].history]
    assert rows == [[0.6, 1.5, 1_700_000_001], [0.8, 3.0, 1_700_000_002]]
