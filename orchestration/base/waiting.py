"""What a command says before its progress can be shown: what it waits for, and how long it has run."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from scalestudy.orchestration.base.environment import redacting

Say = Callable[[str], None]
"""Is told what comes next, before each wait that may take seconds: `Ray to start on this machine`."""

LOADED = time.monotonic()
PLAUSIBLE_SECONDS = 60.0
"""What may lie between a process's start and this file's import; a clock that says more is not believed."""


def say_nothing(what: str) -> None:
    """A `Say` for --json and the Python interface."""


@contextmanager
def waiting_lines(stream: TextIO) -> Iterator[Say]:
    """A `Say` that prints a line at once, to where the stream leads now, however it is redirected meanwhile."""
    try:
        own: TextIO | None = os.fdopen(os.dup(stream.fileno()), "w", buffering=1, encoding="utf-8")
    except (OSError, AttributeError, io.UnsupportedOperation):  # a stream of nobody's, such as a notebook's
        own = None
    screen = redacting(own or stream)

    def say(what: str) -> None:
        print(f"waiting for {what}", file=screen, flush=True)

    try:
        yield say
    finally:
        if own:
            own.close()


def process_seconds() -> float:
    """Seconds since this process began; where the system does not tell it, since this file was imported."""
    since_loaded = time.monotonic() - LOADED
    try:
        fields = Path("/proc/self/stat").read_text("utf-8").rpartition(")")[2].split()
        # field 22 of the file: whole ticks since the machine's start. It began within the next one.
        began = (int(fields[19]) + 1) / os.sysconf("SC_CLK_TCK")
        found = time.clock_gettime(time.CLOCK_BOOTTIME) - began
    except (OSError, ValueError, IndexError, AttributeError):  # macOS
        return since_loaded
    return found if since_loaded <= found <= since_loaded + PLAUSIBLE_SECONDS else since_loaded
