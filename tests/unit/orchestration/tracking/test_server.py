"""What is told of an MLflow server that can't be written to, and what is kept of an address."""

import base64
import json
import os
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import BAD_REQUEST, PERMISSION_DENIED

from scalestudy.orchestration.base.errors import ExitCode, RefusedError, RequestError, StudyError, UnreachableError
from scalestudy.orchestration.tracking.mlflow_store import _is_refused
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
def test_a_login_that_is_refused(serve, status):
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
    assert _is_refused(MlflowException(message, error_code=BAD_REQUEST)) is refused


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
def test_a_place_that_can_not_hold_a_file_is_refused(tmp_path, place):
    (tmp_path / "file.txt").touch()
    assert "can't be written" in refusal(f"sqlite:///{tmp_path}{place}")


def test_a_folder_that_can_not_be_written_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write anywhere
    assert "can't be written" in refusal(f"sqlite:///{tmp_path}/mlflow.db")


@pytest.mark.parametrize("uri", ["file:///tmp/mlruns", "./mlruns", "/tmp/mlruns", "htp://127.0.0.1:5000"])
def test_a_store_that_mlflow_does_not_take_is_refused(uri):
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


def test_a_database_without_its_driver_is_refused():
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
    """The file that a study's first run has left."""
    file = tmp_path / "spool" / "address.json"
    assert same_address(file, resolve_address(WHOLE)).uri == WHOLE
    return file


def test_the_file_has_no_password(first):
    assert json.loads(first.read_text())["shown"] == KEPT
    assert "s3cr3t" not in first.read_text()


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
