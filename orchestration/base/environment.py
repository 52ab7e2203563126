"""This process's settings for Ray and MLflow: defaults of their variables, where output goes, and what it hides."""

from __future__ import annotations

import getpass
import logging
import os
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO, cast

from scalestudy.training.process import opened, prepare_streams
from scalestudy.training.proxies import ask_here_directly
from scalestudy.training.redaction import redacted, secrets_in
from scalestudy.training.settings import OF_PYTHON, Settings

DEFAULTS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # our pool makes groups leave a node that drains
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # how soon a lost worker is noticed; 2 s as shipped
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "120",
    "RAY_worker_niceness": "0",  # Ray's 15 lets every other process take the cores from a training that is timed
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative paths in a user's code mean what they mean on the command line
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # no CSV, JSON and TensorBoard files beside our records
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # we handle Ctrl-C
    "TUNE_GLOBAL_CHECKPOINT_S": "inf",  # our journal resumes a study, not what Tune would save
    "RAY_AIR_NEW_OUTPUT": "0",  # we show our live table
    "RAY_ENABLE_AUTO_CONNECT": "0",  # a thread that outlives its study must not join another cluster
    "RAY_DEDUP_LOGS": "0",  # driver.log holds every line
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # `ui` needs no job queues: it judges no language models
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # commands with `--json` print JSON and nothing else
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",  # `tracking.writer` tries again: it looks before it makes a run anew
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}

NO_HOME = "/nonexistent"
"""The home of a user who has none; Debian's name for it."""


def prepare_environment() -> None:
    """Set the defaults, over which the user's environment wins. Call it before Ray and MLflow are imported.

    Workers print UTF-8 in any case, as their output goes to files. A container's user may have a number alone; Ray and
    MLflow ask for a home while they are imported, and for a name.
    """
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    os.environ["PYTHONIOENCODING"] = "utf-8:backslashreplace"  # of workers: their output goes to files
    ask_here_directly()
    if os.path.expanduser("~") == "~":  # noqa: PTH111 - `Path` raises where there is no home
        os.environ["HOME"] = NO_HOME
    try:
        getpass.getuser()
    except (KeyError, OSError):
        os.environ["LOGNAME"] = str(os.getuid())


@contextmanager
def left_as_found() -> Iterator[None]:
    """Put back, at the end of the block, what a study changes in its process: a user's program goes on there.

    That is all of `settings.OF_PYTHON`, the handlers of signals and of exceptions, every logger's level and handlers,
    and the address of MLflow's store.
    """
    found = Settings(OF_PYTHON)
    hooks = (sys.excepthook, threading.excepthook)
    signals = {number: signal.getsignal(number) for number in signal.valid_signals()}
    loggers = [each for each in logging.root.manager.loggerDict.values() if isinstance(each, logging.Logger)]
    logged = [(each, each.level, each.handlers[:], each.propagate, each.disabled) for each in [logging.root, *loggers]]
    mlflow = sys.modules.get("mlflow")
    store = mlflow.get_tracking_uri() if mlflow else None
    try:
        with warnings.catch_warnings():
            yield
    finally:
        if mlflow and mlflow.get_tracking_uri() != store:
            mlflow.set_tracking_uri(store)
        found.put_back()
        sys.excepthook, threading.excepthook = hooks
        if threading.current_thread() is threading.main_thread():
            for number, handler in signals.items():
                if handler is not None and signal.getsignal(number) is not handler:
                    signal.signal(number, handler)
        for each, level, handlers, propagate, disabled in logged:
            each.setLevel(level)
            each.handlers[:], each.propagate, each.disabled = handlers, propagate, disabled


def without_secrets(text: str) -> str:
    """Hide passwords in URIs, and the secrets of this process's environment."""
    return redacted(text, secrets_in(os.environ))


class Redacting:
    """A text stream that hides secrets in what it writes and leaves the rest to the wrapped stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text without secrets; return the length of the text as given."""
        self._stream.write(without_secrets(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each line without secrets."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def redacting(stream: TextIO) -> TextIO:
    """Wrap a stream so that no secret is written to it."""
    return cast(TextIO, Redacting(stream))


def _redacting_records(make: Callable[..., logging.LogRecord]) -> Callable[..., logging.LogRecord]:
    """Wrap a factory of log records so that its records hold no secrets.

    A logging handler may hold the stream from before we wrapped it, so wrapping our streams is not enough.
    """

    def record(*arguments: Any, **more: Any) -> logging.LogRecord:
        made = make(*arguments, **more)
        with suppress(Exception):  # if message and arguments do not match, logging reports it
            made.msg, made.args = without_secrets(made.getMessage()), ()
        if made.exc_info and made.exc_info[0]:
            made.exc_text = without_secrets(logging.Formatter().formatException(made.exc_info))
        return made

    return record


class Output:
    """The redirection of all that this process prints, C++ output and forwarded worker lines included, to a file.

    A temporary file holds it until `keep_in` names the log, so a command that fails at the start leaves nothing behind.
    `screen` still writes to where standard output went before. Python's output and log records are written without
    secrets, and in UTF-8 whatever the terminal takes.
    """

    def __init__(self) -> None:
        self.screen: TextIO = sys.stdout
        self._held = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the redirection
        self._saved: tuple[int, int] | None = None
        self._streams = (sys.stdout, sys.stderr)
        self._encoded: list[tuple[Any, str, str | None]] = []  # these streams, as far as they encode; how they did
        self._make_record = logging.getLogRecordFactory()

    def __enter__(self) -> Output:
        if sys.stdout is None or sys.stderr is None:  # a program that was started without them
            prepare_streams()
        sys.stdout.flush()
        sys.stderr.flush()
        self._saved = (os.dup(1), os.dup(2))
        self.screen = opened(os.dup(1), like=sys.stdout)
        self._streams = (sys.stdout, sys.stderr)
        encoding = [stream for stream in self._streams if hasattr(stream, "reconfigure")]  # a notebook's does not
        self._encoded = [(stream, stream.encoding, stream.errors) for stream in encoding]
        for stream, _, _ in self._encoded:
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
        sys.stdout, sys.stderr = (redacting(stream) for stream in self._streams)
        self._make_record = logging.getLogRecordFactory()
        logging.setLogRecordFactory(_redacting_records(self._make_record))
        self._point_at(self._held.fileno())
        return self

    def keep_in(self, path: Path) -> None:
        """Make this file the log, and move what was held so far into it."""
        sys.stdout.flush()
        sys.stderr.flush()
        with path.open("ab") as log:
            self._held.seek(0)
            log.write(self._held.read())
            log.flush()
            self._point_at(log.fileno())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = self._streams
        for stream, encoding, errors in self._encoded:
            stream.reconfigure(encoding=encoding, errors=errors)
        logging.setLogRecordFactory(self._make_record)
        assert self._saved is not None
        for target, saved in zip((1, 2), self._saved, strict=True):
            os.dup2(saved, target)
            os.close(saved)
        self.screen.close()
        self._held.close()

    @staticmethod
    def _point_at(descriptor: int) -> None:
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
