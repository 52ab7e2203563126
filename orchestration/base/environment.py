"""What Ray and MLflow read from the process: defaults of their variables, folders, and where their output goes."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO, cast

from scalestudy.experiments.spec.addresses import redacted, secrets_in

DEFAULTS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # the books see to it that groups leave a node that drains
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # how soon a lost worker is noticed; 2 s as shipped
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "120",
    "RAY_worker_niceness": "0",  # Ray's 15 lets every other process take the cores from a training that is timed
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative paths in a user's code mean what they mean on the command line
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # no CSV, JSON and TensorBoard files beside our records
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C is ours
    "TUNE_GLOBAL_CHECKPOINT_S": "inf",  # a study is resumed from its own journal, not from what Tune would save
    "RAY_AIR_NEW_OUTPUT": "0",  # the live table is ours
    "RAY_ENABLE_AUTO_CONNECT": "0",  # a thread that outlives its study must not reach for another cluster
    "RAY_DEDUP_LOGS": "0",  # driver.log holds every line
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # `ui` judges no language models: no queues beside its server
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # `sync --json` prints JSON and nothing else
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # the writer thread tries again by itself
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}


def prepare_environment() -> None:
    """Sets what must stand before Ray and MLflow are imported; what the user's environment says wins."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)


def without_secrets(text: str) -> str:
    """A text without passwords in URIs, and without what this process's environment holds as secrets."""
    return redacted(text, secrets_in(os.environ))


class Redacting:
    """A text stream that writes what it gets without secrets; all else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """As of any text stream."""
        self._stream.write(without_secrets(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """As of any text stream."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def redacting(stream: TextIO) -> TextIO:
    """The stream, so wrapped that no secret is written to it."""
    return cast(TextIO, Redacting(stream))


def _redacting_records(make: Callable[..., logging.LogRecord]) -> Callable[..., logging.LogRecord]:
    """Log records without secrets, whatever stream their handler has kept from before."""

    def record(*arguments: Any, **more: Any) -> logging.LogRecord:
        made = make(*arguments, **more)
        with suppress(Exception):  # a message that does not fit its arguments: logging says so itself
            made.msg, made.args = without_secrets(made.getMessage()), ()
        if made.exc_info and made.exc_info[0]:
            made.exc_text = without_secrets(logging.Formatter().formatException(made.exc_info))
        return made

    return record


class Output:
    """Sends everything that this process prints, C++ and Ray's forwarded worker lines included, to a file.

    Until `keep_in` names the log's place, it is held in a temporary file, so that a command that fails at the start
    leaves nothing behind. `screen` still writes to where standard output went before. What Python
    writes, log records included, is written without secrets.
    """

    def __init__(self) -> None:
        self.screen: TextIO = sys.stdout
        self._held = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the redirection
        self._saved: tuple[int, int] | None = None
        self._streams = (sys.stdout, sys.stderr)
        self._make_record = logging.getLogRecordFactory()

    def __enter__(self) -> Output:
        sys.stdout.flush()
        sys.stderr.flush()
        self._saved = (os.dup(1), os.dup(2))
        self.screen = os.fdopen(os.dup(self._saved[0]), "w", buffering=1, encoding=sys.stdout.encoding or "utf-8")
        self._streams = (sys.stdout, sys.stderr)
        sys.stdout, sys.stderr = (redacting(stream) for stream in self._streams)
        self._make_record = logging.getLogRecordFactory()
        logging.setLogRecordFactory(_redacting_records(self._make_record))
        self._point_at(self._held.fileno())
        return self

    def keep_in(self, path: Path) -> None:
        """From now on, and for what was held so far, the log is this file."""
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
