"""`scalestudy ui`: MLflow's own pages on 127.0.0.1, over the store that `run` writes to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any

from scalestudy.orchestration.base.environment import prepare_environment
from scalestudy.orchestration.base.errors import RequestError
from scalestudy.orchestration.cluster.ports import can_connect
from scalestudy.orchestration.tracking.server import check_reachable, resolve_address

HOST = "127.0.0.1"
STORE_VARIABLE = "MLFLOW_BACKEND_STORE_URI"
"""Passes the store's address. It may hold a password, and everybody on the machine can read a command line."""


def serve_ui(uri: str | None, port: int) -> int:
    """Serves MLflow's pages until Ctrl-C; returns the server's exit status.

    Raises RequestError if the port is in use or the store has a server of its own. Raises UnreachableError if the store
    can't be reached.
    """
    prepare_environment()
    address = resolve_address(uri)
    if address.uri.startswith(("http://", "https://")):
        raise RequestError(f"tracking.uri: {address.shown}: is a server with its own pages", "open it in a browser")
    check_reachable(address)
    if can_connect(HOST, port, seconds=0.5):
        raise RequestError(f"--port: {port}: is in use on {HOST}", "name another, such as --port 5001")
    print(f"MLflow: http://{HOST}:{port} over {address.shown} (Ctrl-C ends it)", flush=True)
    command = [sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(port), "--workers", "1"]
    if address.artifacts:
        command += ["--default-artifact-root", address.artifacts, "--no-serve-artifacts"]
    # the server starts other processes: in a session of their own, one signal ends them all
    process = subprocess.Popen(command, start_new_session=True, env={**os.environ, STORE_VARIABLE: address.uri})
    stopped = threading.Event()

    def stop(_number: int, _frame: Any) -> None:
        stopped.set()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    status = process.wait()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return 0 if stopped.is_set() else status
