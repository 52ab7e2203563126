"""A real MLflow server for tests of what becomes of a study while it is away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from tests.support.groups import wait_until
from tests.support.ports import free_port, listens
from tests.support.studies import environment


class TrackingServer:
    """A real MLflow server on sqlite, to be stopped and started."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._port = free_port()

    @property
    def uri(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def store(self) -> str:
        """Its database, to be read when it is down too."""
        return f"sqlite:///{self._folder / 'server.db'}"

    def start(self) -> None:
        """Starts it unless it runs, and waits until it answers."""
        with self._lock:
            if self._process is None:
                server = ["mlflow", "server", "--host", "127.0.0.1", "--port", str(self._port), "--workers", "1"]
                store = ["--backend-store-uri", self.store, "--artifacts-destination", str(self._folder / "artifacts")]
                with (self._folder / "server.log").open("ab") as log:
                    self._process = subprocess.Popen(
                        [sys.executable, "-m", *server, *store],
                        cwd=self._folder,
                        env=environment(MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false"),
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
            wait_until(lambda: listens(self._port), seconds=240)

    def stop(self) -> bool:
        """Kills it with its children; says whether it ran."""
        with self._lock:
            process, self._process = self._process, None
        if process is None:
            return False
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)
        return True
