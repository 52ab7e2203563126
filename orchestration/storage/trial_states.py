"""What a trial's training leaves in storage: checkpoints, and a model that may be the best."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from scalestudy.experiments.spec.addresses import is_uri, parent_and_name
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.orchestration.base.errors import UnreachableError
from scalestudy.orchestration.storage.arrow_store import ArrowByteStore, open_byte_store

logger = logging.getLogger(__name__)


class TrialStates(Protocol):
    """The checkpoints and models of a study's trials, by trial id. What can't be deleted stays and costs only room."""

    def has_model(self, trial_id: str) -> bool:
        """Whether a trial's model is kept. Raises OSError where the storage fails."""

    def forget_checkpoints(self, trial_id: str) -> None:
        """Delete the checkpoints of an ended trial, which will not continue; keep its model."""

    def forget(self, trial_id: str) -> None:
        """Delete both checkpoints and model."""


def states_of(folder: StudyFolder) -> TrialStates:
    """Return the states of a study, in its folder or in its store."""
    return StoredStates(folder) if folder.mirror else LocalStates(folder)


class LocalStates:
    """States in the study's folder. See TrialStates."""

    def __init__(self, folder: StudyFolder) -> None:
        self._folder = folder

    def has_model(self, trial_id: str) -> bool:
        """See TrialStates."""
        return self._folder.model_file(trial_id).exists()

    def forget_checkpoints(self, trial_id: str) -> None:
        """See TrialStates."""
        folder = self._folder.checkpoints(trial_id)
        for left in folder.glob("*/"):
            shutil.rmtree(left, ignore_errors=True)
        with suppress(OSError):
            folder.rmdir()  # unless the model is in it

    def forget(self, trial_id: str) -> None:
        """See TrialStates."""
        shutil.rmtree(self._folder.checkpoints(trial_id), ignore_errors=True)


class StoredStates:
    """States in an object store, where the workers put them. See TrialStates."""

    def __init__(self, folder: StudyFolder) -> None:
        self._folder = folder

    def has_model(self, trial_id: str) -> bool:
        """See TrialStates."""
        name = self._folder.model_file(trial_id).name
        return name in self._store(trial_id).names(name)

    def forget_checkpoints(self, trial_id: str) -> None:
        """See TrialStates."""
        self._clear(trial_id, keep=self._folder.model_file(trial_id).name)

    def forget(self, trial_id: str) -> None:
        """See TrialStates."""
        self._clear(trial_id)

    def _store(self, trial_id: str) -> ArrowByteStore:
        with _silence_as_oserror():
            return ArrowByteStore(self._folder.place_of(self._folder.checkpoints(trial_id)))

    def _clear(self, trial_id: str, keep: str | None = None) -> None:
        try:
            self._store(trial_id).clear(keep)
        except OSError as error:
            logger.warning("the checkpoints of %s are still there: %s", trial_id, error)


def forget_run(run: str) -> None:
    """Delete the folder of a Ray Train run, with its checkpoints. What can't be deleted stays and costs only room.

    run: path or URI.
    """
    try:
        with _silence_as_oserror():
            ArrowByteStore(run).clear()
    except OSError as error:
        logger.warning("the checkpoints in %s are still there: %s", run, error)


@contextmanager
def written_to(where: str) -> Iterator[Path]:
    """Yield a file to write; its content goes to the path or URI `where` unless the block raises.

    Raises OSError where the storage fails or does not answer.
    """
    if not is_uri(where):
        Path(where).parent.mkdir(parents=True, exist_ok=True)
        yield Path(where)
        return
    place, name = parent_and_name(where)
    with tempfile.TemporaryDirectory(prefix="scalestudy-") as aside:
        yield Path(aside, name)
        with _silence_as_oserror():
            open_byte_store(place).write(name, Path(aside, name).read_bytes())


@contextmanager
def read_from(where: str) -> Iterator[Path]:
    """Yield a file of this machine with the content of a path or a URI. Raises OSError where the storage fails."""
    if not is_uri(where):
        yield Path(where)
        return
    place, name = parent_and_name(where)
    with tempfile.TemporaryDirectory(prefix="scalestudy-") as aside:
        with _silence_as_oserror():
            Path(aside, name).write_bytes(open_byte_store(place).read(name))
        yield Path(aside, name)


@contextmanager
def _silence_as_oserror() -> Iterator[None]:
    """Turn a storage that can't be opened into an OSError, which one that fails later raises too."""
    try:
        yield
    except UnreachableError as error:
        raise OSError(error.problem) from error
