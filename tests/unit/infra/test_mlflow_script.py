"""infra/mlflow/server.sh on a machine that has none of the parts; tests/system/test_tracking_server.py has them all."""

import base64
import subprocess
import sys
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.support.ports import free_port
from tests.support.studies import REPOSITORY, left_behind

SCRIPT = REPOSITORY / "infra" / "mlflow" / "server.sh"


@pytest.fixture
def script(tmp_path):
    """Runs the script with settings of its own, in a folder of its own."""
    settings = {
        "ENV_FILE": tmp_path / "settings.env",
        "STATE_DIR": tmp_path / "state",
        "HOME": tmp_path,
        "BIN": Path(sys.executable).parent,
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "MLFLOW_PORT": free_port(),
        "POSTGRES_BIN": tmp_path / "nowhere",
    }

    def run(*arguments, answer="", **variables):
        return subprocess.run(
            ["bash", SCRIPT, *map(str, arguments)],
            input=answer,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={name: str(value) for name, value in {**settings, **variables}.items()},
        )

    assert run("init").returncode == 0
    return run


@pytest.mark.parametrize("command", ["user", "password"])
def test_accounts_need_no_postgresql(script, command):
    done = script(command, "ann", answer="ann-and-nobody-7c\n")
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("server.sh: http://127.0.0.1:")
    assert "does not answer" in line


@contextmanager
def refusing_server():
    """A server that lets nobody in: its port, and who asked."""
    logins = []

    class Refusing(BaseHTTPRequestHandler):
        def do_POST(self):
            logins.append(base64.b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode())
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_error(401)

        def log_message(self, *words):
            pass

    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port, logins
        server.shutdown()


def test_users_are_added_by_the_administrator_and_not_by_whoever_runs_studies(script):
    study = {"MLFLOW_TRACKING_USERNAME": "alice", "MLFLOW_TRACKING_PASSWORD": "alice-and-nobody-2e"}
    with refusing_server() as (port, logins):
        done = script("user", "bob", answer="bob-and-nobody-3f\n", MLFLOW_PORT=port, **study)
        other = {"MLFLOW_ADMIN_USERNAME": "carol", "MLFLOW_ADMIN_PASSWORD": "carol-and-nobody-5d"}
        script("user", "bob", answer="bob-and-nobody-3f\n", MLFLOW_PORT=port, **study, **other)
    assert [login.partition(":")[0] for login in logins] == ["admin", "carol"]
    assert logins[1] == "carol:carol-and-nobody-5d"
    assert done.returncode == 1
    assert done.stderr.strip() == (
        "server.sh: user bob: the server refuses admin or the password; "
        "correct MLFLOW_ADMIN_USERNAME or MLFLOW_ADMIN_PASSWORD"
    )


@pytest.mark.parametrize("command", ["start", "stop", "status", "backup", "restore"])
def test_what_needs_postgresql_says_so(script, command):
    done = script(command)
    assert done.returncode == 2
    assert "PostgreSQL is not there; type: apt-get install postgresql, or set POSTGRES_BIN" in done.stderr


def programs(folder, **statuses):
    """PostgreSQL's programs that write a word and end at once, each with an exit status; for POSTGRES_BIN."""
    folder.mkdir()
    for name, status in {"initdb": 0, **statuses}.items():
        (folder / name).write_text(f"#!/bin/sh\necho half\nexit {status}\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.mark.parametrize("command", ["backup", "restore"])
def test_postgresql_must_run(script, tmp_path, command):
    place = tmp_path / "backups"
    if command == "restore":
        place.mkdir()
        for name in ("mlflow.dump", "mlflow_auth.dump"):
            (place / name).touch()
    before = left_behind(place)
    done = script(command, place, POSTGRES_BIN=programs(tmp_path / "bin", pg_ctl=3), POSTGRES_USER="root")
    assert (done.returncode, done.stdout) == (2, "")
    assert "PostgreSQL does not run; type: " in done.stderr
    assert left_behind(place) == before


def test_half_a_backup_is_none(script, tmp_path):
    dump = programs(tmp_path / "bin", pg_ctl=0, pg_dump=1)
    done = script("backup", tmp_path / "backups", POSTGRES_BIN=dump, POSTGRES_USER="root")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "server.sh: backup: mlflow could not be read; no backup was made\n"
    assert left_behind(tmp_path / "backups") == []
