"""What is told of an MLflow server that can't be written to, and what is kept of an address."""

import base64
import json
import os
import shutil
import socket
import sqlite3
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import BAD_REQUEST, PERMISSION_DENIED

from scalestudy.experiments.spec.addresses import path_of
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.orchestration.base.errors import ExitCode, RefusedError, RequestError, StudyError, UnreachableError
from scalestudy.orchestration.tracking.sending import is_refused
from scalestudy.orchestration.tracking.server import (
    ARTIFACTS,
    EXPERIMENTS,
    check_reachable,
    reason_of,
    resolve_address,
    same_address,
    without_login,
)
from tests.support.ports import free_port

PASSWORD = "correct-horse-9"
WELL = (200, "{}")


class Answers(ThreadingHTTPServer):
    """Answers each endpoint as it was told to, and keeps the logins that it was sent."""

    daemon_threads = True

    def __init__(self, **by_endpoint):
        self.by_endpoint = {EXPERIMENTS: WELL, ARTIFACTS: WELL, "/health": WELL, **by_endpoint}
        self.logins = []
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        status, body = self.server.by_endpoint[self.path.partition("?")[0]]
        if "Authorization" in self.headers:
            self.server.logins.append(base64.b64decode(self.headers["Authorization"].split()[1]).decode())
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_):
        pass


@pytest.fixture(autouse=True)
def no_login(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))  # MLflow also reads ~/.mlflow/credentials
    for name in ("USERNAME", "PASSWORD", "TOKEN"):
        monkeypatch.setenv(f"MLFLOW_TRACKING_{name}", "")


@pytest.fixture
def serve():
    started = []

    def start(**answers):
        started.append(Answers(**answers))
        return started[-1]

    yield start
    for server in started:
        server.shutdown()
        server.server_close()


def check(server, login=""):
    check_reachable(resolve_address(f"http://{login}127.0.0.1:{server.server_port}"))


def test_a_server_that_is_well(serve):
    check(serve())


@pytest.mark.parametrize("status", [401, 403])
def test_a_login_thatis_refused(serve, status):
    server = serve(**{EXPERIMENTS: (status, "no")})
    with pytest.raises(RefusedError, match="asks for a user name and a password") as caught:
        check(server)
    assert caught.value.exit_code == ExitCode.UNREACHABLE
    with pytest.raises(RefusedError, match="refuses the user bob or the password") as caught:
        check(server, f"bob:{PASSWORD}@")
    assert PASSWORD not in str(caught.value)
    assert "MLFLOW_TRACKING_PASSWORD" in caught.value.remedy


def test_a_login_in_the_uri_is_sent_but_not_kept_there(serve):
    server = serve()
    check(server, "bob:p%40ss%3Aword@")
    assert set(server.logins) == {"bob:p@ss:word"}
    uri = f"http://127.0.0.1:{server.server_port}"
    assert resolve_address(uri.replace("//", f"//bob:{PASSWORD}@")).uri == uri


@pytest.mark.parametrize("uri", ["http://host:5000/a", "sqlite:////b@c/x.db", "postgresql://u:p@h/d"])
def test_other_addresses_stay_as_they_are(uri):
    assert without_login(uri) == uri


def failure(code, message):
    return json.dumps({"error_code": code, "message": message})


@pytest.mark.parametrize(
    ("endpoint", "answer", "words"),
    [
        (EXPERIMENTS, (500, "<h1>Internal Server Error</h1>"), "its database does not answer (500"),
        (EXPERIMENTS, (503, failure("TEMPORARILY_UNAVAILABLE", "refused\nmore")), "does not answer (refused)"),
        (EXPERIMENTS, (404, "nothing here"), "is no MLflow server (404"),
        (EXPERIMENTS, (200, "<html>"), "is no MLflow server (200"),
        (ARTIFACTS, (500, "<h1>Internal Server Error</h1>"), "its artifacts' store does not answer (500"),
        (ARTIFACTS, (404, failure("RESOURCE_DOES_NOT_EXIST", "Failed to list artifacts in s3://b: no")), "s3://b: no"),
    ],
)
def test_a_server_that_lacks_something(serve, endpoint, answer, words):
    with pytest.raises(UnreachableError) as caught:
        check(serve(**{endpoint: answer}))
    assert words in caught.value.problem
    assert "\n" not in str(caught.value)
    assert not isinstance(caught.value, RefusedError)


@pytest.mark.parametrize(
    "answer",
    [
        (503, "Endpoint disabled due to the mlflow server running with `--no-serve-artifacts`"),
        (404, failure("ENDPOINT_NOT_FOUND", "no such endpoint")),
        (403, "Permission denied"),
    ],
)
def test_a_server_that_keeps_no_artifacts_will_do(serve, answer):
    check(serve(**{ARTIFACTS: answer}))


@pytest.mark.parametrize(
    ("message", "refused"),
    [
        ("(psycopg2.errors.StringDataRightTruncation) value too long", True),
        ("(psycopg2.InterfaceError) connection already closed", False),
        ("QueuePool limit of size 5 overflow 10 reached, connection timed out", False),
        ("(psycopg2.errors.ReadOnlySqlTransaction) cannot execute INSERT", False),
    ],
)
def test_a_database_s_passing_trouble_is_no_refusal(message, refused):
    assert is_refused(MlflowException(message, error_code=BAD_REQUEST)) is refused


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MlflowException(f"{'x' * 400} (ResponseError('too many 503 error responses'))"), "fails (503): its database"),
        (MlflowException("Permission denied", error_code=PERMISSION_DENIED), "may not write"),
        (OSError("first\nsecond"), "first"),
        (TimeoutError(), "TimeoutError"),
        (OSError("ProxyError('Unable to connect to proxy', … Connection refused)"), "the proxy does not answer"),
        (OSError("ProxyError('…', OSError('Tunnel connection failed: 407 Login'))"), "the proxy refuses: 407 Login"),
    ],
)
def test_reasons_are_one_line(error, words):
    assert words in reason_of(error)
    assert "\n" not in reason_of(error)


# --- proxies ------------------------------------------------------------------------------------------------------


@pytest.fixture
def proxy(monkeypatch):
    """Sets a proxy for all that is asked."""

    def start(address):
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, address)
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.setenv(name, "")

    return start


def test_a_server_of_this_machine_is_asked_without_the_proxy(serve, proxy):
    proxy("http://127.0.0.1:9")
    check(serve())


def test_a_server_that_only_the_proxy_knows_is_asked_through_it(serve, proxy):
    server = serve(**{f"http://far.invalid:5000{path}": WELL for path in ("/health", EXPERIMENTS, ARTIFACTS)})
    proxy(f"http://127.0.0.1:{server.server_port}")
    check_reachable(resolve_address("http://far.invalid:5000"))


def test_a_proxy_that_does_not_answer_is_named_without_its_password(proxy):
    proxy(f"http://ann:{PASSWORD}@127.0.0.1:9")
    with pytest.raises(UnreachableError) as caught:
        check_reachable(resolve_address("http://far.invalid:5000"))
    assert caught.value.problem == (
        "tracking.uri: http://far.invalid:5000, through the proxy http://ann:***@127.0.0.1:9 "
        "(no_proxy does not list far.invalid): does not answer (the proxy does not answer)"
    )


def test_what_a_proxy_refuses_is_told(serve, proxy):
    server = serve(**{"http://far.invalid:5000/health": WELL, f"http://far.invalid:5000{EXPERIMENTS}": (502, "gone")})
    proxy(f"http://127.0.0.1:{server.server_port}")
    with pytest.raises(UnreachableError, match=r"\(no_proxy does not list far.invalid\): .*502 "):
        check_reachable(resolve_address("http://far.invalid:5000"))


# --- addresses ----------------------------------------------------------------------------------------------------


def test_the_default_store_lies_in_the_current_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    found = resolve_address(None)
    assert found.uri == f"sqlite:///{tmp_path}/mlflow.db"
    assert found.artifacts == f"file://{tmp_path}/mlartifacts"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking:5000")
    server = resolve_address(None)
    assert (server.uri, server.shown, server.artifacts) == ("http://tracking:5000", "http://tracking:5000", None)
    assert resolve_address("sqlite:////data/x.db").uri == "sqlite:////data/x.db"


@pytest.mark.parametrize("folder", ["what?", "50%41", "a?timeout=3&x#y", "plain %", "[v1] müll & co; 'x' \"y\" \\z"])
def test_the_default_store_lies_in_a_folder_of_any_name(monkeypatch, tmp_path, folder):
    (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / folder)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    found = resolve_address(None)
    assert found.database == tmp_path / folder / "mlflow.db"
    assert path_of(found.artifacts) == tmp_path / folder / "mlartifacts"
    assert resolve_address(found.uri) == found
    check_reachable(found)


def test_a_query_in_a_user_s_own_address_is_sqlalchemy_s(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    found = resolve_address("sqlite:///my.db?timeout=30")
    assert (found.database, found.uri) == (tmp_path / "my.db", f"sqlite:///{tmp_path}/my.db?timeout=30")
    assert resolve_address("sqlite:///my%3Ffile.db").database == tmp_path / "my?file.db"


def refusal(uri):
    with pytest.raises(StudyError) as caught:
        check_reachable(resolve_address(uri))
    assert str(uri).split("://")[0] in caught.value.problem
    assert caught.value.remedy
    return caught.value.problem


def test_a_sqlite_file_can_be_made(tmp_path):
    check_reachable(resolve_address(f"sqlite:///{tmp_path}/new.db"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", ["", "/file.txt/mlflow.db"])
def test_a_place_that_can_not_hold_a_fileis_refused(tmp_path, place):
    (tmp_path / "file.txt").touch()
    assert "can't be written" in refusal(f"sqlite:///{tmp_path}{place}")


def test_a_folder_that_can_not_be_writtenis_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write anywhere
    assert "can't be written" in refusal(f"sqlite:///{tmp_path}/mlflow.db")


@pytest.mark.parametrize(
    "uri",
    ["file:///tmp/mlruns", "./mlruns", "htp://127.0.0.1:5000", "sqlite://", "sqlite:///:memory:", "sqlite:///f?uri=1"],
)
def test_a_store_that_mlflow_does_not_takeis_refused(uri):
    assert "takes no such store" in refusal(uri)


def test_a_file_that_is_no_database_is_refused_and_kept(tmp_path):
    file = tmp_path / "notes.db"
    file.write_text("these are my notes, not a database")
    assert "not an SQLite database" in refusal(f"sqlite:///{file}")
    assert file.read_text().startswith("these are my notes")


@pytest.mark.parametrize("scheme", ["http", "postgresql", "mysql+pymysql"])
def test_a_port_where_nobody_listens_is_refused_without_the_password(scheme):
    port = free_port()
    problem = refusal(f"{scheme}://ann:s3cret@127.0.0.1:{port}/db")
    assert "nobody listens" in problem
    assert ("127.0.0.1" if scheme == "http" else "ann:***@127.0.0.1") in problem
    assert "s3cret" not in problem


def test_a_database_without_its_driveris_refused():
    with socket.create_server(("127.0.0.1", 0)) as server:
        problem = refusal(f"postgresql+pg8000://ann:s3cret@127.0.0.1:{server.getsockname()[1]}/db")
    assert "its driver is not installed (No module named 'pg8000')" in problem
    assert "s3cret" not in problem


@pytest.mark.parametrize("uri", ["postgresql://ann:p@ss@h/db", "http://ann:pass@h:1/x", "mysql+pymysql://ann:pass@h"])
def test_passwords_are_not_shown(uri):
    """A server's whole login goes where MLflow's client looks for it."""
    shown = resolve_address(uri).shown
    assert "ss@" not in shown
    assert ("http://h:1" if uri.startswith("http") else "ann:***@h") in shown
    assert (os.environ["MLFLOW_TRACKING_PASSWORD"] == "pass") is uri.startswith("http")


# --- an address with a password: what is kept of it, and how it is found again ----------------------------------------


WHOLE = "postgresql://ann:s3cr3t@db:5432/mlflow"
KEPT = "postgresql://ann:***@db:5432/mlflow"


@pytest.fixture
def first(tmp_path):
    """The folder of a study whose first run has left its address."""
    folder = StudyFolder(tmp_path)
    assert same_address(folder, resolve_address(WHOLE)).uri == WHOLE
    return folder


def test_the_file_has_no_password(first):
    kept = first.address_file.read_text()
    assert json.loads(kept)["shown"] == KEPT
    assert "s3cr3t" not in kept


@pytest.mark.parametrize(
    ("spec", "given", "uri"),
    [
        (KEPT, WHOLE, WHOLE),
        (KEPT, "postgresql://bob:other@db:5432/mlflow", "postgresql://bob:other@db:5432/mlflow"),
        (KEPT, None, "postgresql://ann@db:5432/mlflow"),
        (KEPT, "http://elsewhere:5000", "postgresql://ann@db:5432/mlflow"),
        (None, WHOLE, WHOLE),
        ("http://ann:***@h:5000", None, "http://h:5000"),
        (WHOLE, "http://elsewhere:5000", WHOLE),
    ],
)
def test_the_password_comes_from_the_environment_again(monkeypatch, spec, given, uri):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    if given:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", given)
    assert resolve_address(spec).uri == uri


@pytest.mark.parametrize("again", [WHOLE, "postgresql://ann@db:5432/mlflow", "postgresql://bob:other@db:5432/mlflow"])
def test_the_same_place_with_other_credentials(first, again):
    assert same_address(first, resolve_address(again)).uri == again


def test_another_place_is_refused_and_no_password_shown(first):
    with pytest.raises(RequestError, match="is tracked at") as refused:
        same_address(first, resolve_address("postgresql://ann:s3cr3t@other/mlflow"))
    assert "s3cr3t" not in str(refused.value)


# --- where a study goes on that was moved, copied, mounted elsewhere or reached through a link ------------------------


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with a study that is tracked in its database; the current folder."""
    folder = tmp_path / "before"
    study = StudyFolder(folder / "runs" / "tiny-1")
    study.create()
    study.plan_file.write_text(json.dumps({"study_id": "tiny-1"}))
    go_to(monkeypatch, folder)
    same_address(study, resolve_address(None))
    track(folder / "mlflow.db")
    return folder


def go_to(monkeypatch, folder):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(folder)


def track(database, study_id="tiny-1"):
    """What MLflow's database has of a study that is asked for here."""
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("CREATE TABLE IF NOT EXISTS tags (key TEXT, value TEXT)")
        connection.execute("INSERT INTO tags VALUES ('scalestudy.study_id', ?)", (study_id,))


def found_at(folder):
    return same_address(StudyFolder(folder / "runs" / "tiny-1"), resolve_address(None)).database


def test_a_study_goes_on_in_its_database_wherever_the_command_is_typed(project, tmp_path, monkeypatch):
    go_to(monkeypatch, tmp_path)
    track(tmp_path / "mlflow.db", "another")
    assert found_at(project) == project / "mlflow.db"


def test_a_project_that_was_moved_goes_on_in_the_moved_database(project, tmp_path, monkeypatch):
    after = project.rename(tmp_path / "after")
    for place in (after, tmp_path, after / "runs"):
        go_to(monkeypatch, place)
        assert found_at(after) == after / "mlflow.db"
    assert json.loads(StudyFolder(after / "runs" / "tiny-1").address_file.read_text())["uri"].endswith(
        "after/mlflow.db"
    )


def test_of_two_projects_copied_from_one_each_has_its_database(project, tmp_path, monkeypatch):
    copy = shutil.copytree(project, tmp_path / "copy")
    for place in (copy, project):
        go_to(monkeypatch, place)
        assert found_at(copy) == copy / "mlflow.db"
        assert found_at(project) == project / "mlflow.db"


@pytest.mark.parametrize("typed_in", ["copy", "before"])
def test_a_copy_of_the_study_alone_does_not_write_into_the_original_s_database(
    project, tmp_path, monkeypatch, typed_in
):
    copy = tmp_path / "copy"
    shutil.copytree(project / "runs", copy / "runs")
    go_to(monkeypatch, tmp_path / typed_in)
    assert found_at(copy) == copy / "mlflow.db"


def test_a_copy_of_the_study_in_its_project_stays_in_the_project_s_database(project, monkeypatch):
    shutil.copytree(project / "runs" / "tiny-1", project / "copy")
    go_to(monkeypatch, project)
    assert same_address(StudyFolder(project / "copy"), resolve_address(None)).database == project / "mlflow.db"


def test_a_study_that_was_moved_without_its_database_goes_on_where_it_is(project, tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    (project / "runs").rename(tmp_path / "other" / "runs")
    go_to(monkeypatch, tmp_path / "other")
    assert found_at(tmp_path / "other") == project / "mlflow.db"


def test_a_study_whose_database_is_gone_keeps_its_place_unless_it_was_moved(project, tmp_path, monkeypatch):
    (project / "mlflow.db").unlink()
    go_to(monkeypatch, tmp_path)
    assert found_at(project) == project / "mlflow.db"
    after = project.rename(tmp_path / "after")
    assert found_at(after) == tmp_path / "mlflow.db", "as for a new study here"
    assert not project.exists()


def test_a_database_that_was_moved_alone_goes_on_where_it_is_named_now(project, tmp_path, monkeypatch):
    (project / "mlflow.db").rename(tmp_path / "moved.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/moved.db")
    assert found_at(project) == tmp_path / "moved.db"


def test_a_study_reached_through_a_link_has_the_same_database(project, tmp_path, monkeypatch):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    link = tmp_path / "deep" / "er" / "link"
    link.symlink_to(project / "runs")
    go_to(monkeypatch, tmp_path)
    study = StudyFolder(link / "tiny-1")
    assert same_address(study, resolve_address(None)).database.samefile(project / "mlflow.db")
    elsewhere = (project / "runs").rename(tmp_path / "deep" / "runs")
    (project / "runs").symlink_to(elsewhere)
    go_to(monkeypatch, project)
    assert found_at(project) == project / "mlflow.db"


def test_the_options_of_a_database_stay(tmp_path, monkeypatch):
    study = StudyFolder(tmp_path / "runs" / "x")
    go_to(monkeypatch, tmp_path)
    for _ in range(2):
        assert same_address(study, resolve_address("sqlite:///a.db?timeout=9")).uri.endswith("/a.db?timeout=9")
