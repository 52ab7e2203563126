"""What a command prints before it can show progress: what it waits for, and for how long it has run."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from scalestudy.orchestration.base.environment import redacting
from scalestudy.training.process import opened

Say = Callable[[str], None]
"""A function that takes the name of the next wait, before it may take seconds: `Ray to start on this machine`."""

LOADED = time.monotonic()
PLAUSIBLE_SECONDS = 60.0
"""The longest credible time from a process's start to this file's import; above it the clock is not believed."""


def say_nothing(what: str) -> None:
    """Print nothing: the `Say` for --json and the Python interface."""


@contextmanager
def waiting_lines(stream: TextIO) -> Iterator[Say]:
    """Return a `Say` that prints a line at once, to where the stream leads now, even if it is redirected meanwhile."""
    try:
        own: TextIO | None = opened(os.dup(stream.fileno()), like=stream)
    except (OSError, AttributeError, io.UnsupportedOperation):  # a stream without a descriptor, such as a notebook's
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
    """Return the seconds since this process began, or since this file was imported where the system can't say."""
    since_loaded = time.monotonic() - LOADED
    try:
        fields = Path("/proc/self/stat").read_text("utf-8").rpartition(")")[2].split()
        # field 22 of the file: whole ticks since the machine's start. The process began within the next tick.
        began = (int(fields[19]) + 1) / os.sysconf("SC_CLK_TCK")
        found = time.clock_gettime(time.CLOCK_BOOTTIME) - began
    except (OSError, ValueError, IndexError, AttributeError):  # macOS
        return since_loaded
    return found if since_loaded <= found <= since_loaded + PLAUSIBLE_SECONDS else since_loaded
