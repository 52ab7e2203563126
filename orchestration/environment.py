"""What Ray and MLflow read from the process: defaults of their variables, folders, and where their output goes."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import TextIO

DEFAULTS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # nothing here acts on its warnings yet
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # how soon a lost worker is noticed; 2 s as shipped
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "120",
    "RAY_worker_niceness": "0",  # Ray's 15 lets every other process take the cores from a training that is timed
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative paths in a user's code mean what they mean on the command line
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # no CSV, JSON and TensorBoard files beside our records
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C is ours
    "RAY_AIR_NEW_OUTPUT": "0",  # the live table is ours
    "RAY_ENABLE_AUTO_CONNECT": "0",  # a thread that outlives its study must not reach for another cluster
    "RAY_DEDUP_LOGS": "0",  # driver.log holds every line
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # the writer thread tries again by itself
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}


def prepare_environment() -> None:
    """Sets what must stand before Ray and MLflow are imported; what the user's environment says wins."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)


def inside_ray_job() -> bool:
    """Whether this process is the entry point of `ray job submit`, whose current folder is a temporary copy."""
    return "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ


def home() -> Path:
    """`$SCALESTUDY_HOME`, by default `~/scalestudy`."""
    return Path(os.environ.get("SCALESTUDY_HOME") or Path.home() / "scalestudy").expanduser().absolute()


def base_folder() -> Path:
    """Where relative paths of a study begin: the current folder, or `home()` inside a Ray job."""
    return home() if inside_ray_job() else Path.cwd()


class Output:
    """Sends everything that this process prints, C++ and Ray's forwarded worker lines included, to a file.

    Until `keep_in` names the log's place, it is held in a temporary file, so that a command that fails at the start
    leaves nothing behind. `screen` still writes to where standard output went before.
    """

    def __init__(self) -> None:
        self.screen: TextIO = sys.stdout
        self._held = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the redirection
        self._saved: tuple[int, int] | None = None

    def __enter__(self) -> Output:
        sys.stdout.flush()
        sys.stderr.flush()
        self._saved = (os.dup(1), os.dup(2))
        self.screen = os.fdopen(os.dup(self._saved[0]), "w", buffering=1, encoding=sys.stdout.encoding or "utf-8")
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
