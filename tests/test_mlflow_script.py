"""infra/mlflow/server.sh on a machine that has none of the parts; tests/system/test_tracking_server.py has them all."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.studies import REPOSITORY

SCRIPT = REPOSITORY / "infra" / "mlflow" / "server.sh"


@pytest.fixture
def script(tmp_path):
    """Runs the script with settings of its own, in a folder of its own."""
    settings = {"ENV_FILE": tmp_path / "settings.env", "STATE_DIR": tmp_path / "state", "HOME": tmp_path,
                "BIN": Path(sys.executable).parent, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                "MLFLOW_PORT": free_port(), "POSTGRES_BIN": tmp_path / "nowhere"}  # fmt: skip

    def run(*arguments, answer="", **variables):
        return subprocess.run(
            ["bash", SCRIPT, *map(str, arguments)], input=answer, capture_output=True, text=True, timeout=60,
            check=False, env={name: str(value) for name, value in {**settings, **variables}.items()},
        )  # fmt: skip

    assert run("init").returncode == 0
    return run


@pytest.mark.parametrize("command", ["user", "password"])
def test_accounts_need_no_postgresql(script, command):
    done = script(command, "ann", answer="ann-and-nobody-7c\n")
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("server.sh: http://127.0.0.1:")
    assert "does not answer" in line


@pytest.mark.parametrize("command", ["start", "stop", "status", "backup", "restore"])
def test_what_needs_postgresql_says_so(script, command):
    done = script(command)
    assert done.returncode == 2
    assert "PostgreSQL is not there; type: apt-get install postgresql, or set POSTGRES_BIN" in done.stderr
