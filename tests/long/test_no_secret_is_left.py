"""A study whose tracking address and environment hold secrets: nothing that it leaves, says or records has them."""

import sqlite3

import pytest
import yaml

from scalestudy.experiments.study.folder import StudyFolder
from tests.support.drivers import joining
from tests.support.studies import scalestudy, write_spec
from tests.support.telling_models import PASSWORD_OF_URI, SECRETS, TOKEN
from tests.support.tracking_server import TrackingServer

PASSWORD = "s3cr3t-of-the-uri"


@pytest.fixture(scope="module")
def study(ray_session, tmp_path_factory):
    """What the commands said, by name, and the folder in which they, and the server, left everything."""
    folder = tmp_path_factory.mktemp("secrets")
    server = TrackingServer(folder)
    address = server.uri.replace("://", f"://ann:{PASSWORD}@")
    spec = write_spec(
        tmp_path_factory.mktemp("spec"),
        workload={"model": "tests.support.telling_models:Telling", "data": "digits"},
        train={"epochs": 1},
        sweep={"num_gpus": [1, 2], "batch_size": [256], "learning_rate": [0.1]},
        tracking={"uri": address},
    )
    said, variables = {}, SECRETS | joining(ray_session)

    def run(*command):
        said[command[0]] = scalestudy(*command, cwd=folder, seconds=280, **variables)

    run("validate", spec)
    server.start()
    try:
        run("run", spec, "--address", ray_session.address, "--out", "out")
        run("resume", "out", "--address", ray_session.address)
    finally:
        server.stop()
    (folder / "out" / "spool" / "written").write_text("0")
    run("ui", "out", "--sync")
    run("doctor", spec, "--address", "127.0.0.1:9")
    return said, folder


pytestmark = pytest.mark.timeout(900)


def test_the_study_ran_and_told_its_secrets(study):
    """Else there would be nothing to look for."""
    said, folder = study
    codes = {name: done.returncode for name, done in said.items()}
    assert codes == {"validate": 0, "run": 1, "resume": 1, "ui": 3, "doctor": 1}, said
    trials = {trial["params"]["num_gpus"]: trial for trial in StudyFolder(folder / "out").read_trials()}
    assert trials[1]["status"] == "finished"
    assert trials[2]["error"]["message"].startswith("ValueError: raised: *** at postgresql://bob:***@db/mlflow")
    log = (folder / "out" / "driver.log").read_text()
    for way in ("printed:", "on standard error:", "logged:"):
        assert f"{way} *** at postgresql://bob:***@db/mlflow" in log


def test_no_file_has_a_secret(study):
    _, folder = study
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert {"driver.log", "trials.jsonl", "summary.json", "report.html", "spec.yaml", "server.db"} <= {
        file.name for file in files
    }
    assert [str(file) for file in files if has_secret(file.read_bytes())] == []


def test_no_row_of_mlflow_has_a_secret(study):
    _, folder = study
    with sqlite3.connect(folder / "server.db") as database:
        rows = list(database.iterdump())
    assert any("scalestudy.trial_id" in row for row in rows)
    assert [row for row in rows if has_secret(row.encode())] == []


def test_no_command_says_a_secret(study):
    said, _ = study
    for name, done in said.items():
        assert not has_secret((done.stdout + done.stderr).encode()), name
    assert "MLflow: http://127.0.0.1" in said["run"].stdout


def test_the_study_goes_on_without_the_password_being_kept(study):
    said, folder = study
    kept = yaml.safe_load((folder / "out" / "spec.yaml").read_text())["tracking"]["uri"]
    assert kept.startswith("http://ann:***@127.0.0.1:")
    assert "MLflow missed" not in said["resume"].stdout


def has_secret(content):
    return any(secret.encode() in content for secret in (PASSWORD, TOKEN, PASSWORD_OF_URI))
