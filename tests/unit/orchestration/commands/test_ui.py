"""MLflow's own pages."""

import os

from scalestudy.orchestration.commands import ui

WHOLE = "postgresql://ann:s3cr3t@db:5432/mlflow"
KEPT = "postgresql://ann:***@db:5432/mlflow"


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
