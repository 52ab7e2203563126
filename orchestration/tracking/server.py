"""Which MLflow a study uses, and whether it answers.

This file only reads. MLflow's client would try for a minute, and report a database that is down as "too many 500 error
responses".
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from scalestudy.experiments.spec.addresses import bare_uri, options_of, path_of, same_place, uri_of
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.orchestration.base.errors import RefusedError, RequestError, UnreachableError, first_line
from scalestudy.orchestration.base.places import base_folder, nearest
from scalestudy.orchestration.cluster.ports import can_connect
from scalestudy.orchestration.tracking.database import ARTIFACTS as ARTIFACTS_FOLDER
from scalestudy.orchestration.tracking.database import artifacts_of, has_study
from scalestudy.training.proxies import ask_here_directly, proxy_of, through
from scalestudy.training.redaction import HIDDEN, redacted

SQLITE_HEADER = b"SQLite format 3\0"
PORTS = {"http": 80, "https": 443, "postgresql": 5432, "mysql": 3306, "mssql": 1433}
DATABASES = {"postgresql": "connect_timeout", "mysql": "connect_timeout", "mssql": "timeout"}
"""Databases that MLflow uses without a server, and their drivers' names for the seconds to wait for one."""
ANSWER_SECONDS = 5.0
ASK_SECONDS = 20
"""Limit for a server's first answer, which may wait for its database, or for a bucket."""
EXPERIMENTS = "/api/2.0/mlflow/experiments/search"
EXPERIMENT_BY_NAME = "/api/2.0/mlflow/experiments/get-by-name"
ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts"
DRIVER_REMEDY = "install it, or name one that is there, such as postgresql+psycopg2:// after pip install '.[server]'"
REMEDY = "start the server, or correct tracking.uri or MLFLOW_TRACKING_URI"
LOGIN_REMEDY = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD to an account of the server"
DATABASE_REMEDY = "start the server's database, or look into the server's log"
ARTIFACTS_REMEDY = "make the bucket, or start the store that the server keeps artifacts in; its log says more"
_NOT_LET_IN = re.compile(
    r"authentication failed|no password supplied|no pg_hba|access denied|login failed", re.IGNORECASE
)


@dataclass(frozen=True)
class TrackingAddress:
    """A tracking URI with every relative part resolved, and where artifacts go (None: the server decides)."""

    uri: str
    artifacts: str | None

    @classmethod
    def of_database(cls, file: Path, options: str = "") -> TrackingAddress:
        """Return the address of an SQLite database, whose artifacts lie beside it. options: of its URI."""
        return cls(uri_of(file, "sqlite", options), artifacts_of(file))

    @property
    def shown(self) -> str:
        """The URI without its password."""
        return redacted(self.uri)

    @property
    def is_server(self) -> bool:
        """Whether it is an MLflow server, which serves its pages itself."""
        return self.uri.startswith(("http://", "https://"))

    @property
    def database(self) -> Path | None:
        """The SQLite database's file; None: it is another store."""
        return path_of(self.uri) if self.uri.startswith("sqlite") else None

    @property
    def is_there(self) -> bool:
        """Whether its database file exists; true for every other address."""
        return self.database is None or self.database.exists()


def resolve_address(uri: str | None) -> TrackingAddress:
    """Return the address of the spec, else MLFLOW_TRACKING_URI, else `mlflow.db` in the current folder.

    A study's spec.yaml holds the address without its password. The password then comes from MLFLOW_TRACKING_URI if that
    names the same place; else MLflow or the database looks for it (PGPASSWORD).
    """
    given = os.environ.get("MLFLOW_TRACKING_URI")
    named = uri or given or "sqlite:///mlflow.db"
    if named.startswith("sqlite") and (file := path_of(named)):
        return TrackingAddress.of_database(base_folder() / file, options_of(named))
    if HIDDEN in named:
        named = given if given and same_place(given, named) else bare_uri(named)
    named = without_login(named)
    is_database = not named.startswith(("http://", "https://", "databricks"))
    return TrackingAddress(named, uri_of(base_folder() / ARTIFACTS_FOLDER) if is_database else None)


def without_login(uri: str) -> str:
    """Return a server's URI without user name and password, which move to the variables that MLflow's client reads.

    Left in the URI they would appear in every error text, and in the links that MLflow prints.
    """
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https") or "@" not in parts.netloc:
        return uri
    login, _, host = parts.netloc.rpartition("@")
    username, _, password = login.partition(":")
    os.environ["MLFLOW_TRACKING_USERNAME"] = unquote(username)
    os.environ["MLFLOW_TRACKING_PASSWORD"] = unquote(password)
    return parts._replace(netloc=host).geturl()


def same_address(folder: StudyFolder, now: TrackingAddress) -> TrackingAddress:
    """Return where a study is tracked, and keep it in the study's folder, without a password; see `address_of`."""
    found = address_of(folder, now)
    database = found.database
    kept = {
        "shown": found.shown,
        "uri": found.uri if database else None,
        "beside": os.path.relpath(database, _place(folder)) if database and not folder.mirror else None,
        "study": _place(folder),
    }
    file, text = folder.address_file, json.dumps(kept)
    if not file.exists() or file.read_text(encoding="utf-8") != text:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return found


def address_of(folder: StudyFolder, now: TrackingAddress) -> TrackingAddress:
    """Return where a study is tracked: at the address of its first run, wherever the command is typed now.

    A database is looked for by its way from the study's folder, which leads to it if the project was moved, copied or
    mounted elsewhere; then where it was; then at `now`. The first that has the study goes on. If none has it, a study
    that lies where it lay keeps its place, and another one gets `now`. A copy in another project leaves the original's
    database alone.

    Raises RequestError if `now` is a server other than the one that has the study.
    """
    if not folder.address_file.exists():
        return now
    kept = json.loads(folder.address_file.read_text(encoding="utf-8"))
    was = path_of(kept["uri"] or "")
    if was is None:
        if not same_place(kept["shown"], now.shown):
            spool = folder.address_file.parent
            remedy = f"set MLFLOW_TRACKING_URI to it, or remove {spool} to send all of the study to the new one"
            raise RequestError(f"tracking: the study is tracked at {kept['shown']}, not at {now.shown}", remedy)
        return now
    before, here = StudyFolder(Path(kept["study"])), _place(folder)
    stays = kept["study"] == here or (before.plan_file.exists() and before.path.samefile(here))
    is_copy = not stays and before.plan_file.exists() and not Path(here).is_relative_to(was.parent)
    beside = Path(os.path.normpath(Path(here, kept["beside"]))) if kept["beside"] else None
    places = [beside, None if is_copy else was, None if is_copy and now.database == was else now.database]
    found = next((place for place in places if place and has_study(place, folder.study_id)), None)
    if found is None and stays and was.parent.is_dir():
        found = was
    if found is None and beside and is_copy and now.database == was and beside.parent.is_dir():
        found = beside
    return TrackingAddress.of_database(found, options_of(kept["uri"])) if found else now


def _place(folder: StudyFolder) -> str:
    return folder.address if folder.mirror else str(folder.path.absolute())


def check_reachable(address: TrackingAddress) -> None:
    """Ask whether a study can be tracked there; write nothing.

    Raises RequestError for an address that can't be right, UnreachableError where nothing answers, RefusedError where
    the store refuses this user.
    """
    ask_here_directly(address.uri)
    where = f"tracking.uri: {address.shown}{through(address.uri)}"
    if address.database:
        _check_database_file(address.database, where)
        return
    parts = urlsplit(address.uri)
    scheme = parts.scheme.partition("+")[0]
    if scheme not in (*PORTS, "databricks"):
        kinds = ", ".join([*PORTS])
        raise RequestError(f"{where}: MLflow takes no such store", f"use sqlite:///mlflow.db, or one of {kinds}")
    try:
        port = parts.port or PORTS.get(scheme)
    except ValueError as error:
        raise RequestError(f"{where}: {error}", "name a port from 1 to 65535") from error
    if parts.hostname and port and not proxy_of(address.uri) and not can_connect(parts.hostname, port):
        raise UnreachableError(f"{where}: nobody listens there", REMEDY)
    if scheme in ("http", "https"):
        _check_server(address.uri)
    elif scheme in DATABASES:
        _check_database(address.uri, where)


@dataclass(frozen=True)
class Experiment:
    """An experiment of a server."""

    id: str
    tags: Mapping[str, str]


def find_experiment(uri: str, name: str) -> Experiment | None:
    """Return a server's experiment of that name; None: it has none.

    uri: without a login. Raises UnreachableError if the server does not answer.
    """
    answer = _ask(uri, f"tracking.uri: {uri}{through(uri)}", EXPERIMENT_BY_NAME, {"experiment_name": name})
    found = (_json(answer) or {}).get("experiment")
    if answer.status_code != 200 or not found:
        return None
    return Experiment(str(found["experiment_id"]), {tag["key"]: tag["value"] for tag in found.get("tags", ())})


def _check_database_file(database: Path, where: str) -> None:
    place = nearest(database)
    is_there = place == database
    if place.is_dir() == is_there or not os.access(place, os.W_OK):
        raise UnreachableError(f"{where}: can't be written", "name a file in a folder that you may write")
    if is_there:
        with database.open("rb") as file:
            beginning = file.read(len(SQLITE_HEADER))
        if beginning not in (b"", SQLITE_HEADER):
            raise RequestError(f"{where}: is not an SQLite database", "name another file")


def _check_server(uri: str) -> None:
    """Ask a server whether it is alive, then for an experiment, then for an artifact that does not exist.

    uri: without a login. Raises UnreachableError if nothing can be tracked, RefusedError if the server refuses this
    user.
    """
    where = f"tracking.uri: {uri}{through(uri)}"
    _ask(uri, where, "/health", {}, ANSWER_SECONDS)  # any answer will do, even a refusal
    experiments = _ask(uri, where, EXPERIMENTS, {"max_results": 1})
    if experiments.status_code in (401, 403):
        raise RefusedError(f"{where}: {_refusal()}", LOGIN_REMEDY)
    if experiments.status_code >= 500:
        raise UnreachableError(f"{where}: its database does not answer ({_said(experiments)})", DATABASE_REMEDY)
    if experiments.status_code != 200 or _json(experiments) is None:
        raise UnreachableError(f"{where}: is no MLflow server ({_said(experiments)})", REMEDY)
    artifacts = _ask(uri, where, ARTIFACTS, {"path": "scalestudy"})
    # a server that keeps no artifacts answers 503 and says so; other servers answer 404
    keeps_none = artifacts.status_code == 503 and "no-serve-artifacts" in artifacts.text
    failed = artifacts.status_code >= 500 and not keeps_none
    if failed or _message(artifacts).startswith("Failed to list artifacts"):
        raise UnreachableError(f"{where}: its artifacts' store does not answer ({_said(artifacts)})", ARTIFACTS_REMEDY)


def _check_database(uri: str, where: str) -> None:
    """Open a connection to a database without a server, as MLflow will, and close it.

    where: what errors call it. Raises RequestError if its driver is not installed, RefusedError if it refuses the
    login, UnreachableError if it does not exist or does not answer.
    """
    from sqlalchemy import create_engine
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.pool import NullPool

    timeout = {DATABASES[urlsplit(uri).scheme.partition("+")[0]]: int(ANSWER_SECONDS)}
    try:
        create_engine(uri, poolclass=NullPool, connect_args=timeout).connect().close()
    except ImportError as error:
        raise RequestError(f"{where}: its driver is not installed ({error})", DRIVER_REMEDY) from error
    except SQLAlchemyError as error:
        said = reason_of(getattr(error, "orig", None) or error)
        if _NOT_LET_IN.search(said):
            raise RefusedError(f"{where}: {said}", "correct the user or the password") from error
        raise UnreachableError(f"{where}: {said}", "make the database, or correct tracking.uri") from error


def _ask(uri: str, where: str, endpoint: str, params: dict[str, Any], seconds: float = ASK_SECONDS) -> Any:
    """Send a request by MLflow's client, with its logins and certificates; return the `requests.Response`."""
    from mlflow.utils.credentials import get_default_host_creds
    from mlflow.utils.rest_utils import http_request

    login = get_default_host_creds(uri)
    options: dict[str, Any] = {"max_retries": 0, "timeout": seconds, "raise_on_status": False}
    try:
        return http_request(login, endpoint, "GET", params=params, **options)
    except Exception as error:
        raise UnreachableError(f"{where}: does not answer ({reason_of(error)})", REMEDY) from error


def reason_of(error: BaseException) -> str:
    """Return why a store refused something, in one line."""
    code, text = getattr(error, "error_code", None), str(error)
    if code in ("UNAUTHENTICATED", "CUSTOMER_UNAUTHORIZED"):
        return _refusal()
    if code == "PERMISSION_DENIED" or "403 Client Error" in text:
        return "the user may not write to this experiment; name another by tracking.experiment, or ask its owner"
    if failing := re.search(r"too many (5\d\d) error responses", text):
        return f"the server fails ({failing[1]}): its database or its artifacts' store is away, see its log"
    if "ProxyError" in text:
        refused = re.search(r"Tunnel connection failed: ([^'\")]*)", text)
        return f"the proxy refuses: {refused[1]}" if refused else "the proxy does not answer"
    if "Connection refused" in text:
        return "nobody listens there"
    return first_line(error)


def _refusal() -> str:
    from mlflow.utils.credentials import read_mlflow_creds

    if os.environ.get("MLFLOW_TRACKING_TOKEN"):
        return "refuses the token"
    login = read_mlflow_creds()
    if not (login.username and login.password):
        return "asks for a user name and a password"
    return f"refuses the user {login.username} or the password"


def _said(answer: Any) -> str:
    return first_line(_message(answer)) or f"{answer.status_code} {answer.reason}"


def _message(answer: Any) -> str:
    return str((_json(answer) or {}).get("message") or "")


def _json(answer: Any) -> dict[str, Any] | None:
    try:
        found = answer.json()
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
