"""What is told, before a study begins, of an MLflow server that can't be written to."""

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import BAD_REQUEST, PERMISSION_DENIED

from scalestudy.orchestration.base.errors import ExitCode, RefusedError, UnreachableError
from scalestudy.orchestration.tracking.mlflow_store import _is_refused
from scalestudy.orchestration.tracking.server import (
    ARTIFACTS,
    EXPERIMENTS,
    check_reachable,
    reason_of,
    resolve_address,
    without_login,
)

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
)  # fmt: skip
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
    ],
)
def test_reasons_are_one_line(error, words):
    assert words in reason_of(error)
    assert "\n" not in reason_of(error)
