"""Stages 7 to 9, after a study: commands that work on its folder, and on the folder of data sets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from experiments.journal import Journal
from experiments.new_spec import new_spec
from experiments.spec import SpecError, StudySpec
from experiments.storage_address import is_uri
from experiments.study_folder import StudyFolder
from orchestration import mirror
from orchestration.environment import prepare_environment
from orchestration.errors import RequestError, StudyError, UnreachableError
from orchestration.history import History
from orchestration.lock import StudyLock, lock_of
from orchestration.mlflow_store import MlflowStore, check_reachable, resolve_address, same_address
from orchestration.operations import Operations
from orchestration.preflight import data_root, read_spec, request_error, storage_of
from orchestration.server_check import reason_of
from orchestration.tracking import Cursor, Numbered, replay
from orchestration.trials import train_config


def open_folder(path: str | Path, use: mirror.Use = "read") -> StudyFolder:
    """A study's folder; of one that is kept under a URI, the copy here, brought up to date. use: what for.

    Raises RequestError for another folder, UnreachableError where what is under the URI can't be read.
    """
    if is_uri(path):
        copy = mirror.fetch(mirror.mirrored(str(path), use))
        with readable(copy):
            complete_trials(copy, History.of(Journal(copy.journal_folder).entries()))
        return copy
    folder = StudyFolder(Path(path))
    if not folder.plan_file.exists():
        raise RequestError(f"DIR: {path}: is not a study's folder (it has no plan.json)", "name one under `runs`")
    return folder


def lock_study(path: str | Path) -> StudyLock:
    """The lock of the study in a folder, or under a URI. Raises RequestError where there is none."""
    return lock_of(mirror.check_study(mirror.mirrored(str(path), "work")) if is_uri(path) else open_folder(path))


def complete_trials(folder: StudyFolder, history: History) -> None:
    """Brings `trials.jsonl` up to the journal, which is ahead of it: a driver was killed between the two, or an object
    store, which can't append, has an older one. Raises OSError, or ValueError for a broken line."""
    written = {trial["trial_id"] for trial in folder.read_trials()}
    for trial_id, record in history.ended.items():
        if trial_id not in written:
            folder.append_trial(record)


def write_new_spec(name: str) -> Path:
    """Writes `NAME.yaml`, a study by that name with every key and its default.

    Args:
        name: of the study; with a folder before it or `.yaml` behind it, where the file is to lie.

    Raises SpecError for a name that can't be a folder's, RequestError where the file is there or can't be written.
    """
    file = _spec_file(name)
    text = new_spec(file.stem, str(file))
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise RequestError(f"NAME: {file}: is there already", "choose another name, or move the file") from None
    except OSError as error:
        raise request_error(error, "name a folder that is there and may be written", f"NAME: {file}") from error
    return file


def _spec_file(name: str) -> Path:
    """The file of a new study; a dot in a name is no suffix of a file."""
    return Path(name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")


def spec_of(folder: StudyFolder) -> StudySpec:
    """The resolved spec that a study ran with."""
    return read_spec(folder.spec_file)


@contextmanager
def readable(folder: StudyFolder) -> Iterator[None]:
    """What can't be read in a study's folder becomes a RequestError."""
    try:
        yield
    except SpecError:
        raise  # says it better: file, line and field
    except (OSError, ValueError, KeyError) as error:
        raise request_error(error, "restore the file, or run the study again", f"DIR: {folder.address}") from error


def rebuild_report(path: str | Path, *, include_flagged: bool = False) -> Path:
    """Writes `summary.json` and `report.html` of a study's folder anew, from its records alone.

    include_flagged: laws are fitted to timings too that were disturbed.
    """
    from experiments.report import write_report

    folder = open_folder(path)
    with readable(folder):
        spec_of(folder)
        return write_report(folder, include_flagged=include_flagged)


def sync_tracking(path: str | Path) -> tuple[int, str]:
    """Sends MLflow what it has missed of a study; the number of operations and the store's address.

    Raises UnreachableError where the store is out of reach, RequestError while the study runs.
    """
    prepare_environment()
    folder = open_folder(path)
    with readable(folder):
        spec, plan, journal = spec_of(folder), folder.read_plan(), Journal(folder.journal_folder)
        history = History.of(journal.entries())
    trials = plan.with_trials(history.suggested.values()).by_id()
    operations = Operations(spec, folder, trials, lambda trial: train_config(trial, data_root()))
    address = same_address(folder.address_file, resolve_address(spec.tracking.uri))
    cursor = Cursor(folder.cursor_file)
    check_reachable(address)
    missed = (Numbered(entry.number, operations.of(entry)) for entry in journal.entries(after=cursor.read()))
    try:
        with lock_of(folder):
            store = MlflowStore(address, spec.tracking.experiment or spec.name, folder.study_id)
            sent = replay(store, missed, cursor)
            folder.share(cursor.file, folder.address_file)
            return sent, address.shown
    except StudyError:
        raise
    except Exception as error:
        remedy = "start the server, then type this command again; nothing is lost"
        raise UnreachableError(f"tracking.uri: {address.shown}: {reason_of(error)}", remedy) from error


def earlier_trials(spec: StudySpec) -> list[dict[str, Any]]:
    """Trials of earlier studies in the spec's storage, for `plan`'s estimate; broken folders are passed over."""
    found: list[dict[str, Any]] = []
    storage = storage_of(spec)
    if is_uri(storage):
        folders = mirror.plans_and_trials(storage)
    else:
        folders = [StudyFolder(plan_file.parent) for plan_file in sorted(Path(storage).glob("*/plan.json"))]
    for folder in folders:
        with suppress(OSError, ValueError, KeyError, TypeError):
            found.extend(folder.measured_trials())
    return found


def fetch_data(name: str, source: Path | None) -> tuple[list[Path], Path]:
    """Puts a data set's files under the data folder: those that are new, and the folder. Raises RequestError."""
    from training.data import DataError, default_root, fetch

    root = default_root().expanduser().absolute()
    try:
        return fetch(name, root, source), root
    except (DataError, ValueError) as error:
        raise request_error(error, f"scalestudy data fetch {name} --from DIR") from error
