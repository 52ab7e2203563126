"""Stage 7, tracking: a study in MLflow – one parent run, one child run a trial, for ever.

Layout (DESIGN.md section 6): experiment = study name; the parent carries the answer as its note and the report as an
artifact; a child carries the spec's parameters and one point an epoch for each metric.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import SplitResult, quote, urlsplit
from urllib.request import urlopen

from orchestration.cluster import can_connect
from orchestration.environment import base_folder
from orchestration.errors import RequestError, UnreachableError
from orchestration.tracking import Operation

logger = logging.getLogger(__name__)

ROLE, STUDY_ID, TRIAL_ID, STATUS = (f"scalestudy.{key}" for key in ("role", "study_id", "trial_id", "status"))
RUN_STATUS = {"finished": "FINISHED", "stopped": "KILLED", "interrupted": "KILLED"}
"""MLflow's word for ours; every other status is FAILED."""
ANSWER_SECONDS = 5.0
NOTE_LIMIT = 7_900
SQLITE = "sqlite:///"
SQLITE_HEADER = b"SQLite format 3\0"
KIND_TAG = {"mlflow.experimentKind": "custom_model_development"}
"""Has MLflow's pages open an experiment as model training, not as generative AI."""
REFUSED = frozenset({"INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_ALREADY_EXISTS"})
"""MLflow's answers to an operation that will be no better for being tried again."""
PORTS = {"http": 80, "https": 443, "postgresql": 5432, "mysql": 3306, "mssql": 1433}
METRICS_A_BATCH = 1_000  # MLflow's limit
PARAMS_A_BATCH = 100


@dataclass(frozen=True)
class TrackingAddress:
    """A tracking URI with every relative part resolved, and where artifacts go (None: the server decides)."""

    uri: str
    artifacts: str | None

    @property
    def shown(self) -> str:
        """The URI without its password."""
        parts = urlsplit(self.uri)
        if not parts.password:
            return self.uri
        host = parts.netloc.rpartition("@")[2]
        return self.uri.replace(parts.netloc, f"{parts.username}:***@{host}", 1)


def resolve_address(uri: str | None) -> TrackingAddress:
    """The address of the spec, else MLFLOW_TRACKING_URI, else `mlflow.db` in the current folder."""
    named = uri or os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///mlflow.db"
    if named.startswith(SQLITE):
        database = base_folder() / named.removeprefix(SQLITE)
        return TrackingAddress(f"{SQLITE}{database}", (database.parent / "mlartifacts").as_uri())
    is_database = not named.startswith(("http://", "https://", "databricks"))
    return TrackingAddress(named, (base_folder() / "mlartifacts").as_uri() if is_database else None)


def check_reachable(address: TrackingAddress) -> None:
    """Raises UnreachableError where nothing can be tracked; writes nothing."""
    remedy = "start the server, or correct tracking.uri or MLFLOW_TRACKING_URI"
    if address.uri.startswith(SQLITE):
        _check_database_file(Path(address.uri.removeprefix(SQLITE)))
        return
    parts = urlsplit(address.uri)
    scheme = parts.scheme.partition("+")[0]
    if scheme in ("file", ""):
        raise RequestError(f"tracking.uri: {address.uri}: MLflow has retired file stores", "use sqlite:///mlflow.db")
    if scheme not in (*PORTS, "databricks"):
        kinds = ", ".join(["sqlite", *PORTS])
        raise RequestError(f"tracking.uri: {address.shown}: MLflow does not know this kind", f"use one of {kinds}")
    port = _port(address, parts) or PORTS.get(scheme)
    if parts.hostname and port and not can_connect(parts.hostname, port):
        raise UnreachableError(f"tracking.uri: {address.shown}: nobody listens there", remedy)
    if scheme in ("http", "https"):
        _check_answers(address, remedy)
        _ask_server(address, remedy)


def _port(address: TrackingAddress, parts: SplitResult) -> int | None:
    try:
        return parts.port
    except ValueError as error:
        raise RequestError(f"tracking.uri: {address.shown}: {error}", "name a port from 1 to 65535") from error


def _check_answers(address: TrackingAddress, remedy: str) -> None:
    """Any HTTP answer will do, a refusal too; MLflow's own client would wait a minute for a server that hangs."""
    try:
        with urlopen(f"{address.uri.rstrip('/')}/health", timeout=ANSWER_SECONDS):
            pass
    except HTTPError:
        pass
    except (OSError, HTTPException) as error:
        raise UnreachableError(f"tracking.uri: {address.shown}: does not answer ({error})", remedy) from error


def _check_database_file(database: Path) -> None:
    place = next(path for path in (database, *database.parents) if path.exists())
    if database.is_dir() or (place != database and not place.is_dir()) or not os.access(place, os.W_OK):
        raise UnreachableError(
            f"tracking.uri: sqlite:///{database}: can't be written",
            "name a file in a folder that you may write",
        )
    if database.exists() and _first_bytes(database) not in (b"", SQLITE_HEADER):
        raise RequestError(f"tracking.uri: sqlite:///{database}: is not an SQLite database", "name another file")


def _first_bytes(database: Path) -> bytes:
    with database.open("rb") as file:
        return file.read(len(SQLITE_HEADER))


def _ask_server(address: TrackingAddress, remedy: str) -> None:
    from mlflow import MlflowClient

    try:
        MlflowClient(tracking_uri=address.uri).search_experiments(max_results=1)
    except Exception as error:
        reason = str(error).strip().splitlines()[0][:300]
        raise UnreachableError(f"tracking.uri: {address.shown}: {reason}", remedy) from error


class MlflowStore:
    """Carries out operations on one study's runs."""

    def __init__(self, address: TrackingAddress, experiment: str, study_id: str) -> None:
        """Opens the store and finds or makes the experiment. Raises what MLflow raises."""
        from mlflow import MlflowClient

        if address.uri.startswith(SQLITE):
            Path(address.uri.removeprefix(SQLITE)).parent.mkdir(parents=True, exist_ok=True)
        self.client = MlflowClient(tracking_uri=address.uri)
        self.study_id = study_id
        self.experiment_id = self._experiment(experiment, address.artifacts)
        self._runs: dict[str, str] = {}

    def apply(self, operations: Sequence[Operation]) -> None:
        """Carries out operations in order; neighbouring epochs of one trial are written together.

        What MLflow refuses as wrong, and a file that is gone, is logged and passed over: it would hold up the rest
        for ever. Raises what MLflow raises when the store is out of reach.
        """
        for group in _neighbours(operations):
            try:
                self._carry_out(group)
            except Exception as error:
                if not _is_refused(error):
                    raise
                logger.error("MLflow refused %s: %s", group[0]["op"], error)

    def _carry_out(self, group: Sequence[Operation]) -> None:
        if group[0]["op"] == "epochs":
            self._epochs(group)
        else:
            getattr(self, f"_{group[0]['op']}")(group[0])

    def _experiment(self, name: str, artifacts: str | None) -> str:
        found = self.client.get_experiment_by_name(name)
        if found is None:
            location = f"{artifacts}/{quote(name, safe='')}" if artifacts else None
            return str(self.client.create_experiment(name, artifact_location=location, tags=KIND_TAG))
        if found.lifecycle_stage == "deleted":
            self.client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)

    def run_id(self, role: str, key: str) -> str | None:
        """The run of the study ("study", its id) or of a trial ("trial", its id), if there is one."""
        tag = STUDY_ID if role == "study" else TRIAL_ID
        wanted = {ROLE: role, STUDY_ID: self.study_id, tag: key}
        clauses = " and ".join(f"tags.`{name}` = {_quoted(value)}" for name, value in wanted.items())
        found = self.client.search_runs([self.experiment_id], clauses, max_results=1)
        return str(found[0].info.run_id) if found else None

    def _known(self, role: str, key: str) -> str:
        run = self._runs.get(key) or self.run_id(role, key)
        if run is None:
            raise LookupError(f"no MLflow run of {role} {key} in experiment {self.experiment_id}")
        self._runs[key] = run
        return run

    def _make(self, role: str, key: str, name: str, at: str, tags: dict[str, str]) -> str:
        run = self._runs.get(key) or self.run_id(role, key)
        if run is None:
            tags = {ROLE: role, STUDY_ID: self.study_id, **tags}
            run = self.client.create_run(
                self.experiment_id, start_time=milliseconds(at), tags=tags, run_name=name
            ).info.run_id
        self._runs[key] = run
        return run

    def _study_started(self, op: Operation) -> None:
        run = self._make(
            "study", self.study_id, self.study_id, op["at"], {"mlflow.note.content": op["note"][:NOTE_LIMIT]}
        )
        self._params(run, op["params"])
        for file in op["files"]:
            self.client.log_artifact(run, file)

    def _trial_started(self, op: Operation) -> None:
        parent = self._known("study", self.study_id)
        tags = {TRIAL_ID: op["trial_id"], "mlflow.parentRunId": parent, STATUS: "running"}
        run = self._make("trial", op["trial_id"], op["name"], op["at"], tags)
        self._params(run, op["params"])

    def _params(self, run: str, params: dict[str, Any]) -> None:
        from mlflow.entities import Param

        entries = [Param(key, str(value)) for key, value in params.items()]
        for start in range(0, len(entries), PARAMS_A_BATCH):
            self.client.log_batch(run, params=entries[start : start + PARAMS_A_BATCH])

    def _epochs(self, group: Sequence[Operation]) -> None:
        points = [point for op in group for point in op["points"]]
        self._metrics(self._known("trial", group[0]["trial_id"]), points)

    def _metrics(self, run: str, points: Iterable[dict[str, Any]]) -> None:
        from mlflow.entities import Metric

        entries = [
            Metric(name, value, milliseconds(point["at"]), point["step"])
            for point in points
            for name, value in point["metrics"].items()
        ]
        for start in range(0, len(entries), METRICS_A_BATCH):
            self.client.log_batch(run, metrics=entries[start : start + METRICS_A_BATCH])

    def _trial_ended(self, op: Operation) -> None:
        run = self._known("trial", op["trial_id"])
        self._metrics(run, [op["point"]])
        for key, value in {STATUS: op["status"], **op["tags"]}.items():
            self.client.set_tag(run, key, value)
        self._end(run, op["status"], op["at"])

    def _study_ended(self, op: Operation) -> None:
        run = self._known("study", self.study_id)
        self._metrics(run, [op["point"]])
        self.client.set_tag(run, "mlflow.note.content", op["note"][:NOTE_LIMIT])
        self.client.set_tag(run, STATUS, op["status"])
        for file in op["files"]:
            self.client.log_artifact(run, file)
        for folder, place in op["folders"]:
            self.client.log_artifacts(run, folder, place)
        self._end(run, op["status"], op["at"])

    def _model(self, op: Operation) -> None:
        from orchestration.mlflow_model import log_best_model

        log_best_model(self.client, self._known("trial", op["trial_id"]), op)

    def _end(self, run: str, status: str, at: str) -> None:
        self.client.set_terminated(run, RUN_STATUS.get(status, "FAILED"), milliseconds(at))


def _is_refused(error: Exception) -> bool:
    return isinstance(error, FileNotFoundError) or getattr(error, "error_code", None) in REFUSED


def milliseconds(at: str) -> int:
    """An ISO time in UTC as MLflow's milliseconds since 1970."""
    return round(datetime.fromisoformat(at).timestamp() * 1000)


def _quoted(text: str) -> str:
    """A text in a filter of MLflow, which knows two quotation marks and no escapes."""
    return f'"{text}"' if "'" in text else f"'{text}'"


def _neighbours(operations: Sequence[Operation]) -> list[list[Operation]]:
    """The operations in order, neighbouring `epochs` of one trial together."""
    groups: list[list[Operation]] = []
    for op in operations:
        last = groups[-1][0] if groups else {}
        if op["op"] == "epochs" and last.get("op") == "epochs" and last["trial_id"] == op["trial_id"]:
            groups[-1].append(op)
        else:
            groups.append([op])
    return groups
