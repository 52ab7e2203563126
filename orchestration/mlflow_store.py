"""Stage 7, tracking: a study in MLflow – one parent run, one child run a trial, for ever.

Layout: experiment = study name; the parent carries the answer as its note and the report as an
artifact; a child carries the spec's parameters and one point an epoch for each metric.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, quote, urlsplit

from experiments.redaction import HIDDEN, bare_uri, redacted, same_place
from orchestration.environment import base_folder, nearest
from orchestration.errors import RequestError, UnreachableError
from orchestration.ports import can_connect
from orchestration.server_check import DATABASES, REMEDY, check_database, check_server, without_login
from orchestration.tracking import Operation

if TYPE_CHECKING:
    from mlflow.entities import Run

logger = logging.getLogger(__name__)

ROLE, STUDY_ID, TRIAL_ID, STATUS, KIND = (
    f"scalestudy.{key}" for key in ("role", "study_id", "trial_id", "status", "kind")
)
RUN_STATUS = {"finished": "FINISHED", "stopped": "KILLED", "interrupted": "KILLED"}
"""MLflow's word for ours; every other status is FAILED."""
NOTE_LIMIT = 7_900
SQLITE = "sqlite:///"
SQLITE_HEADER = b"SQLite format 3\0"
KIND_TAG = {"mlflow.experimentKind": "custom_model_development"}
"""Has MLflow's pages open an experiment as model training, not as generative AI."""
REFUSED = frozenset({"INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_ALREADY_EXISTS"})
"""MLflow's answers to an operation that will be no better for being tried again."""
PASSING = ("InterfaceError", "InternalError", "QueuePool limit", "ReadOnlySqlTransaction")
"""What a database says that is about to go, or busy; MLflow's server calls these bad requests too."""
PORTS = {"http": 80, "https": 443, "postgresql": 5432, "mysql": 3306, "mssql": 1433}
METRICS_A_BATCH = 1_000  # MLflow's limit
PARAMS_A_BATCH = 100
RUNS_A_PAGE = 1_000


@dataclass(frozen=True)
class TrackingAddress:
    """A tracking URI with every relative part resolved, and where artifacts go (None: the server decides)."""

    uri: str
    artifacts: str | None

    @property
    def shown(self) -> str:
        """The URI without its password."""
        return redacted(self.uri)


def resolve_address(uri: str | None) -> TrackingAddress:
    """The address of the spec, else MLFLOW_TRACKING_URI, else `mlflow.db` in the current folder.

    A study's own spec.yaml has the address without its password, which comes from the environment then: from
    MLFLOW_TRACKING_URI where it names the same place, else MLflow or the database looks for it (PGPASSWORD).
    """
    given = os.environ.get("MLFLOW_TRACKING_URI")
    named = uri or given or "sqlite:///mlflow.db"
    if HIDDEN in named:
        named = given if given and same_place(given, named) else bare_uri(named)
    named = without_login(named)
    if named.startswith(SQLITE):
        database = base_folder() / named.removeprefix(SQLITE)
        return TrackingAddress(f"{SQLITE}{database}", (database.parent / "mlartifacts").as_uri())
    is_database = not named.startswith(("http://", "https://", "databricks"))
    return TrackingAddress(named, (base_folder() / "mlartifacts").as_uri() if is_database else None)


def same_address(file: Path, now: TrackingAddress) -> TrackingAddress:
    """Where a study is tracked: where its first run was, wherever the command is typed now.

    file: keeps it, without a password; it is written where there is none. Raises RequestError where `now` is a server
    other than the one that has the study.
    """
    if not file.exists():
        secret = not now.uri.startswith(SQLITE)
        kept = {"shown": now.shown, "uri": None if secret else now.uri, "artifacts": now.artifacts}
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(kept), encoding="utf-8")
        return now
    kept = json.loads(file.read_text(encoding="utf-8"))
    if kept["uri"]:
        return TrackingAddress(kept["uri"], kept["artifacts"])
    if not same_place(kept["shown"], now.shown):
        remedy = f"set MLFLOW_TRACKING_URI to it, or remove {file.parent} to send all of the study to the new one"
        raise RequestError(f"tracking: the study is tracked at {kept['shown']}, not at {now.shown}", remedy)
    return now


def check_reachable(address: TrackingAddress) -> None:
    """Raises UnreachableError where nothing can be tracked; writes nothing."""
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
        raise UnreachableError(f"tracking.uri: {address.shown}: nobody listens there", REMEDY)
    if scheme in ("http", "https"):
        check_server(address.uri)
    elif scheme in DATABASES:
        check_database(address.uri, f"tracking.uri: {address.shown}")


def _port(address: TrackingAddress, parts: SplitResult) -> int | None:
    try:
        return parts.port
    except ValueError as error:
        raise RequestError(f"tracking.uri: {address.shown}: {error}", "name a port from 1 to 65535") from error


def _check_database_file(database: Path) -> None:
    place = nearest(database)
    a_folder = place != database
    if place.is_dir() != a_folder or not os.access(place, os.W_OK):
        raise UnreachableError(
            f"tracking.uri: sqlite:///{database}: can't be written",
            "name a file in a folder that you may write",
        )
    if place == database and _first_bytes(database) not in (b"", SQLITE_HEADER):
        raise RequestError(f"tracking.uri: sqlite:///{database}: is not an SQLite database", "name another file")


def _first_bytes(database: Path) -> bytes:
    with database.open("rb") as file:
        return file.read(len(SQLITE_HEADER))


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
        self._runs: dict[str, str] | None = None

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
                    self._runs = None  # a run may have been made though the answer was lost
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

    @property
    def runs(self) -> dict[str, str]:
        """The study's runs by trial id, its own by the study's id. Asked for once: no other process writes them."""
        if self._runs is None:
            self._runs = {run.data.tags.get(TRIAL_ID, self.study_id): run.info.run_id for run in self._search()}
        return self._runs

    def _search(self) -> list[Run]:
        clause, found, token = f"tags.`{STUDY_ID}` = {_quoted(self.study_id)}", list[Any](), None
        while True:
            page = self.client.search_runs([self.experiment_id], clause, max_results=RUNS_A_PAGE, page_token=token)
            found, token = [*found, *page], page.token
            if not token:
                return found

    def _known(self, role: str, key: str) -> str:
        if key not in self.runs:
            raise LookupError(f"no MLflow run of {role} {key} in experiment {self.experiment_id}")
        return self.runs[key]

    def _make(self, role: str, key: str, name: str, at: str, tags: dict[str, str]) -> str:
        """The run of the study, or of a trial, made where there is none."""
        if key not in self.runs:
            tags = {ROLE: role, STUDY_ID: self.study_id, **tags}
            made = self.client.create_run(self.experiment_id, start_time=milliseconds(at), tags=tags, run_name=name)
            self.runs[key] = made.info.run_id
        return self.runs[key]

    def _study_started(self, op: Operation) -> None:
        run = self._make(
            "study", self.study_id, self.study_id, op["at"], {"mlflow.note.content": op["note"][:NOTE_LIMIT]}
        )
        known = self.client.get_run(run).data.params  # MLflow lets no parameter change: an extended study adds some
        self._params(run, {key: value for key, value in op["params"].items() if key not in known})
        self._goes_on(run)
        for file in op["files"]:
            self.client.log_artifact(run, file)

    def _trial_started(self, op: Operation) -> None:
        self._trial_run(op)

    def _trial_run(self, op: Operation) -> str:
        """The run of a trial, made at its first event; one that was ended by an interruption goes on."""
        trial_id = op["trial_id"]
        if trial_id in self.runs:
            if op["op"] == "trial_started":
                self._goes_on(self.runs[trial_id])
            return self.runs[trial_id]
        parent = self._known("study", self.study_id)
        tags = {TRIAL_ID: trial_id, "mlflow.parentRunId": parent, STATUS: "running", KIND: op.get("kind", "training")}
        run = self._make("trial", trial_id, op["name"], op["at"], tags)
        self._params(run, op["params"])
        return run

    def _goes_on(self, run: str) -> None:
        self.client.update_run(run, status="RUNNING")
        self.client.set_tag(run, STATUS, "running")

    def _params(self, run: str, params: dict[str, Any]) -> None:
        from mlflow.entities import Param

        entries = [Param(key, str(value)) for key, value in params.items()]
        for start in range(0, len(entries), PARAMS_A_BATCH):
            self.client.log_batch(run, params=entries[start : start + PARAMS_A_BATCH])

    def _epochs(self, group: Sequence[Operation]) -> None:
        points = [point for op in group for point in op["points"]]
        self._metrics(self._trial_run(group[0]), points)

    def _metrics(self, run: str, points: Iterable[dict[str, Any]], tags: Mapping[str, str] | None = None) -> None:
        """Points, and tags, in as few requests as MLflow takes them."""
        from mlflow.entities import Metric, RunTag

        entries = [
            Metric(name, value, milliseconds(point["at"]), point["step"])
            for point in points
            for name, value in point["metrics"].items()
        ]
        marks = [RunTag(key, value) for key, value in (tags or {}).items()]
        for start in range(0, max(len(entries), len(marks)), METRICS_A_BATCH):
            some = slice(start, start + METRICS_A_BATCH)
            self.client.log_batch(run, metrics=entries[some], tags=marks[some])

    def _trial_ended(self, op: Operation) -> None:
        run = self._trial_run(op)
        self._metrics(run, [op["point"]], {STATUS: op["status"], **op["tags"]})
        self._end(run, op["status"], op["at"])

    def _study_ended(self, op: Operation) -> None:
        run = self._known("study", self.study_id)
        self._metrics(run, [op["point"]], {"mlflow.note.content": op["note"][:NOTE_LIMIT], STATUS: op["status"]})
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
    if getattr(error, "error_code", None) == "BAD_REQUEST" and any(word in str(error) for word in PASSING):
        return False
    return isinstance(error, FileNotFoundError | LookupError) or getattr(error, "error_code", None) in REFUSED


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
