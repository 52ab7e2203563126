"""A tracking address with a password: what is kept of it, how it is found again, and where else it goes."""

import json
import os

import pytest

from scalestudy.orchestration.base.errors import RequestError
from scalestudy.orchestration.commands import ui
from scalestudy.orchestration.tracking.server import resolve_address, same_address

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


def test_the_pages_are_on_loopback_and_their_command_line_has_no_password(monkeypatch, capsys):
    """Everybody on a machine can read command lines, and the owner's processes alone their environment."""
    asked = {}

    class Process:
        pid = 2**22 + 1  # of no process

        def __init__(self, command, **options):
            asked.update(command=command, **options)

        def wait(self):
            return 0

    monkeypatch.setattr(ui, "check_reachable", lambda address: None)
    monkeypatch.setattr(ui.subprocess, "Popen", Process)
    monkeypatch.setattr(ui.signal, "signal", lambda *_: None)
    assert ui.serve_ui(WHOLE, 5999) == 0
    command = asked["command"]
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert not any("s3cr3t" in part for part in command)
    assert asked["env"] == {**os.environ, "MLFLOW_BACKEND_STORE_URI": WHOLE}
    assert KEPT in capsys.readouterr().out
