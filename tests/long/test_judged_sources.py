"""`scalestudy judge` on what the libraries of others wrote themselves: what it says is what the trainings kept."""

from __future__ import annotations

import json
import shutil
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from scalestudy.experiments.spec.reaching import arrival
from scalestudy.orchestration.base.errors import ExitCode
from tests.long.trainings_of_others import KEPT
from tests.support.studies import ran, scalestudy, tree
from tests.support.tracking_server import TrackingServer

pytestmark = [pytest.mark.timeout(900), pytest.mark.chaos]  # minutes of Ray and of MLflow
Cell = tuple[int, int, float]
"""num_gpus, batch size, learning rate."""


@dataclass(frozen=True)
class Made:
    """A source, in `source` of a folder, and what its trainings kept of themselves."""

    folder: Path

    @property
    def source(self) -> Path:
        return self.folder / "source"

    def times(self, target: float) -> dict[Cell, list[float]]:
        """Seconds to a target of each training that reached it, by cell."""
        found = defaultdict(list)
        for line in (self.folder / KEPT).read_text("utf-8").splitlines():
            kept = json.loads(line)
            curve = [(0, 0.0, None), *kept["curve"]]
            place = arrival([value for _, _, value in curve[1:]], target, "max")
            times = found[kept["num_gpus"], kept["batch_size"], kept["learning_rate"]]
            if place is not None:
                (_, before, low), (_, after, high) = curve[place : place + 2]
                times.append(after if low is None else before + (target - low) / (high - low) * (after - before))
        return dict(found)


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    """Makes a source by a program of its own."""

    def made(name: str, *arguments: str, **variables: str) -> Made:
        folder = tmp_path_factory.mktemp(name)
        words = [sys.executable, "-m", "tests.long.trainings_of_others", name, folder, *arguments]
        done = ran(words, seconds=600, **variables)
        assert done.returncode == 0, done.stderr[-5000:]
        return Made(folder)

    return made


def answer(place: Path, *arguments: str, says: Mapping[str, str], **variables: str) -> dict[str, Any]:
    """The summary of what is judged, once each option has been said that a refusal named.

    says: what to put in an option's place for NAME or VALUE, by the option as it is named.
    """
    left, said = dict(says), []
    done = scalestudy("judge", *arguments, cwd=place, **variables)
    while done.returncode == ExitCode.BAD_REQUEST and left:
        assert (done.stdout, done.stderr.count("\n")) == ("", 1)
        assert not (place / "runs").exists()
        named = [option for option in left if option in done.stderr]
        assert named, done.stderr
        for option in named:
            said += option.replace("VALUE", left.pop(option)).split(" ", 1)
        done = scalestudy("judge", *arguments, *said, cwd=place, **variables)
    assert done.returncode == ExitCode.DONE, done.stderr
    assert (done.stderr, left) == ("", {})
    [folder] = (place / "runs").iterdir()
    return json.loads((folder / "summary.json").read_text("utf-8"))


def check(summary: Mapping[str, Any], made: Made, target: float, *, late: float) -> None:
    """Compares a summary with what the trainings kept. late: seconds that the source hears later of an evaluation."""
    kept = made.times(target)
    rows = {place_of(row): row for row in summary["time_to_target"]}
    assert rows.keys() == kept.keys()
    assert summary["judged"]["left_out"] == []
    assert summary["judged"]["runs"] == len((made.folder / KEPT).read_text("utf-8").splitlines())
    told = {}
    for cell, times in kept.items():
        assert rows[cell]["reached"] == len(times), cell
        if rows[cell]["measured_seconds"] is not None and len(times) == rows[cell]["n_seeds"]:
            told[cell] = rows[cell]["measured_seconds"]
            assert told[cell] == pytest.approx(statistics.median(times), rel=0.02, abs=late), cell
    assert len(told) >= len(kept) / 2
    fastest = place_of(summary["recommendation"]["fastest"])
    least = min(statistics.median(kept[cell]) for cell in told)
    assert statistics.median(kept[fastest]) <= 1.5 * least + late


def place_of(row: Mapping[str, Any]) -> Cell:
    params = row["params"]
    return params["num_gpus"], params["batch_size"], params["learning_rate"]


TARGET = 0.85
PLAIN = {"--set num_gpus=VALUE": "1"}


@pytest.fixture(scope="module")
def plain(make):
    return make("plain_loop")


def test_a_plain_loop_under_mlflow_s_autolog(plain, tmp_path):
    before = tree(plain.source)
    uri = f"sqlite:///{plain.source / 'mlflow.db'}"
    arguments = ("mlflow:digits, plain", "--target", f"val_acc={TARGET}", "--tracking-uri", uri)
    check(answer(tmp_path, *arguments, says=PLAIN), plain, TARGET, late=0.1)
    assert tree(plain.source) == before


def test_a_folder_mlruns(make, tmp_path):
    folder = tmp_path / "store" / "mlruns"
    made = make("plain_loop", folder.as_uri(), MLFLOW_ALLOW_FILE_STORE="true")
    before = tree(folder)
    place = tmp_path / "here"
    place.mkdir()
    refused = scalestudy("judge", folder, "--target", f"val_acc={TARGET}", cwd=place)
    assert refused.returncode == ExitCode.BAD_REQUEST
    assert f"scalestudy judge mlflow:EXPERIMENT --tracking-uri {folder}" in refused.stderr
    arguments = ("mlflow:digits, plain", "--target", f"val_acc={TARGET}", "--tracking-uri", str(folder))
    check(answer(place, *arguments, says=PLAIN), made, TARGET, late=0.1)
    assert tree(folder) == before


def test_a_server_that_asks_for_a_password(plain, tmp_path):
    (tmp_path / "server").mkdir()
    server = TrackingServer(tmp_path / "server", password="correct-horse-1")
    shutil.copy(plain.source / "mlflow.db", tmp_path / "server" / "server.db")
    server.start()
    try:
        arguments = ("mlflow:digits, plain", "--target", f"val_acc={TARGET}", "--tracking-uri", server.uri)
        for login in ({}, {**server.login, "MLFLOW_TRACKING_PASSWORD": "battery-staple-2"}):
            refused = scalestudy("judge", *arguments, cwd=tmp_path, HOME=str(tmp_path), **login)
            assert (refused.returncode, refused.stderr.count("\n")) == (ExitCode.UNREACHABLE, 1)
            assert "password" in refused.stderr
            assert not (tmp_path / "runs").exists()
        check(answer(tmp_path, *arguments, says=PLAIN, **server.login), plain, TARGET, late=0.1)
    finally:
        server.stop()


def test_fits_of_scikit_learn_are_a_row_a_run(make, tmp_path):
    made = make("sklearn_fits")
    uri = f"sqlite:///{made.source / 'mlflow.db'}"
    arguments = ("mlflow:digits, fits", "--target", "training_accuracy_score=0.9", "--tracking-uri", uri)
    found = answer(tmp_path, *arguments, says={**PLAIN, "--set stop=end": ""})
    assert found["judged"]["runs"] == 8
    assert {place_of(row) for row in found["time_to_target"]} == {
        (1, batch, rate) for batch in (32, 64) for rate in (0.1, 0.3)
    }
    assert "has its result alone" in found["recommendation"]["fastest"]["why"]


def test_ray_s_setup_mlflow(make, tmp_path):
    made = make("ray_mlflow")
    uri = f"sqlite:///{made.source / 'mlflow.db'}"
    arguments = ("mlflow:digits, ray", "--target", f"accuracy={TARGET}", "--tracking-uri", uri)
    check(answer(tmp_path, *arguments, says={}), made, TARGET, late=0.1)


def test_a_tuner_of_plain_functions(make, tmp_path):
    made = make("tune_functions")
    before = tree(made.source)
    found = answer(tmp_path, str(made.source / "functions"), "--target", f"accuracy={TARGET}", says=PLAIN)
    check(found, made, TARGET, late=0.5)
    assert tree(made.source) == before


def test_a_torch_trainer_in_a_tune_function(make, tmp_path):
    """No file says that it had two workers."""
    made = make("tune_trainers")
    before = tree(made.source)
    found = answer(
        tmp_path,
        str(made.source / "trainers"),
        "--target",
        f"accuracy={TARGET}",
        says={"--set num_gpus=VALUE": "2"},
    )
    check(found, made, TARGET, late=2.0)
    assert tree(made.source) == before
