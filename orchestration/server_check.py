"""Stage 7, tracking: whether an MLflow server answers, lets us in, and has its database and its artifacts' store.

Reads only. MLflow's own client would try for a minute, and say of a database that is down no more than "too many 500
error responses".
"""

from __future__ import annotations

import os
import re
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit
from urllib.request import urlopen

from orchestration.errors import RefusedError, RequestError, UnreachableError

ANSWER_SECONDS = 5.0
ASK_SECONDS = 20
"""A server's first answer may wait for its database, or for a bucket."""
LONGEST_REASON = 300
EXPERIMENTS = "/api/2.0/mlflow/experiments/search"
ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts"
DATABASES = {"postgresql": "connect_timeout", "mysql": "connect_timeout", "mssql": "timeout"}
"""Kinds of databases that MLflow takes without a server, and what their drivers call the seconds to wait for one."""
DRIVER_REMEDY = "install it, or name one that is there, such as postgresql+psycopg2:// after pip install '.[server]'"
_NOT_LET_IN = re.compile(
    r"authentication failed|no password supplied|no pg_hba|access denied|login failed", re.IGNORECASE
)
REMEDY = "start the server, or correct tracking.uri or MLFLOW_TRACKING_URI"
LOGIN_REMEDY = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD to an account of the server"
DATABASE_REMEDY = "start the server's database, or look into the server's log"
ARTIFACTS_REMEDY = "make the bucket, or start the store that the server keeps artifacts in; its log says more"


def without_login(uri: str) -> str:
    """A server's URI without its user name and password: they go where MLflow's client looks for them.

    Left in the URI they would stand in every error text and in the links that MLflow prints.
    """
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https") or "@" not in parts.netloc:
        return uri
    login, _, host = parts.netloc.rpartition("@")
    username, _, password = login.partition(":")
    os.environ["MLFLOW_TRACKING_USERNAME"] = unquote(username)
    os.environ["MLFLOW_TRACKING_PASSWORD"] = unquote(password)
    return parts._replace(netloc=host).geturl()


def check_server(uri: str) -> None:
    """Asks a server for an experiment and for an artifact that is not there.

    uri: without a login. Raises UnreachableError where nothing can be tracked, RefusedError where it is who asks that
    the server does not like.
    """
    where = f"tracking.uri: {uri}"
    _check_answers(uri, where)
    experiments = _ask(uri, where, EXPERIMENTS, {"max_results": 1})
    if experiments.status_code in (401, 403):
        raise RefusedError(f"{where}: {_refusal()}", LOGIN_REMEDY)
    if experiments.status_code >= 500:
        raise UnreachableError(f"{where}: its database does not answer ({_said(experiments)})", DATABASE_REMEDY)
    if experiments.status_code != 200 or _json(experiments) is None:
        raise UnreachableError(f"{where}: is no MLflow server ({_said(experiments)})", REMEDY)
    artifacts = _ask(uri, where, ARTIFACTS, {"path": "scalestudy"})
    if _has_no_store(artifacts):
        raise UnreachableError(f"{where}: its artifacts' store does not answer ({_said(artifacts)})", ARTIFACTS_REMEDY)


def check_database(uri: str, where: str) -> None:
    """Opens a connection to a database that is named without a server, as MLflow will, and closes it.

    where: what errors call it. Raises RequestError where its driver is not installed, RefusedError where it does not
    take the login, UnreachableError where it is not there or does not answer.
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


def _check_answers(uri: str, where: str) -> None:
    """Any HTTP answer will do, a refusal too."""
    try:
        with urlopen(f"{uri.rstrip('/')}/health", timeout=ANSWER_SECONDS):
            pass
    except HTTPError:
        pass
    except (OSError, HTTPException) as error:
        raise UnreachableError(f"{where}: does not answer ({error})", REMEDY) from error


def _ask(uri: str, where: str, endpoint: str, params: dict[str, Any]) -> Any:
    """One request by MLflow's client, with its logins and certificates; a `requests.Response` of any status."""
    from mlflow.utils.credentials import get_default_host_creds
    from mlflow.utils.rest_utils import http_request

    try:
        return http_request(
            get_default_host_creds(uri), endpoint, "GET", params=params,
            max_retries=0, timeout=ASK_SECONDS, raise_on_status=False,
        )  # fmt: skip
    except Exception as error:
        raise UnreachableError(f"{where}: {reason_of(error)}", REMEDY) from error


def _refusal() -> str:
    from mlflow.utils.credentials import read_mlflow_creds

    if os.environ.get("MLFLOW_TRACKING_TOKEN"):
        return "refuses the token"
    login = read_mlflow_creds()
    if not (login.username and login.password):
        return "asks for a user name and a password"
    return f"refuses the user {login.username} or the password"


def _has_no_store(answer: Any) -> bool:
    """Whether the server keeps artifacts, and can't. One that does not keep them says 503, and other servers 404."""
    if _message(answer).startswith("Failed to list artifacts"):
        return True
    return answer.status_code >= 500 and not (answer.status_code == 503 and "no-serve-artifacts" in answer.text)


def _json(answer: Any) -> dict[str, Any] | None:
    try:
        found = answer.json()
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _message(answer: Any) -> str:
    return str((_json(answer) or {}).get("message") or "")


def _said(answer: Any) -> str:
    return _first_line(_message(answer)) or f"{answer.status_code} {answer.reason}"


def reason_of(error: BaseException) -> str:
    """Why a store did not take something, in one line."""
    code, text = getattr(error, "error_code", None), str(error)
    if code in ("UNAUTHENTICATED", "CUSTOMER_UNAUTHORIZED"):
        return _refusal()
    if code == "PERMISSION_DENIED" or "403 Client Error" in text:
        return "the user may not write to this experiment; name another by tracking.experiment, or ask its owner"
    if failing := re.search(r"too many (5\d\d) error responses", text):
        return f"the server fails ({failing[1]}): its database or its artifacts' store is away, see its log"
    if "Connection refused" in text:
        return "nobody listens there"
    return _first_line(text) or type(error).__name__


def _first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "")[:LONGEST_REASON]
