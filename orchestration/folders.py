"""Stages 7 to 9, after a study: commands that work on its folder, and on the folder of data sets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from experiments.spec import SpecError, StudySpec
from experiments.study_folder import StudyFolder
from orchestration.environment import prepare_environment
from orchestration.errors import RequestError, UnreachableError
from orchestration.mlflow_store import MlflowStore, check_reachable, resolve_address
from orchestration.preflight import read_spec, request_error, storage_of
from orchestration.tracking import replay


def open_folder(path: str | Path) -> StudyFolder:
    """A study's folder. Raises RequestError for another one."""
    folder = StudyFolder(Path(path))
    if not folder.plan_file.exists():
        raise RequestError(f"DIR: {path}: is not a study's folder (it has no plan.json)", "name one under `runs`")
    return folder


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
        raise request_error(error, "restore the file, or run the study again", f"DIR: {folder.path}") from error


def rebuild_report(path: str | Path) -> Path:
    """Writes `summary.json` and `report.html` of a study's folder anew, from its records alone."""
    from experiments.report import write_report

    folder = open_folder(path)
    with readable(folder):
        spec_of(folder)
        return write_report(folder)


def sync_tracking(path: str | Path) -> tuple[int, str]:
    """Replays a study's spool; the number of operations and the store's address. Raises UnreachableError."""
    prepare_environment()
    folder = open_folder(path)
    spec = spec_of(folder)
    address = resolve_address(spec.tracking.uri)
    check_reachable(address)
    try:
        store = MlflowStore(address, spec.tracking.experiment or spec.name, folder.study_id)
        return replay(store, folder.path / "spool"), address.shown
    except Exception as error:
        remedy = "start the server, then type this command again; nothing is lost"
        raise UnreachableError(f"tracking.uri: {address.shown}: {error}", remedy) from error


def earlier_trials(spec: StudySpec) -> list[dict[str, Any]]:
    """Trials of earlier studies in the spec's storage, for `plan`'s estimate; broken folders are passed over."""
    found: list[dict[str, Any]] = []
    for plan_file in sorted(storage_of(spec).glob("*/plan.json")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            found.extend(StudyFolder(plan_file.parent).measured_trials())
    return found


def fetch_data(name: str, source: Path | None) -> tuple[list[Path], Path]:
    """Puts a data set's files under the data folder: those that are new, and the folder. Raises RequestError."""
    from training.data import DataError, default_root, fetch

    root = default_root().expanduser().absolute()
    try:
        return fetch(name, root, source), root
    except (DataError, ValueError) as error:
        raise request_error(error, f"scalestudy data fetch {name} --from DIR") from error
