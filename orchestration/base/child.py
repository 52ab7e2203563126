"""A module run in a process of its own, so that a limit of time ends it, whatever a user's code does there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalestudy.orchestration.base.environment import without_secrets


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a child ended. status: as `subprocess` gives it; None: it was ended after its time.

    answers: the lines of its standard output, also of one that was ended. said: the last line of its standard error,
    without secrets.
    """

    status: int | None
    answers: list[str]
    said: str


def run_child(module: str, order: Any, limit_seconds: float) -> Ended:
    """Runs `python -m module` in this folder with this process's import path. order: JSON, its standard input.

    It has a process group of its own, which is killed at the end: what it started would keep its output open.
    """
    found = [path for path in sys.path if path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), *found])}
    child = subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    status: int | None = None
    try:
        out, said = child.communicate(json.dumps(order), timeout=limit_seconds)
        status = child.returncode
    except subprocess.TimeoutExpired:
        _kill_group(child)
        out, said = child.communicate()
    finally:
        _kill_group(child)
    return Ended(
        status=status,
        answers=out.splitlines(),
        said=(without_secrets(said).strip().splitlines() or ["it said nothing"])[-1],
    )


def _kill_group(child: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
