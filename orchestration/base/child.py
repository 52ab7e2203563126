"""A program run in a child process, so that a time limit can end it, whatever a user's code or a driver does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

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

    The child leads a new process group, which is killed at the end with all that the child started. A process that
    can't be killed is left behind. Files take what it prints: a pipe would stay open as long as one of these processes.

    Args:
        program: such as `-m` and a module's name.
        order: JSON for the child's standard input.
        limit_seconds: after which the child is killed.
        without: environment variables that the child does not get.
    """
    found = [path for path in sys.path if path]
    environment = {name: value for name, value in os.environ.items() if name not in without}
    environment |= {"PYTHONPATH": os.pathsep.join([str(Path.cwd()), *found]), "PYTHONIOENCODING": "utf-8"}
    with TemporaryFile() as given, TemporaryFile() as answers, TemporaryFile() as said:
        given.write(json.dumps(order).encode("ascii"))
        given.seek(0)
        child = subprocess.Popen(
            [sys.executable, *program],
            stdin=given,
            stdout=answers,
            stderr=said,
            env=environment,
            start_new_session=True,
        )
        status: int | None = None
        try:
            with suppress(subprocess.TimeoutExpired):
                status = child.wait(limit_seconds)
        finally:
            _kill_group(child)
        with suppress(subprocess.TimeoutExpired):
            child.wait(KILLED_SECONDS)
        return Ended(
            status=status,
            answers=_text_of(answers).splitlines(),
            said=(without_secrets(_text_of(said)).strip().splitlines() or ["it said nothing"])[-1],
        )


def order_and_answer() -> tuple[Any, Callable[[Any], None]]:
    """Return, in the child, its order and a function that answers with a line of JSON.

    From now on what a user's code prints goes to standard error.
    """
    order, answers = json.load(sys.stdin), os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(told: Any) -> None:
        print(json.dumps(told), file=answers, flush=True)

    return order, answer


def _text_of(file: IO[bytes]) -> str:
    """Return what is in a file, and leave its position to a process that may still write."""
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode("utf-8", "replace")


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
