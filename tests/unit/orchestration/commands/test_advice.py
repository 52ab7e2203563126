"""`scalestudy recommend`: a study's folder and the user's wishes."""

import json

import pytest

from scalestudy.experiments.analysis import answer_lines, summarise
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.orchestration.base.errors import RequestError
from scalestudy.orchestration.commands.folder import advise
from tests.support.synthetic_studies import folder_of, spec_of
from tests.support.trials import Law

SPEC = """
name: tiny
workload: {model: lenet, data: digits}
train: {epochs: 8}
sweep: {num_gpus: [1, 2], batch_size: [32], learning_rate: [0.1, 0.2]}
targets: {accuracy: [0.8]}
"""
WISHES = {"accuracy": None, "max_gpus": None, "price": None, "by": None}


@pytest.fixture
def folder(tmp_path):
    return folder_of(tmp_path / "tiny", SPEC).path


def test_advice_from_a_folder(folder):
    advice, lines = advise(folder, **{**WISHES, "by": "time", "max_gpus": 1})
    assert lines[0].startswith("Choose ")
    assert "least time" in lines[0]
    assert advice["choice"]["num_gpus"] == 1


SCALED = """
name: scaled
workload: {model: lenet, data: digits}
train: {epochs: 8}
sweep: {num_gpus: [1, 2, 4, 8], batch_size: [32, 64, 128], learning_rate: [0.1, 0.2, 0.4], seed: [0, 1]}
targets: {accuracy: [0.5], price_per_gpu_hour: 2}
"""


@pytest.fixture(scope="module")
def scaled(tmp_path_factory):
    return folder_of(tmp_path_factory.mktemp("runs") / "scaled", SCALED, Law(noise=0.02, learning=100)).path


def test_it_tells_what_more_workers_would_bring_as_the_summary_does(scaled):
    folder = StudyFolder(scaled)
    summary = summarise(spec_of(SCALED), folder.read_plan(), folder.read_trials())
    advice, lines = advise(scaled, **WISHES)
    assert advice["predictions"] == summary["predictions"]
    assert [row["num_gpus"] for row in advice["predictions"]["rows"]][:4] == [1, 2, 4, 8]
    (told,) = [line for line in answer_lines(summary) if "8 workers measured" in line]
    assert lines[-1] == told
    assert sum(line.startswith("  Evidence – measured: 2 seeds") for line in lines) >= 1
    assert sum("Provisional: " in line for line in lines) == 1


def test_predictions_are_for_the_target_and_the_workers_that_are_asked_for(scaled):
    advice, lines = advise(scaled, **{**WISHES, "accuracy": 0.3, "max_gpus": 2})
    assert advice["predictions"]["target"] == advice["target"] == 0.3
    assert [row["num_gpus"] for row in advice["predictions"]["rows"]] == [1, 2]
    assert not any("measured would" in line or line.startswith("Beyond") for line in lines)
    assert json.loads(json.dumps(advice, allow_nan=False)) == json.loads(json.dumps(advice))


@pytest.mark.parametrize("by", ["time", "cost"])
def test_where_no_target_is_reached_nothing_is_called_the_least(folder, by):
    advice, lines = advise(folder, **{**WISHES, "accuracy": 0.999, "by": by})
    assert advice["target"] is None
    assert advice["choice"]["label"]  # the most accurate
    assert lines[0] == "No cell reached a test accuracy of 0.999."
    assert not any(line.startswith("Choose ") or "least" in line for line in lines)


@pytest.mark.parametrize(
    ("wish", "value"),
    [
        ("accuracy", 0.0),
        ("accuracy", 95),
        ("max_gpus", 0),
        ("price", -1.0),
        ("price", float("nan")),
        ("by", "luck"),
        ("accuracy", float("nan")),
    ],
)
def test_a_wish_that_can_not_be_is_refused(folder, wish, value):
    option = "--" + wish.replace("_", "-")
    with pytest.raises(RequestError, match=f"{option}: {value}") as caught:
        advise(folder, **{**WISHES, wish: value})
    assert caught.value.remedy


def test_a_target_of_another_metric_is_any_number(tmp_path):
    text = SPEC.replace("data: digits", "data: digits, metric: mse, metric_mode: min").replace("[0.8]", "[0.5]")
    path = folder_of(tmp_path / "tiny", text).path
    advice, lines = advise(path, **{**WISHES, "accuracy": 25.0})
    assert advice["target"] == 25.0
    assert "to 25 test mse" in lines[0]
    missed, lines = advise(path, **{**WISHES, "accuracy": -3.0})
    assert missed["fastest"]["why"] == "no cell reached a test mse of -3"
    assert any(line.startswith("Best test mse: ") for line in lines)
    with pytest.raises(RequestError, match="--accuracy: inf") as caught:
        advise(path, **{**WISHES, "accuracy": float("inf")})
    assert "test mse" in caught.value.remedy


def test_another_folder_is_refused(tmp_path):
    with pytest.raises(RequestError, match="is not a study's folder"):
        advise(tmp_path, **WISHES)
    assert list(tmp_path.iterdir()) == []
