"""A program run in a child process, so that a time limit can end it, whatever a user's code or a driver does."""

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
"""How long to wait for a killed process to end. One that hangs in a driver never ends."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a child ended."""

    status: int | None  # as `subprocess` gives it; None: killed at its time limit
    answers: list[str]  # the lines of its standard output, up to the kill if it was killed
    said: str  # the last line of its standard error, without secrets


def run_child(program: Sequence[str], order: Any, limit_seconds: float, *, without: Collection[str] = ()) -> Ended:
    """Run Python with the arguments `program` in this folder, with this process's import path.

    The child leads a new process group, which is killed at the end: a process that the child started would keep its
    output open. A process that can't be killed is left behind, and its answers with it.

    Args:
        program: such as `-m` and a module's name.
        order: JSON for the child's standard input.
        limit_seconds: after which the child is killed.
        without: environment variables that the child does not get.
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
    """Return what a killed process printed to standard output and standard error."""
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
