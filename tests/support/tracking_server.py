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
    """A real MLflow server on sqlite, to be stopped and started. password: of its administrator; None: it asks none."""

    def __init__(self, folder: Path, *, password: str | None = None) -> None:
        self._folder, self._lock, self._password = folder, threading.Lock(), password
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

    @property
    def login(self) -> dict[str, str]:
        """What its administrator sets to reach it."""
        return {"MLFLOW_TRACKING_USERNAME": "admin", "MLFLOW_TRACKING_PASSWORD": self._password or ""}

    def start(self) -> None:
        """Starts it unless it runs, and waits until it answers."""
        with self._lock:
            if self._process is None:
                server = ["mlflow", "server", "--host", "127.0.0.1", "--port", str(self._port), "--workers", "1"]
                store = ["--backend-store-uri", self.store, "--artifacts-destination", str(self._folder / "artifacts")]
                variables = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
                if self._password is not None:
                    server += ["--app-name", "basic-auth"]
                    variables |= self._with_accounts(self._password)
                with (self._folder / "server.log").open("ab") as log:
                    self._process = subprocess.Popen(
                        [sys.executable, "-m", *server, *store],
                        cwd=self._folder,
                        env=environment(**variables),
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
            wait_until(lambda: listens(self._port), seconds=240)

    def _with_accounts(self, password: str) -> dict[str, str]:
        """Names the administrator; what the server is told by."""
        file = self._folder / "accounts.ini"
        accounts = f"sqlite:///{self._folder / 'accounts.db'}"
        file.write_text(
            f"[mlflow]\ndefault_permission = READ\ndatabase_uri = {accounts}\nadmin_username = admin\n"
            f"admin_password = {password}\n",
            encoding="utf-8",
        )
        return {"MLFLOW_AUTH_CONFIG_PATH": str(file), "MLFLOW_FLASK_SERVER_SECRET_KEY": "signs-the-forms"}

    def stop(self) -> bool:
        """Kills it with its children; says whether it ran."""
        with self._lock:
            process, self._process = self._process, None
        if process is None:
            return False
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)
        return True
