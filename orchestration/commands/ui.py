"""`scalestudy ui`: MLflow's pages on 127.0.0.1, over the store that `run` writes to, opened at a study's page.

The address names the study's list of runs, which `tracking.runs_view` lays out.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from shlex import quote as shell_quote
from urllib.parse import quote, urlencode

from scalestudy.experiments.spec.spec_error import SpecError
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.orchestration.base.errors import RequestError, StudyError
from scalestudy.orchestration.base.places import UI_HOST
from scalestudy.orchestration.cluster.ports import can_connect
from scalestudy.orchestration.commands.parameters import LATEST
from scalestudy.orchestration.commands.studies import named_study
from scalestudy.orchestration.commands.study_commands import show_in_browser
from scalestudy.orchestration.study.folders import open_folder, readable, spec_of
from scalestudy.orchestration.tracking.database import open_database
from scalestudy.orchestration.tracking.run_content import experiment_of
from scalestudy.orchestration.tracking.runs_view import PAGE, query_of
from scalestudy.orchestration.tracking.server import (
    Experiment,
    TrackingAddress,
    address_of,
    check_reachable,
    find_experiment,
    resolve_address,
)
from scalestudy.training.process import Terminated

STORE_VARIABLE = "MLFLOW_BACKEND_STORE_URI"
"""Passes the store's address. It may hold a password, and everybody on the machine can read a command line."""
START_SECONDS, STOP_SECONDS = 120.0, 10.0


@dataclass(frozen=True, kw_only=True)
class TrackedPage:
    """A study's page in MLflow."""

    address: TrackingAddress  # of the store
    experiment: str
    study_id: str
    folder: str
    spec: StudySpec

    @classmethod
    def of(cls, path: str, uri: str | None = None) -> TrackedPage:
        """Return the page of the study in a folder. Raises RequestError as `open`.

        uri: a store other than the study's.
        """
        folder = open_folder(path)
        with readable(folder):
            spec = spec_of(folder)
        if spec.judged:
            remedy = f"scalestudy open {shell_quote(folder.address)} shows its report"
            raise RequestError(f"DIR: {folder.address}: is of runs that others made: MLflow has none of them", remedy)
        address = resolve_address(uri or spec.tracking.uri)
        return cls(
            address=address if uri else address_of(folder, address),
            experiment=experiment_of(spec),
            study_id=folder.study_id,
            folder=folder.address,
            spec=spec,
        )

    def url(self, server: str, experiment: Experiment) -> str:
        """Return its address on a server."""
        query = query_of(self.spec, self.study_id, experiment.tags)
        return f"{server}/#/experiments/{experiment.id}/runs?{urlencode(query, quote_via=quote)}"


def serve_ui(uri: str | None, port: int, study: str | None = None) -> int:
    """Serve MLflow's pages until Ctrl-C, and open a study's; return the server's exit status.

    A store that is a server has pages already: the study's is opened there, and nothing is served.

    Args:
        uri: of the store; None: the study's; without a study the one that `run` uses.
        port: on 127.0.0.1.
        study: its folder; None: the latest one; of a named store the latest one that is in it.

    Raises RequestError if the port is in use or there is no such study, UnreachableError if the store can't be reached.
    """
    page = TrackedPage.of(study, uri) if study else _latest_in(uri or os.environ.get("MLFLOW_TRACKING_URI"))
    address = page.address if page else resolve_address(uri)
    check_reachable(address)
    if address.database:
        open_database(address.database)
    if address.is_server:
        _show(address.uri.rstrip("/"), page)
        return 0
    if can_connect(UI_HOST, port, seconds=0.5):
        raise RequestError(f"--port: {port}: is in use on {UI_HOST}", "name another, such as --port 5001")
    server = f"http://{UI_HOST}:{port}"
    print(f"MLflow's pages over {address.shown} start on port {port} (Ctrl-C ends them)", flush=True)
    command = [sys.executable, "-m", "mlflow", "server", "--host", UI_HOST, "--port", str(port), "--workers", "1"]
    command += ["--uvicorn-opts", "--log-level warning"]  # so that the study's address is the last line
    if address.artifacts:
        command += ["--default-artifact-root", address.artifacts, "--no-serve-artifacts"]
    # the server starts other processes: in a new session, one signal ends them all
    quiet = {"PYTHONWARNINGS": "ignore::DeprecationWarning,ignore::UserWarning"}
    variables = {**os.environ, **quiet, STORE_VARIABLE: address.uri}
    process = subprocess.Popen(command, start_new_session=True, env=variables)
    ended = threading.Event()

    def show_once_it_answers() -> None:
        give_up_at = time.monotonic() + START_SECONDS
        while not can_connect(UI_HOST, port, seconds=0.5):
            if ended.wait(0.2) or time.monotonic() > give_up_at:
                return
        _show(server, page)

    threading.Thread(target=show_once_it_answers, name="browser", daemon=True).start()
    try:
        return process.wait()
    except Terminated:
        raise
    except KeyboardInterrupt:
        return 0
    finally:
        ended.set()
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, number)
                process.wait(STOP_SECONDS)


def _latest_in(uri: str | None) -> TrackedPage | None:
    """Return the page of the study that began last, or None if it is in another store. uri: None: any store will do."""
    with suppress(StudyError, SpecError):  # no study is here, or it can't be read: the pages are still useful
        page = TrackedPage.of(named_study(LATEST)[0])
        if uri is None or page.address.uri == resolve_address(uri).uri:
            return page
    return None


def _show(server: str, page: TrackedPage | None) -> None:
    """Print the address of a study's page, or of the list of experiments, and open it in the browser."""
    url = f"{server}/#/experiments?{urlencode(PAGE)}"
    try:
        experiment = find_experiment(server, page.experiment) if page else None
    except StudyError as error:
        print(error, file=sys.stderr)
        return
    if page and experiment is None:
        sends = f"scalestudy ui {shell_quote(page.folder)} --sync"
        print(f"MLflow has nothing of {page.study_id}; to send it: {sends}", flush=True)
    elif page and experiment:
        url = page.url(server, experiment)
        print(f"{page.study_id}: {url}", flush=True)
    else:
        print(f"experiments: {url}", flush=True)
    show_in_browser(url)
