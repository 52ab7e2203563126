"""The command line in this process: as `tests.support.studies.scalestudy`, without three seconds of imports a command.

A command that wants a cluster takes the one that this process is connected to.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from unittest import mock

FORWARDED = re.compile(r"^(?:\x1b\[\d+m)?\(\w[\w.]* pid=\d+.*\n?", re.MULTILINE)
"""Lines of Ray's processes, which Ray prints here when it likes: those of earlier tests come in between."""


def scalestudy(*arguments: str | Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs the command line in a folder; variables are added to its environment."""
    from scalestudy.orchestration.commands import cli

    words = ["scalestudy", *map(str, arguments)]
    before, path = Path.cwd(), list(sys.path)
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        with mock.patch.dict(os.environ, variables), mock.patch.object(sys, "argv", words), _printing_to(out, err):
            os.chdir(cwd)
            try:
                cli.command_line()
                code = 0
            except SystemExit as end:
                code = int(end.code or 0)
            finally:
                os.chdir(before)
                sys.path[:] = path
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(words, code, FORWARDED.sub("", out.read()), FORWARDED.sub("", err.read()))


@contextmanager
def _printing_to(out: IO[str], err: IO[str]) -> Iterator[None]:
    """What Python prints, and what is written to descriptors 1 and 2, goes to these files."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    streams = sys.stdout, sys.stderr
    os.dup2(out.fileno(), 1)
    os.dup2(err.fileno(), 2)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = streams
        for target, descriptor in enumerate(kept, start=1):
            os.dup2(descriptor, target)
            os.close(descriptor)
