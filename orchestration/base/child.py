"""A program run in a process of its own, so that a limit of time ends it, whatever a user's code or a driver does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalestudy.orchestration.base.environment import without_secrets

KILLED_SECONDS = 5.0
"""For a killed process to end, which one that hangs in a driver does not."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a child ended. status: as `subprocess` gives it; None: it was ended after its time.

    answers: the lines of its standard output, also of one that was ended. said: the last line of its standard error,
    without secrets.
    """

    status: int | None
    answers: list[str]
    said: str


def run_child(program: Sequence[str], order: Any, limit_seconds: float, *, without: Collection[str] = ()) -> Ended:
    """Runs Python with the arguments `program` in this folder, with this process's import path.

    It has a process group of its own, which is killed at the end: what it started would keep its output open. A process
    that can't be killed is left behind, and its answers with it.

    Args:
        program: such as `-m` and a module's name.
        order: JSON, its standard input.
        limit_seconds: after which it is killed.
        without: variables of the environment that it does not get.
    """
    found = [path for path in sys.path if path]
    environment = {name: value for name, value in os.environ.items() if name not in without}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), *found])
    child = subprocess.Popen(
        [sys.executable, *program],
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
        out, said = _rest_of(child)
    finally:
        _kill_group(child)
    return Ended(
        status=status,
        answers=out.splitlines(),
        said=(without_secrets(said).strip().splitlines() or ["it said nothing"])[-1],
    )


def _rest_of(child: subprocess.Popen[str]) -> tuple[str, str]:
    """What a killed process has said."""
    try:
        return child.communicate(timeout=KILLED_SECONDS)
    except subprocess.TimeoutExpired:
        for pipe in filter(None, (child.stdin, child.stdout, child.stderr)):
            with suppress(BrokenPipeError):
                pipe.close()
        return "", ""


def _kill_group(child: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
