"""A real MLflow server that goes away in the middle of a study: nothing is lost, and `ui --sync` sends the rest."""

import itertools

import pytest
from mlflow.exceptions import MlflowException

from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.orchestration.study.folders import spec_of
from scalestudy.orchestration.study.trials import train_config
from scalestudy.orchestration.tracking import writer
from scalestudy.orchestration.tracking.mlflow_store import MlflowStore, TrackedStudy
from scalestudy.orchestration.tracking.server import resolve_address
from scalestudy.orchestration.tracking.writer import Cursor, catch_up
from tests.support.drivers import Driver, assert_recorded_once
from tests.support.faulty_proxy import faulty_proxy
from tests.support.recordings import Kept, entries_of, whole
from tests.support.studies import scalestudy, write_spec
from tests.support.synthetic_studies import TINY, folder_of
from tests.support.tracking_server import TrackingServer

SLOW = {"model": "tests.support.user_models:Slow", "data": "digits", "model_args": {"seconds": 0.05}}
RATES = [0.05, 0.1, 0.15, 0.2]


@pytest.fixture
def server(tmp_path):
    server = TrackingServer(tmp_path)
    yield server
    server.stop()


@pytest.mark.chaos
def test_a_server_lost_in_the_middle(tmp_path, server):
    sweep = {"num_gpus": [1], "batch_size": [256], "learning_rate": RATES}
    write_spec(tmp_path, workload=SLOW, sweep=sweep, tracking={"uri": server.uri})
    server.start()
    driver = Driver(tmp_path, "out")
    driver.wait_for("ended", 1)
    server.stop()
    status, printed = driver.end()
    assert status == 3, printed
    assert f"scalestudy ui {tmp_path / 'out'} --sync" in printed
    folder = driver.folder
    assert [trial["status"] for trial in folder.read_trials()] == ["finished"] * len(RATES)
    assert folder.report_file.exists()

    away = scalestudy("ui", "out", "--sync", cwd=tmp_path)
    assert (away.returncode, away.stdout) == (3, "")
    server.start()
    try:
        done = scalestudy("ui", "out", "--sync", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert scalestudy("ui", "out", "--sync", cwd=tmp_path).stdout.startswith("0 events")
    finally:
        server.stop()
    assert_recorded_once(folder, server.store, epochs=2)


def test_answers_that_are_lost_double_nothing(tmp_path, server, monkeypatch):
    """Of every two requests that make something one is carried out and answered with 503; of the others every 13th."""
    monkeypatch.setattr(writer, "RETRY_SECONDS", (0.0,) * 4)
    folder = folder_of(tmp_path / "tiny-1", TINY)
    spec, plan = spec_of(folder), folder.read_plan()
    study = TrackedStudy(
        spec=spec, folder=folder, trials=plan.by_id(), config_of=lambda trial: train_config(trial, ".")
    )
    trials = folder.read_trials()
    entries = entries_of([whole(trial) for trial in trials])
    made = itertools.count(1)

    def fate_of(_method, path, number):
        if path.endswith("/create"):
            return "lost" if next(made) % 2 else "answered"
        return ("lost", "refused")[number % 2] if number % 13 == 0 else "answered"

    server.start()
    with faulty_proxy(server.uri, fate_of) as (address, seen):
        cursor = Cursor(tmp_path / "cursor")
        store = again_and_again(lambda: MlflowStore(resolve_address(address), study))
        assert catch_up(store, Kept(entries), cursor) == len(entries)
    asked = sum(path.endswith("/create") for _, path in seen)
    assert asked == 2 + len(trials), "for the experiment, the study and its trials, once each"
    server.stop()
    assert cursor.read() == entries[-1].number
    assert_recorded_once(folder, server.store, epochs=8)


def again_and_again(act):
    """What a call returns that fails at some tries."""
    for _ in range(20):
        try:
            return act()
        except MlflowException:
            pass
    return act()


@pytest.mark.chaos
def test_a_server_that_is_away_for_the_whole_study(tmp_path, server):
    workload = {"model": "tests.support.user_models:linear", "data": "digits"}
    sweep = {"num_gpus": [1], "batch_size": [256], "learning_rate": [0.1, 0.2]}
    tracking = {"uri": server.uri, "offline": "refuse"}
    refused = scalestudy("run", write_spec(tmp_path, workload=workload, sweep=sweep, tracking=tracking), cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (3, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["study.yaml"]

    spec = write_spec(tmp_path, workload=workload, sweep=sweep, tracking={**tracking, "offline": "spool"})
    study = scalestudy("run", spec, "--address", "local", "--out", "out", cwd=tmp_path)
    assert study.returncode == 3, study.stdout + study.stderr
    assert f"scalestudy ui {tmp_path / 'out'} --sync" in study.stdout
    folder = StudyFolder(tmp_path / "out")
    assert [trial["status"] for trial in folder.read_trials()] == ["finished", "finished"]
    assert "MLflow lacks" in scalestudy("status", "out", cwd=tmp_path).stdout

    server.start()
    try:
        done = scalestudy("ui", "out", "--sync", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    finally:
        server.stop()
    assert "MLflow lacks" not in scalestudy("status", "out", cwd=tmp_path).stdout
    assert_recorded_once(folder, server.store, epochs=2)
