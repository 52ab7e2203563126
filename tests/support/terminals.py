"""A command on a terminal of its own, as a user has it before the eyes."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

from tests.support.groups import wait_until
from tests.support.processes import is_asleep
from tests.support.studies import command, environment

CONTROLLED = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
"""Makes standard input the process's controlling terminal, whose Ctrl-C is a signal, then becomes the command."""
CTRL_C, CTRL_D = "\x03", "\x04"


class Terminal:
    """A terminal on which a command was typed. A context: what still runs at its end is killed."""

    def __init__(self, *arguments: str | Path, cwd: Path) -> None:
        self._terminal, its_end = os.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-c", CONTROLLED, *command(*arguments)],
            cwd=cwd,
            env=environment(TERM="dumb", COLUMNS="200"),
            stdin=its_end,
            stdout=its_end,
            stderr=its_end,
            start_new_session=True,
        )
        os.close(its_end)
        self.shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)

    def answers(self, question: str, typed: str) -> None:
        """Waits until the terminal's last words are these and the command waits for what is typed, and types.

        A Ctrl-C between the two can be lost: Python has looked for signals, and does not read yet.
        """
        self._reads(until=question)
        assert self.shown.endswith(question), self.shown
        wait_until(lambda: is_asleep(self._process.pid))
        os.write(self._terminal, typed.encode())

    def ends(self) -> int:
        """Waits for the command's end; its exit status."""
        self._reads(until=None)
        return self._process.wait(60)

    def _reads(self, until: str | None, seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while until is None or not self.shown.endswith(until):
            ready, _, _ = select.select([self._terminal], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"nothing more in {seconds:g} s after: {self.shown}"
            try:
                told = os.read(self._terminal, 65536)
            except OSError:  # Linux says EIO once nobody has the other end
                return
            if not told:
                return
            self.shown += told.decode("utf-8", "replace").replace("\r\n", "\n")
