"""A real MLflow server that goes away in the middle of a study: nothing is lost, and `sync` sends what it missed."""

import socket
import subprocess
import sys

import pytest
from mlflow import MlflowClient

from experiments.study_folder import StudyFolder
from tests.support.groups import wait_until
from tests.support.studies import command, environment, scalestudy, write_spec

SLOW = {"model": "tests.support.user_models:Slow", "data": "digits", "model_args": {"seconds": 0.05}}
RATES = [0.05, 0.1, 0.15, 0.2]


@pytest.fixture
def port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_server(place, port):
    server = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    server += ["--backend-store-uri", f"sqlite:///{place / 'server.db'}"]
    process = subprocess.Popen(
        server,
        cwd=place,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    wait_until(lambda: _answers(port), seconds=90)
    return process


def _answers(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def stop_server(process):
    import os
    import signal

    os.killpg(process.pid, signal.SIGKILL)
    process.wait(20)


def test_a_server_lost_in_the_middle(tmp_path, port):
    spec = write_spec(
        tmp_path,
        workload=SLOW,
        sweep={"num_gpus": [1], "batch_size": [256], "learning_rate": RATES},
        tracking={"uri": f"http://127.0.0.1:{port}"},
    )
    server = start_server(tmp_path, port)
    study = subprocess.Popen(
        command("run", spec, "--address", "local", "--out", "out"),
        cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    folder = StudyFolder(tmp_path / "out")
    try:
        wait_until(lambda: folder.trials_file.exists() and folder.read_trials(), seconds=90)
        stop_server(server)
        printed, errors = study.communicate(timeout=120)
    finally:
        study.kill()
    assert study.returncode == 3, errors
    assert f"scalestudy sync {tmp_path / 'out'}" in printed
    assert [trial["status"] for trial in folder.read_trials()] == ["finished"] * len(RATES)
    assert folder.report_file.exists()

    away = scalestudy("sync", "out", cwd=tmp_path)
    assert (away.returncode, away.stdout) == (3, "")
    server = start_server(tmp_path, port)
    try:
        done = scalestudy("sync", "out", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert scalestudy("sync", "out", cwd=tmp_path).stdout.startswith("0 operations")
    finally:
        stop_server(server)
    assert_recorded_once(f"sqlite:///{tmp_path / 'server.db'}", folder.read_trials())


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
