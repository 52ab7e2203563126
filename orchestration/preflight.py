"""Stages 1 and 2, before anything starts: what may refuse a study, each with one clear error and nothing written."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from experiments.spec import StudySpec, find_study, load_study
from experiments.study_folder import StudyFolder
from orchestration.environment import base_folder
from orchestration.errors import RequestError, UnreachableError
from orchestration.failures import describe


def read_spec(source: str | Path, overrides: Sequence[str] = ()) -> StudySpec:
    """The spec of a path or a catalogue name. Raises SpecError with every problem."""
    from training.registry import DATASETS, MODELS

    return load_study(find_study(str(source)), overrides, models=MODELS, datasets=DATASETS)


def check_data(spec: StudySpec) -> Path:
    """The folder of data sets. Raises RequestError when the study's data set is not in it."""
    from training.data import DataError, default_root, require

    root = default_root().expanduser().absolute()
    try:
        require(spec.workload.data, root)
    except (DataError, ValueError) as error:
        raise request_error(error, f"scalestudy data fetch {spec.workload.data}") from error
    return root


def request_error(error: Exception, remedy: str) -> RequestError:
    """An error of `training`, whose text is "problem; remedy", as one of ours."""
    problem, _, given = str(error).rpartition("; ")
    return RequestError(problem or given, given if problem else remedy)


def check_callables(spec: StudySpec) -> None:
    """Raises RequestError when a model or data set that the spec names as `package.module:callable` is not there."""
    from training.registry import DATASETS, MODELS, resolve

    for field, table in (("model", MODELS), ("data", DATASETS)):
        name = getattr(spec.workload, field)
        if name in table:
            continue
        try:
            resolve(name, table)
        except ValueError as error:
            problem, _, remedy = str(error).rpartition("; ")
            raise RequestError(f"workload.{field}: {problem}", remedy) from error
        except Exception as error:  # the user's module may raise anything while it is imported
            raise RequestError(f"workload.{field}: {name}: {describe(error)}", "correct the module") from error


def new_study_id(spec: StudySpec) -> str:
    """The study's name and the time in UTC: what its folder is called, and what MLflow knows it by."""
    return f"{spec.name}-{datetime.now(UTC).strftime('%Y%m%dT%H%M%SZ')}"


def new_folder(spec: StudySpec, study_id: str, out: str | Path | None = None) -> StudyFolder:
    """The folder of a new study: `out`, else `<storage>/<study_id>`. Raises UnreachableError if it can't be."""
    if out is not None:
        path = Path(out).expanduser().absolute()
    else:
        path = base_folder() / Path(spec.storage).expanduser() / study_id
    if path.exists() and any(path.iterdir()) if path.is_dir() else path.exists():
        raise RequestError(f"--out: {path}: is there already", "name a folder that is new or empty")
    _check_writable(path)
    return StudyFolder(path)


def _check_writable(path: Path) -> None:
    """Finds the nearest folder that exists and tries to write there, leaving nothing behind."""
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    probe = existing / f".scalestudy-probe-{time.time_ns()}"
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        reason = error.strerror or str(error)
        raise UnreachableError(
            f"storage: {path}: can't be written ({reason})", "name a folder that you may write, or free some space"
        ) from error
