"""A real MLflow server that goes away in the middle of a study: nothing is lost, and `sync` sends what it missed."""

import subprocess

import pytest
from mlflow import MlflowClient

from scalestudy.experiments.study.folder import StudyFolder
from tests.support.groups import wait_until
from tests.support.studies import command, environment, scalestudy, write_spec
from tests.support.tracking_server import TrackingServer

SLOW = {"model": "tests.support.user_models:Slow", "data": "digits", "model_args": {"seconds": 0.05}}
RATES = [0.05, 0.1, 0.15, 0.2]


@pytest.fixture
def server(tmp_path):
    server = TrackingServer(tmp_path)
    yield server
    server.stop()


def test_a_server_lost_in_the_middle(tmp_path, server):
    spec = write_spec(
        tmp_path,
        workload=SLOW,
        sweep={"num_gpus": [1], "batch_size": [256], "learning_rate": RATES},
        tracking={"uri": server.uri},
    )
    server.start()
    study = subprocess.Popen(
        command("run", spec, "--address", "local", "--out", "out"),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    folder = StudyFolder(tmp_path / "out")
    try:
        wait_until(lambda: folder.trials_file.exists() and folder.read_trials(), seconds=90)
        server.stop()
        printed, errors = study.communicate(timeout=120)
    finally:
        study.kill()
    assert study.returncode == 3, errors
    assert f"scalestudy sync {tmp_path / 'out'}" in printed
    assert [trial["status"] for trial in folder.read_trials()] == ["finished"] * len(RATES)
    assert folder.report_file.exists()

    away = scalestudy("sync", "out", cwd=tmp_path)
    assert (away.returncode, away.stdout) == (3, "")
    server.start()
    try:
        done = scalestudy("sync", "out", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert scalestudy("sync", "out", cwd=tmp_path).stdout.startswith("0 events")
    finally:
        server.stop()
    assert_recorded_once(server.store, folder.read_trials())


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
    assert f"scalestudy sync {tmp_path / 'out'}" in study.stdout
    folder = StudyFolder(tmp_path / "out")
    assert [trial["status"] for trial in folder.read_trials()] == ["finished", "finished"]
    assert "MLflow lacks" in scalestudy("status", "out", cwd=tmp_path).stdout

    server.start()
    try:
        done = scalestudy("sync", "out", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    finally:
        server.stop()
    assert "MLflow lacks" not in scalestudy("status", "out", cwd=tmp_path).stdout
    assert_recorded_once(server.store, folder.read_trials())


def assert_recorded_once(store, trials):
    """One run a trial, each epoch's accuracy once, exactly as recorded."""
    client = MlflowClient(tracking_uri=store)
    runs = client.search_runs([client.get_experiment_by_name("small").experiment_id])
    assert len(runs) == len(trials) + 1
    by_trial = {run.data.tags.get("scalestudy.trial_id"): run for run in runs}
    for trial in trials:
        run = by_trial[trial["trial_id"]]
        assert run.info.status == "FINISHED"
        stored = client.get_metric_history(run.info.run_id, "test_accuracy")
        assert [(point.step, point.value) for point in stored] == [
            (epoch["epoch"], epoch["test_accuracy"]) for epoch in trial["epochs"]
        ]
