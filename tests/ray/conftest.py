"""What the tests of this folder share: one Ray, an empty MLflow store, and the study that most of them look at."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.experiments.study.journal import Entry, Journal
from scalestudy.orchestration.cluster import connection as clusters
from scalestudy.orchestration.study import study as studies
from scalestudy.orchestration.study.study import StudyResult
from tests.support.in_process import scalestudy
from tests.support.preloaded import preloaded_cluster
from tests.support.studies import write_spec
from tests.support.telling_models import SECRETS

CPUS = 4
ANSWERED = {
    "workload": {"model": "mlp", "data": "digits"},
    "train": {"epochs": 3},
    "targets": {"accuracy": [0.8]},
}
"""Sections with which the small study reaches its target, and not at its first evaluation: it names a cell."""


@pytest.fixture(scope="session")
def cluster(_own_environment):
    """The only Ray of these tests. Its workers know the secrets of `Telling`."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SECRETS.items():
            patch.setenv(name, value)
        with preloaded_cluster(CPUS) as cluster:
            patch.setattr(clusters, "_start", _refuse)
            yield cluster


@pytest.fixture(scope="session")
def ray_session(cluster):
    """The cluster, by the name that it has in other folders."""
    return cluster


def _refuse(*_: object, **__: object) -> None:
    raise AssertionError("tests/ray share one Ray: a test with a cluster of its own stands in tests/long")


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory) -> Path:
    """MLflow's database with its tables and nothing in them: it takes seconds to make."""
    from mlflow import MlflowClient

    file = tmp_path_factory.mktemp("store") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{file}").search_experiments()
    return file


@pytest.fixture
def place(tmp_path, monkeypatch, empty_store) -> Path:
    """The current folder, with an MLflow store in which nothing stands."""
    shutil.copy(empty_store, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def module_place(tmp_path_factory, empty_store) -> Path:
    """As `place`, for the studies of a module; it is not the current folder."""
    folder = tmp_path_factory.mktemp("studies")
    shutil.copy(empty_store, folder)
    return folder


@dataclass(frozen=True)
class SmallStudy:
    """The 2 × 2 study by the command line: where it ran, what it returned and printed."""

    place: Path
    result: StudyResult
    printed: subprocess.CompletedProcess[str]


@pytest.fixture(scope="session")
def small_study(cluster, empty_store, tmp_path_factory) -> SmallStudy:
    """Nobody changes it: a test that goes on with it takes a copy."""
    place = tmp_path_factory.mktemp("small")
    shutil.copy(empty_store, place)
    write_spec(place, **ANSWERED)
    result, printed = run_by_command("run", "study.yaml", "--address", "local", cwd=place)
    return SmallStudy(place, result, printed)


def run_by_command(*arguments: str, cwd: Path) -> tuple[StudyResult, subprocess.CompletedProcess[str]]:
    """`scalestudy run …` in this process: what `run_study` returned, and what the command printed."""
    results, run = [], studies.run_study
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(studies, "run_study", lambda *given, **named: results.append(run(*given, **named)) or results[0])
        printed = scalestudy(*arguments, cwd=cwd)
    assert results, printed.stderr
    return results[0], printed


@pytest.fixture
def interrupted(small_study, place) -> Callable[[Callable[[Entry], bool]], StudyFolder]:
    """Makes a copy of the small study as a driver left it that was killed before an entry of the journal.

    It lies in the current folder, whose MLflow store has nothing of it yet.
    """

    def cut(first: Callable[[Entry], bool]) -> StudyFolder:
        folder = cut_study(small_study.result.folder, place / "cut", first)
        address = json.loads(folder.address_file.read_text("utf-8"))
        folder.address_file.write_text(json.dumps({**address, "uri": f"sqlite:///{place}/mlflow.db"}), "utf-8")
        folder.cursor_file.write_text("0", "utf-8")
        return folder

    return cut


def cut_study(path: Path, copy: Path, first: Callable[[Entry], bool]) -> StudyFolder:
    """A copy of a study as a driver left it that was killed before this entry; with no such entry it is whole."""
    folder = StudyFolder(shutil.copytree(path, copy))
    entries = list(Journal(folder.journal_folder).entries())
    number = next((entry.number for entry in entries if first(entry)), None)
    if number is None:
        return folder
    kept = {entry.trial_id for entry in entries if entry.number < number and entry.type == "ended"}
    for entry in entries[number - 1 :]:
        (folder.journal_folder / f"{entry.number:08}.json").unlink()
    lines = folder.trials_file.read_text("utf-8").splitlines(keepends=True)
    folder.trials_file.write_text("".join(line for line in lines if json.loads(line)["trial_id"] in kept), "utf-8")
    folder.cursor_file.write_text(str(number - 1), "utf-8")
    return folder
