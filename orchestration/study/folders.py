"""A study's folder or URI: opened, locked and read; and the spec of a study that may have none yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scalestudy.experiments.plan.plan import PLAN_VERSION
from scalestudy.experiments.spec.addresses import is_uri
from scalestudy.experiments.spec.reading import find_study, load_study, study_from
from scalestudy.experiments.spec.spec_error import SpecError
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.orchestration.base.errors import RequestError, request_error
from scalestudy.orchestration.storage import mirror
from scalestudy.orchestration.storage.lock import StudyLock, lock_of
from scalestudy.orchestration.tracking.entries import StudyJournal
from scalestudy.orchestration.tracking.recorder import History, complete_trials

Source = str | Path | Mapping[str, Any] | StudySpec
"""A spec file, the name of a study of the catalogue, a dict with the content of a file, or the spec itself."""


def read_spec(source: Source, overrides: Sequence[str] = ()) -> StudySpec:
    """Return the spec of a path, a catalogue name, a dict or a spec. Raises SpecError with every problem."""
    if isinstance(source, StudySpec):
        source = {**source.to_dict(), "tracking": source.tracking.model_dump(mode="json")}  # with its password
    if isinstance(source, Mapping):
        from scalestudy.orchestration.study.callables import SOURCE, plain_spec

        return study_from(plain_spec(source), SOURCE, overrides)
    return load_study(find_study(str(source)), overrides)


def refuse_judged(spec: StudySpec, where: str) -> None:
    """Raise RequestError for a study of runs that others made. where: how an error names it."""
    if spec.judged is not None:
        problem = f"{where}: is of runs that others made, so what they trained is not known here"
        raise RequestError(problem, "to train, write a study of your own: scalestudy new NAME")


def read_trained_spec(source: Source, overrides: Sequence[str] = ()) -> StudySpec:
    """Do the same for a study that trains. Raises RequestError for one of runs that others made."""
    spec = read_spec(source, overrides)
    refuse_judged(spec, f"SPEC: {spec.name}")
    return spec


def open_folder(path: str | Path, use: mirror.Use = "read") -> StudyFolder:
    """Open a study's folder; for a URI, bring its copy here up to date. use: which copy.

    Raises RequestError for another folder, UnreachableError if the URI can't be read.
    """
    if is_uri(path):
        copy = mirror.fetch(mirror.mirrored(str(path), use))
        _check_version(copy)
        with readable(copy):
            complete_trials(copy, History.of(StudyJournal(copy).entries()))
        return copy
    folder = StudyFolder(Path(path))
    if not folder.plan_file.exists():
        raise RequestError(f"DIR: {path}: is not a study's folder (it has no plan.json)", "name one of scalestudy list")
    _check_version(folder)
    return folder


def _check_version(folder: StudyFolder) -> None:
    """Raise RequestError for a study that another version of scalestudy wrote: by its number, or by its spec's keys."""
    with readable(folder):
        version = folder.version
    if version != PLAN_VERSION:
        problem = f"its files have version {version}, and this scalestudy reads {PLAN_VERSION} (0.1 and 0.2 write 1)"
    else:
        try:
            spec_of(folder)
            return
        except SpecError as error:
            keys = [problem for problem in error.problems if problem.field]
            if not keys:
                raise  # the file is damaged
            problem = f"this scalestudy can't read its spec.yaml ({keys[0].what})"
    remedy = "read it with the scalestudy that wrote it, or run the study again"
    raise RequestError(f"DIR: {folder.address}: {problem}", remedy)


def lock_study(path: str | Path) -> StudyLock:
    """Return the lock of the study in a folder, or under a URI. Raises RequestError if there is no study."""
    return lock_of(mirror.check_study(mirror.mirrored(str(path), "work")) if is_uri(path) else open_folder(path))


def spec_of(folder: StudyFolder) -> StudySpec:
    """Return the resolved spec that a study ran with."""
    return read_spec(folder.spec_file)


@contextmanager
def readable(folder: StudyFolder) -> Iterator[None]:
    """Turn what can't be read in a study's folder into a RequestError."""
    try:
        yield
    except SpecError:
        raise  # its own message is better: file, line and field
    except (OSError, ValueError, KeyError) as error:
        raise request_error(error, "restore the file, or run the study again", f"DIR: {folder.address}") from error
