"""The process of a command: streams that never fail it, and an end that nothing holds up.

A terminal may lack letters, and a reader may go away. A user's code may leave threads, children and exit handlers that
never end.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import io
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TextIO

EXIT_SECONDS = 2.0
"""How long a user's threads may go on after a command's last line, and then its exit handlers."""
CHILD_SECONDS = 1.0
"""How long a child may take to end by SIGTERM."""
READER_LEFT = frozenset({errno.EPIPE, errno.EIO, errno.ECONNRESET, errno.EBADF})
"""Errors of a pipe, a terminal, a connection and a closed descriptor that nobody reads any more."""
PR_SET_CHILD_SUBREAPER = 36
"""Linux: a process whose parent has ended becomes a child of this one, and not of the machine's first process."""
FAILED, INTERRUPTED, TERMINATED = 1, 130, 143
"""Exit statuses: of an error, as Python gives it, and of Ctrl-C and SIGTERM, as a shell does."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, or SIGHUP at the end of the terminal. It ends a command as Ctrl-C does, with another exit status."""


def end_by_signals() -> None:
    """Make SIGTERM and SIGHUP raise `Terminated` here, unless they are handled or ignored, as `nohup` does."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, terminate)
            os.register_at_fork(after_in_child=partial(_end_at_once, number))


def terminate(number: int, _frame: Any) -> NoReturn:
    """Raise `Terminated`. Handles a signal."""
    if number == signal.SIGHUP:  # a closed terminal sends it more than once
        signal.signal(number, signal.SIG_IGN)
    raise Terminated


def _end_at_once(number: int) -> None:
    """Give a signal its default action in a forked process, such as one of a user's pool: that is no command."""
    if signal.getsignal(number) is terminate:
        signal.signal(number, signal.SIG_DFL)


def run(command: Callable[[], int | None], exit_seconds: float = EXIT_SECONDS) -> NoReturn:
    """Call a command, and end this process with its exit status. exit_seconds: see `leave`."""
    prepare_streams()
    with suppress(AttributeError):  # macOS
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        status = command() or 0
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            status = end.code or 0
        else:
            print(end.code, file=sys.stderr)
            status = FAILED
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        stopped = TERMINATED if isinstance(error, Terminated) else INTERRUPTED
        status = stopped if isinstance(error, KeyboardInterrupt) else FAILED
    leave(status, exit_seconds)


def prepare_streams() -> None:
    """Make standard output and standard error as `opened` does. Closed descriptors lead to nothing.

    A descriptor that stayed closed would be given to the next file, which would then get what is printed.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:  # the lowest free number
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdin = sys.stdin or open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = opened(1, sys.stdout), opened(2, sys.stderr)


def opened(descriptor: int, like: TextIO | None) -> TextIO:
    """Open a descriptor to write lines of text, in the encoding of another stream. What the encoding lacks is replaced.

    Once its reader has gone, the descriptor leads to nothing. Closing the stream leaves descriptors 1 and 2 open.
    """
    if like:
        like.flush()
    outlet = io.BufferedWriter(_Outlet(descriptor, "w", closefd=descriptor > 2))
    encoding, errors = getattr(like, "encoding", None), getattr(like, "errors", None)
    can_fail = errors in (None, "strict", "surrogateescape")
    return io.TextIOWrapper(
        outlet, encoding=encoding or "utf-8", errors="replace" if can_fail else errors, line_buffering=True
    )


class _Outlet(io.FileIO):
    """A descriptor that takes all that is written to it, also when nobody reads it."""

    fault: OSError | None = None  # why one of them can't be written although it has a reader: a full disk

    def write(self, data: Any) -> int:
        try:
            while (count := super().write(data)) is None:  # another program has made the terminal non-blocking
                select.select([], [self], [])
        except OSError as error:
            if error.errno not in READER_LEFT:
                _Outlet.fault = error
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self.fileno())
            os.close(nothing)
            return len(data)
        return count


def leave(status: int, seconds: float = EXIT_SECONDS) -> NoReturn:
    """End this process with an exit status, as Python would, but for what a user's code left running.

    Its threads get so many seconds, and so do its exit handlers. Its children end with this process.
    """
    _flush()
    if _Outlet.fault:
        print(f"the output is not complete: {_Outlet.fault.strerror}", file=sys.stderr)
        status = status or FAILED

    def end() -> NoReturn:
        _flush()
        end_children()
        os._exit(status)

    if seconds:
        # in Python's own order, by the functions with which multiprocessing too ends its processes
        with suppress(BaseException):  # the limit, Ctrl-C, or what a user's code raises
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.setitimer(signal.ITIMER_REAL, seconds)
            threading._shutdown()  # type: ignore[attr-defined]
        with suppress(BaseException):
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            limit = threading.Timer(seconds, end)
            limit.daemon = True
            limit.start()
            atexit._run_exitfuncs()
    end()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # a user's code may have put its own there
            stream.flush()


def end_children() -> None:
    """End this process's children and theirs. One in a session of its own was made to outlive us, and stays."""
    give_up_at = time.monotonic() + CHILD_SECONDS
    asked: set[int] = set()
    while (left := _children()) and time.monotonic() < give_up_at:
        _signal(left - asked, signal.SIGTERM)
        asked |= left
        time.sleep(0.02)
    _signal(asked | left, signal.SIGKILL)  # also those whose parent has ended, which are nobody's children now


def _signal(processes: set[int], number: int) -> None:
    for pid in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _children() -> set[int]:
    """Return the living processes of this session that this process or one of these has started. Empty on macOS."""
    parents, session = {}, os.getsid(0)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            state, parent, _, its_session = stat.read_text("utf-8", "replace").rpartition(")")[2].split()[:4]
            if state not in "ZX" and int(its_session) == session:
                parents[int(stat.parent.name)] = int(parent)
    family = {os.getpid()}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    # multiprocessing's tracker removes what these processes shared once they have ended, and then ends itself
    tracker = getattr(sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", None)
    return family - {os.getpid(), getattr(tracker, "_pid", None)}


@contextmanager
def exits_told(tell: Callable[[BaseException], None]) -> Iterator[None]:
    """Tell of an `os._exit` in this thread, which raises nothing, before it ends the process.

    A process that user code has forked, and other threads, end as they would.
    """
    leave, here = os._exit, (os.getpid(), threading.get_ident())

    def told(status: int) -> NoReturn:
        if (os.getpid(), threading.get_ident()) == here:
            error = RuntimeError(f"os._exit({status}) ended the process")
            error.add_note("".join(traceback.format_stack(sys._getframe(1))))
            tell(error)
        leave(status)

    os._exit = told
    try:
        yield
    finally:
        os._exit = leave
