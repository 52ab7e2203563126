"""Runs of an MLflow experiment, to be judged. Stores that are files are read without MLflow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from scalestudy.experiments.judging.mlflow_runs import (
    SYSTEM,
    MlflowRun,
    Point,
    Progress,
    finite_again,
    ignore,
    no_experiment,
    read_database,
    read_folder,
)
from scalestudy.experiments.judging.runs import Recorded, Say, SourceError, silent
from scalestudy.experiments.spec.addresses import is_uri, path_of
from scalestudy.experiments.study.mlflow_filters import STUDY_ID
from scalestudy.orchestration.base.errors import RefusedError, RequestError, UnreachableError, request_error
from scalestudy.orchestration.base.places import expanded
from scalestudy.orchestration.tracking.server import LOGIN_REMEDY, REMEDY, check_reachable, reason_of, resolve_address

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

AT_ONCE = 8
"""Runs whose metrics a server is asked for at the same time."""
RUNS_A_PAGE = 1_000
NOT_ALLOWED = ("PERMISSION_DENIED", "CUSTOMER_UNAUTHORIZED", "UNAUTHENTICATED")


def read_mlflow(
    experiment: str,
    uri: str | None = None,
    *,
    metric: str | None = None,
    progress: Progress = ignore,
    say: Say = silent,
) -> list[Recorded]:
    """Return the runs of an experiment, by its name or id, in the order in which they began.

    Runs that scalestudy wrote are left out: the folders of their studies say more.

    uri: a tracking URI or a folder `mlruns`; None: MLFLOW_TRACKING_URI, else `mlflow.db` in the current folder.
    metric: the one whose time a row has, if a step's metrics were not logged at once.
    progress: called with how many runs were read, and how many there are.
    say: takes a line about runs that are left out.

    Raises RequestError for a store or an experiment that is not there, UnreachableError for a server that does not
    answer, RefusedError for one that wants another login.
    """
    try:
        runs = sorted(_runs(experiment, uri, progress), key=lambda run: (run.started or 0, run.run_id))
    except SourceError as error:
        raise request_error(error, "") from error
    if not runs:
        raise RequestError(f"mlflow:{experiment}: has no runs, but for deleted ones", "name an experiment with runs")
    ours = [run for run in runs if STUDY_ID in run.tags]
    if ours:
        remedy = "give the folder of the study as a source instead"
        if len(ours) == len(runs):
            raise RequestError(f"mlflow:{experiment}: all its runs are of a study of scalestudy", remedy)
        say(f"mlflow:{experiment}: {len(ours)} of {len(runs)} runs are of a study of scalestudy; left out: {remedy}")
    return [run.recorded(metric) for run in runs if STUDY_ID not in run.tags]


def _runs(experiment: str, uri: str | None, progress: Progress) -> list[MlflowRun]:
    address = resolve_address(uri)
    if (folder := _folder_of(address.uri)) is not None:
        return read_folder(folder, experiment, progress)
    if address.database is None:
        check_reachable(address)
        return _asked(address.uri, f"tracking.uri: {address.shown}", experiment, progress)
    beside = address.database.parent / "mlruns"
    is_default = uri is None and "MLFLOW_TRACKING_URI" not in os.environ
    if is_default and not address.is_there and beside.is_dir():  # as MLflow does, where none names a store
        return read_folder(beside, experiment, progress)
    return read_database(address.database, experiment, progress)


def _folder_of(uri: str) -> Path | None:
    """Return the folder that a tracking URI names; None: it names a server or a database."""
    if uri.startswith("databricks") or (is_uri(uri) and not uri.startswith("file:")):
        return None
    return path_of(uri) or expanded(uri)


def _asked(uri: str, where: str, experiment: str, progress: Progress) -> list[MlflowRun]:
    """Ask a server, or a database that is no file, by MLflow's client."""
    from mlflow import MlflowClient

    try:
        client = MlflowClient(tracking_uri=uri)
        found = client.get_experiment_by_name(experiment)
        if found is None and experiment.isdigit():
            found = client.get_experiment(experiment)
        if found is None or found.lifecycle_stage == "deleted":
            raise no_experiment(where, experiment, [each.name for each in client.search_experiments()])
        runs = list(_pages(client, found.experiment_id))
        read = []
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for run in pool.map(lambda run: _read(client, run), runs):
                read.append(run)
                progress(len(read), len(runs))
        return read
    except SourceError:
        raise
    except Exception as error:  # MLflow raises its own, SQLAlchemy's and the HTTP client's
        if getattr(error, "error_code", None) in NOT_ALLOWED:
            raise RefusedError(f"{where}: the user may not read experiment {experiment!r}", LOGIN_REMEDY) from error
        if getattr(error, "error_code", None) == "RESOURCE_DOES_NOT_EXIST":
            raise no_experiment(where, experiment, []) from error
        if "out-of-date database schema" in str(error):
            raise RequestError(f"{where}: is a database of another MLflow", "run `mlflow db upgrade` on it") from error
        raise UnreachableError(f"{where}: {reason_of(error)}", REMEDY) from error


def _pages(client: MlflowClient, experiment_id: str) -> Iterator[Run]:
    token = None
    while token is None or token:
        page = client.search_runs([experiment_id], max_results=RUNS_A_PAGE, page_token=token)
        yield from page
        token = page.token or ""


def _read(client: MlflowClient, run: Run) -> MlflowRun:
    """Ask for the histories of a run's metrics. MLflow has no public call for those of several at once."""
    points = {
        name: [
            Point(point.step, point.timestamp, finite_again(point.value))
            for point in client.get_metric_history(run.info.run_id, name)
        ]
        for name in run.data.metrics
        if not name.startswith(SYSTEM)
    }
    return MlflowRun(
        run_id=run.info.run_id,
        name=run.info.run_name or "",
        status=run.info.status,
        started=run.info.start_time,
        stopped=run.info.end_time,
        params=run.data.params,
        tags=run.data.tags,
        points=points,
    )
