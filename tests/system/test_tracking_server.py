"""A study against what a team would run: MLflow with passwords, PostgreSQL and a bucket, started by infra/mlflow.

Needs Debian's PostgreSQL, and Chromium. The parts are started once; each test leaves them running.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from mlflow import MlflowClient

from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.orchestration.base.errors import RefusedError, UnreachableError
from scalestudy.orchestration.tracking.server import check_reachable, resolve_address
from tests.support.drivers import Driver, assert_recorded_once, joining
from tests.support.groups import wait_until
from tests.support.in_process import scalestudy as in_process
from tests.support.mlflow_stack import PASSWORD, SECRETS, USER, mlflow_stack
from tests.support.object_store import BUCKET
from tests.support.studies import complaint, left_behind, scalestudy, write_spec
from tests.system.browser import chromium, look

EPOCHS = 10
SWEEP = {"num_gpus": [1], "batch_size": [256], "learning_rate": [0.1, 0.2]}
SLOW = {"model": "tests.support.user_models:Slow", "data": "digits", "model_args": {"seconds": 0.1}}
QUICK = {"model": "tests.support.user_models:linear", "data": "digits"}


@pytest.fixture(scope="module")
def stopped():
    """The parts; only the S3 server runs."""
    with mlflow_stack() as stack:
        yield stack


@pytest.fixture(scope="module")
def server(stopped):
    """The parts, all of them running, with a user."""
    stopped.start()
    return stopped


@pytest.fixture(autouse=True)
def as_the_user(stopped, monkeypatch):
    for name, value in stopped.login.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")  # the writer tries again by itself


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Folders of studies that went through what may happen to the database; the test of secrets reads them all."""
    return {name: tmp_path_factory.mktemp(name) for name in ("interrupted", "spooled")}


def refused(place: Path, *words: str, **variables: str) -> None:
    """A study is refused in one line, with exit status 3, and nothing is written."""
    before = left_behind(place)
    done = in_process("run", "study.yaml", "--address", "local", cwd=place, **variables)
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    assert len(complaint(done.stderr).splitlines()) == 1, done.stderr
    assert not [word for word in words if word not in done.stderr], done.stderr
    assert left_behind(place) == before


def test_a_server_does_not_start_without_its_bucket(stopped):
    done = stopped.script("start")
    assert done.returncode == 2
    assert f"S3_BUCKET: {BUCKET}: is not there" in done.stderr
    assert "MLflow: does not answer" in stopped.script("status").stdout


@pytest.mark.parametrize(
    ("password", "database", "error", "said"),
    [
        ("not-the-password", "mlflow", RefusedError, 'password authentication failed for user "mlflow"'),
        (SECRETS["POSTGRES_PASSWORD"], "nowhere", UnreachableError, 'database "nowhere" does not exist'),
    ],
)
def test_a_database_that_is_named_without_a_server_is_asked_at_the_start(server, password, database, error, said):
    base = f"postgresql+psycopg2://mlflow:{{}}@127.0.0.1:{server.postgres_port}/{{}}"
    check_reachable(resolve_address(base.format(SECRETS["POSTGRES_PASSWORD"], "mlflow")))
    with pytest.raises(error, match=said) as caught:
        check_reachable(resolve_address(base.format(password, database)))
    assert password not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_parts_run(server):
    assert server.script("status").returncode == 0
    assert server.must("start").splitlines() == ["PostgreSQL runs already", "MLflow runs already"]


def test_a_wrong_password(server, tmp_path):
    write_spec(tmp_path, workload=QUICK, sweep=SWEEP, tracking={"offline": "spool"})
    refused(
        tmp_path, f"refuses the user {USER}", "MLFLOW_TRACKING_PASSWORD", MLFLOW_TRACKING_PASSWORD="not-it-at-all-5"
    )


def test_a_bucket_that_is_gone(server, tmp_path):
    write_spec(tmp_path, workload=QUICK, sweep=SWEEP)
    server.store.client.delete_bucket(Bucket=BUCKET)
    try:
        refused(tmp_path, BUCKET, "bucket does not exist", "make the bucket")
    finally:
        server.must("bucket")


def test_a_database_that_stops_in_the_middle(ray_session, server, places):
    place = places["interrupted"]
    write_spec(place, workload=SLOW, train={"epochs": EPOCHS}, sweep=SWEEP)
    study = Driver(place, "out", address=ray_session.address, **joining(ray_session))
    study.wait_for("epoch", 2)
    server.must("stop", "postgres")
    try:
        wait_until(lambda: "MLflow is out of reach" in study.folder.log_file.read_text("utf-8"), seconds=60)
        assert study.count("ended") < 2
    finally:
        server.must("start", "postgres")
    status, printed = study.end()
    assert (status, "MLflow missed" in printed) == (0, False), printed
    assert_recorded_once(study.folder, server.uri, EPOCHS)
    assert_artifacts_once(server, study.folder)


def assert_artifacts_once(server, folder: StudyFolder) -> None:
    """The study's files and the best trial's model are in the bucket, each once, and come back as they were sent."""
    client = MlflowClient()
    parent = parent_run(client, folder)
    for name in ("report.html", "summary.json", "spec.yaml", "trials.jsonl", "plan.json"):
        (key,) = [key for key in server.store.names() if key.endswith(f"/{parent.info.run_id}/artifacts/{name}")]
        assert server.store.read(key) == (folder.path / name).read_bytes()
    models = client.search_logged_models([parent.info.experiment_id])
    assert [model.status for model in models] == ["READY"]
    assert max(Counter(server.store.names()).values()) == 1


def parent_run(client: MlflowClient, folder: StudyFolder):
    experiment = client.get_experiment_by_name("small").experiment_id
    clause = f"tags.`scalestudy.study_id` = '{folder.study_id}' and tags.`scalestudy.role` = 'study'"
    (run,) = client.search_runs([experiment], clause)
    return run


@pytest.mark.chaos
def test_a_database_that_is_down_at_the_start(server, places):
    place = places["spooled"]
    folder = StudyFolder(place / "out")
    server.must("stop", "postgres")
    try:
        write_spec(place, workload=QUICK, sweep=SWEEP)
        refused(place, "its database does not answer", "start the server's database")
        write_spec(place, workload=QUICK, sweep=SWEEP, tracking={"offline": "spool"})
        study = scalestudy("run", "study.yaml", "--address", "local", "--out", "out", cwd=place)
        assert study.returncode == 3, study.stdout + study.stderr
        (line,) = [line for line in study.stdout.splitlines() if line.startswith("MLflow missed")]
        assert "(the server fails (50" in line
        assert line.endswith(f"scalestudy ui {folder.path} --sync")
    finally:
        server.must("start", "postgres")
    done = scalestudy("ui", "out", "--sync", cwd=place, seconds=240)
    assert done.returncode == 0, done.stderr
    assert scalestudy("ui", "out", "--sync", cwd=place).stdout.startswith("0 events")
    assert_recorded_once(folder, server.uri, 2)


def test_the_pages_ask_for_a_password(server, places, tmp_path):
    client = MlflowClient()
    parent = parent_run(client, StudyFolder(places["interrupted"] / "out"))
    runs = f"#/experiments/{parent.info.experiment_id}/runs"
    with chromium(tmp_path / "profile") as browser:
        browser.get(f"{server.uri}/{runs}")
        assert "MLflow" not in browser.title
        browser.get(server.uri.replace("//", f"//{USER}:{PASSWORD}@"))  # the browser logs in, and goes on as the user
        look(browser, f"{server.uri}/{runs}", "server-experiment", parent.info.run_name)
        look(browser, f"{server.uri}/{runs}/{parent.info.run_id}", "server-parent", "Best test accuracy", USER)
        look(browser, f"{server.uri}/{runs}/{parent.info.run_id}/artifacts", "server-artifacts", "report.html")


def test_no_password_is_left_anywhere(server, places):
    """In what studies leave on disk, in MLflow's rows, in the logs of the parts."""
    files = [
        file for place in (*places.values(), server.folder / "state") for file in place.rglob("*") if file.is_file()
    ]
    texts = {str(file): file.read_bytes() for file in files if "postgres/data" not in str(file)}
    client = MlflowClient()
    found = client.search_runs([client.get_experiment_by_name("small").experiment_id])
    assert {Path(name).name for name in texts} >= {"driver.log", "spec.yaml", "mlflow.log", "auth.ini", "address.json"}
    texts |= {run.info.run_id: repr(run.to_dictionary()).encode() for run in found}
    secrets = [secret.encode() for secret in (PASSWORD, *SECRETS.values())]
    assert not [(name, secret) for name, text in texts.items() for secret in secrets if secret in text]


@pytest.mark.parametrize("broken", ["mlflow.dump", pytest.param("mlflow_auth.dump", marks=pytest.mark.chaos)])
def test_a_truncated_backup_changes_nothing(server, tmp_path, broken):
    place = Path(server.must("backup", tmp_path / "backups"))
    assert [folder.name for folder in place.parent.iterdir()] == [place.name]
    (place / broken).write_bytes((place / broken).read_bytes()[:-2000])
    name = f"after the backup of {broken}"
    MlflowClient().create_experiment(name)
    server.must("stop", "mlflow")
    done = server.script("restore", place)
    server.must("start", "mlflow")
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith(f"server.sh: restore: {place / broken}: pg_restore: error: ")
    assert line.endswith("the databases are as they were")
    assert MlflowClient().get_experiment_by_name(name).lifecycle_stage == "active"


@pytest.mark.chaos
def test_a_database_in_use_is_not_replaced(server, tmp_path):
    """Neither is the other one."""
    place = Path(server.must("backup", tmp_path / "backups"))
    MlflowClient().create_experiment("after the backup")
    server.must("stop", "mlflow")
    with server.connection("mlflow_auth"):
        done = server.script("restore", place)
    server.must("start", "mlflow")
    assert done.returncode == 1
    assert "is being accessed by other users" in done.stderr
    assert MlflowClient().get_experiment_by_name("after the backup").lifecycle_stage == "active"


def test_a_backup_comes_back(server, tmp_path):
    place = Path(server.must("backup", tmp_path / "backups"))
    assert {file.stat().st_mode & 0o077 for file in place.iterdir()} == {0}
    client = MlflowClient()
    experiment = client.get_experiment_by_name("small")
    runs = {run.info.run_id for run in client.search_runs([experiment.experiment_id])}
    client.delete_experiment(experiment.experiment_id)
    server.must("user", "bob", answer="bob-and-nobody-3f\n")
    server.must("stop", "mlflow")
    server.must("restore", place)
    server.must("upgrade")
    server.must("start", "mlflow")
    assert client.get_experiment_by_name("small").lifecycle_stage == "active"
    assert {run.info.run_id for run in client.search_runs([experiment.experiment_id])} == runs
    assert len(runs) >= 3  # a study of two trials, at least
    assert "bob" in server.script("password", "bob", answer="bob-and-nobody-4a\n").stderr
    server.must("password", USER, answer="alice-once-more-9c\n")
