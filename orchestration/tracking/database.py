"""MLflow's SQLite database as a file: made whole, asked for a study, and at home where it lies.

What MLflow's client has no call for is done in its tables. Nothing here imports MLflow but `make_database`.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import tempfile
from contextlib import closing, suppress
from pathlib import Path

from scalestudy.experiments.spec.addresses import path_of, uri_of
from scalestudy.experiments.study.mlflow_filters import STUDY_ID

logger = logging.getLogger(__name__)

ARTIFACTS = "mlartifacts"
"""The folder beside a database in which the artifacts of its experiments are."""
BUSY_SECONDS = 20.0  # as MLflow waits for another writer
_ADDRESSES = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)
"""Tables and columns in which MLflow keeps the absolute addresses of artifacts."""


def artifacts_of(database: Path) -> str:
    """Return the URI of the folder of a database's artifacts."""
    return uri_of(database.parent / ARTIFACTS)


def has_study(database: Path, study_id: str) -> bool:
    """Return whether a database is there and has runs of a study. It is not made by asking."""
    if not database.is_file():
        return False
    try:
        with closing(sqlite3.connect(database, timeout=BUSY_SECONDS)) as connection:
            asked = "SELECT 1 FROM tags WHERE key = ? AND value = ? LIMIT 1"
            return connection.execute(asked, (STUDY_ID, study_id)).fetchone() is not None
    except sqlite3.Error:  # no database of MLflow's
        return False


def open_database(database: Path) -> None:
    """Make a database that is not there, and let one that was moved or copied find its artifacts.

    Raises OSError, and what MLflow raises.
    """
    if not database.exists() or not database.stat().st_size:
        make_database(database)
        return
    try:
        _bring_artifacts_along(database)
    except sqlite3.Error as error:  # MLflow says it better, when it opens the database
        logger.warning("the addresses of artifacts in %s can't be read: %s", database, error)


def make_database(database: Path) -> None:
    """Make MLflow's database, with its folder. It appears whole: of two that make it at once, the first makes it.

    MLflow lays its tables out one after another, and fails where another process does so in the same file.
    """
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # it logs every table
    database.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{database.name}-", dir=database.parent) as aside:
        made = Path(aside) / "made.db"
        SqlAlchemyStore(uri_of(made, "sqlite"), artifacts_of(database)).engine.dispose()
        if database.exists() and not database.stat().st_size:
            made.replace(database)  # an empty file, in which SQLite would begin a database
            return
        with suppress(FileExistsError):
            try:
                os.link(made, database)
            except FileExistsError:
                raise
            except OSError:  # a file system without hard links: the other may come in between
                if not database.exists():
                    made.replace(database)


def _bring_artifacts_along(database: Path) -> None:
    """Let all addresses of artifacts that lay beside a database lead to the folder beside it now.

    Addresses stay where the artifacts are still in the old folder and not in the new one: the database alone was moved.
    """
    beside = artifacts_of(database)
    with closing(sqlite3.connect(database, timeout=BUSY_SECONDS)) as connection, connection:
        known = [address for (address,) in connection.execute("SELECT artifact_location FROM experiments") if address]
        for before in known:
            root, _, folder = before.rpartition("/")
            after = f"{beside}/{folder}"
            old, new = path_of(before), path_of(after)
            if before == after or not root.endswith(f"/{ARTIFACTS}") or old is None or new is None:
                continue
            if old.exists() and (not new.exists() or old.samefile(new)):
                continue
            if not new.parent.is_dir() and old.parent.parent.exists():  # none lie beside it, and theirs may be away
                continue
            for table, column in _ADDRESSES:
                within = f"WHERE substr({column} || '/', 1, ?) = ?"
                values = (after, len(before) + 1, len(before) + 1, f"{before}/")
                connection.execute(f"UPDATE {table} SET {column} = ? || substr({column}, ?) {within}", values)
