"""Commands for a study's folder and for a new spec: what is advised, what is written, what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from scalestudy.experiments.analysis import answer_lines, summarise
from scalestudy.experiments.spec.reading import STUDIES, catalogue
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.orchestration.base.errors import RequestError
from scalestudy.orchestration.commands.study_commands import (
    RunningNow,
    Status,
    advise,
    rebuild_report,
    status_lines,
    status_of,
    write_new_spec,
)
from scalestudy.orchestration.study.folders import read_spec
from tests.support.approved import approved
from tests.support.in_process import scalestudy
from tests.support.old_studies import unpack
from tests.support.synthetic_studies import TINY, folder_of, spec_of
from tests.support.trials import Law


def advised(path, **wishes):
    """What `recommend` says, as data and in words."""
    advice = advise(path, **wishes)
    return advice.data, advice.lines


@pytest.fixture
def folder(tmp_path):
    return folder_of(tmp_path / "tiny", TINY).path


def test_advice_from_a_folder(folder):
    advice, lines = advised(folder, by="time", max_gpus=1)
    assert lines[0].startswith("Choose ")
    assert "least time" in lines[0]
    assert advice["choice"]["num_gpus"] == 1


def test_an_answer_of_two_versions_of_the_code_says_so_in_advice_and_report(tmp_path):
    def told(trial):
        trial["fingerprint"] = {"mine": [str(trial["params"]["num_gpus"])]}

    words = "Trials ran with different versions of mine"
    folder = folder_of(tmp_path / "mixed", TINY, change=told)
    data, lines = advised(folder.path)
    assert [line for line in lines if line.startswith(words)] == [each["words"] for each in data["caveats"]] != []
    rebuild_report(folder.path)
    assert words in folder.report_file.read_text("utf-8")
    one = folder_of(tmp_path / "one", TINY)
    data, lines = advised(one.path)
    assert data["caveats"] == []
    assert words not in "".join(lines)


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
    advice, lines = advised(scaled)
    assert advice["predictions"] == summary["predictions"]
    assert [row["num_gpus"] for row in advice["predictions"]["rows"]][:4] == [1, 2, 4, 8]
    (told,) = [line for line in answer_lines(summary) if "8 workers measured" in line]
    assert lines[-1] == told
    assert sum(line.startswith("  Evidence – trained: 2 seeds") for line in lines) >= 1
    assert sum("Provisional: " in line for line in lines) == 1


def test_predictions_are_for_the_target_and_the_workers_that_are_asked_for(scaled):
    advice, lines = advised(scaled, accuracy=0.3, max_gpus=2)
    assert advice["predictions"]["target"] == advice["target"] == 0.3
    assert [row["num_gpus"] for row in advice["predictions"]["rows"]] == [1, 2]
    assert not any("measured would" in line or line.startswith("Beyond") for line in lines)
    assert json.loads(json.dumps(advice, allow_nan=False)) == json.loads(json.dumps(advice))


def test_a_folder_with_a_summary_of_version_1_opens(tmp_path):
    study = unpack("finished", tmp_path / "finished")
    study.write_json(study.summary_file, {**json.loads(study.summary_file.read_text("utf-8")), "version": 1})
    assert status_of(study.path).state == "finished"
    advice, lines = advised(study.path)
    assert advice["recommended"]["label"] in lines[0]
    rebuild_report(study.path)
    assert json.loads(study.summary_file.read_text("utf-8"))["version"] == 2


@pytest.mark.parametrize("by", ["time", "cost"])
def test_where_no_target_is_reached_nothing_is_called_the_least(folder, by):
    advice, lines = advised(folder, accuracy=0.999, by=by)
    assert advice["target"] is None
    assert advice["choice"]["label"]  # the most accurate
    assert lines[0].startswith("No cell reached a test accuracy of 0.999: the best, workers=1 batch=32 lr=0.2, came to")
    assert not any(line.startswith("Choose ") or "least" in line for line in lines)
    advice, lines = advised(folder, accuracy=0.11, by=by)
    assert (advice["target"], advice["choice"]) == (0.11, advice["best_accuracy"])
    assert lines[0].startswith("The cells that reached 0.11 met it at their first evaluation")


def test_a_target_of_another_metric_is_any_number(tmp_path):
    text = TINY.replace("data: digits", "data: digits, metric: mse, metric_mode: min").replace("[0.8]", "[0.5]")
    path = folder_of(tmp_path / "tiny", text).path
    advice, lines = advised(path, accuracy=25.0)
    assert advice["target"] == 25.0
    assert lines[0].startswith("The cells that reached 25 met it at their first evaluation")
    missed, lines = advised(path, accuracy=-3.0)
    assert missed["fastest"]["why"].startswith("no cell reached a test mse of -3: the best")
    assert any(line.startswith("Best test mse: ") for line in lines)
    with pytest.raises(RequestError, match="--accuracy: inf") as caught:
        advised(path, accuracy=float("inf"))
    assert "test mse" in caught.value.remedy


def test_a_status_in_words():
    """The study's time has the words of the report."""
    trained = RunningNow(
        name="workers=2 batch=64", trial_id="a", attempt=2, epoch=3, epochs=8, period="epoch", metric=0.81234
    )
    current = Status(
        study="x-1",
        state="finished",
        trials={"planned": 3, "at_target": 1, "finished": 1},
        running=(),
        best={"value": 0.91, "trial": "workers=1 batch=32"},
        wall_seconds=108.1,
        holder=None,
        silent_seconds=None,
        unsent=0,
        folder="runs/x 1",
    )
    none = {"trials": {"planned": 3}, "best": None, "running": (replace(trained, attempt=1, epoch=0, metric=None),)}
    pages = {
        "finished": current,
        "finished, and MLflow lacks events": replace(current, unsent=14),
        "running": replace(current, state="running", running=(trained,), holder="process 7 on box", silent_seconds=0.5),
        "interrupted": replace(current, state="interrupted", **none),
    }
    text = "".join(f"# {name}\n" + "\n".join(status_lines(page)) + "\n" for name, page in pages.items())
    approved(text, Path(__file__).parent / "status.txt")


# --- `scalestudy new`: where the file lies, and what is refused without a trace ---------------------------------------


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current folder, with a folder in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two words").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("given", "file", "name"),
    [
        ("mine", "mine.yaml", "mine"),
        ("mine.yaml", "mine.yaml", "mine"),
        ("mine.yml", "mine.yml", "mine"),
        ("v1.5", "v1.5.yaml", "v1.5"),
        ("two words/mine", "two words/mine.yaml", "mine"),
        ("two words/../mine.yaml", "two words/../mine.yaml", "mine"),
        ("digits-quick", "digits-quick.yaml", "digits-quick"),
    ],
)
def test_where_it_lies_and_what_it_is_named(here, given, file, name):
    assert str(write_new_spec(given)) == file
    assert read_spec(file).name == name


def test_its_commands_name_the_file(here):
    text = write_new_spec("two words/mine").read_text("utf-8")
    assert "scalestudy run 'two words/mine.yaml'" in text
    assert "NAME" not in text


@pytest.mark.parametrize("study", catalogue())
def test_a_study_of_the_catalogue_begins_one_of_another_name(here, study):
    """The same study but for its name, with the comments that say what it asks."""
    theirs, mine = (STUDIES / f"{study}.yaml").read_text("utf-8"), write_new_spec("two words/12", study)
    assert str(mine) == "two words/12.yaml"
    assert read_spec(mine) == read_spec(study).model_copy(update={"name": "12"})
    kept = [line for line in theirs.splitlines() if line != f"name: {study}"]
    assert [line for line in mine.read_text("utf-8").splitlines() if line in kept] == kept


def test_the_command_line_writes_one_and_says_what_comes_next(here):
    done = scalestudy("new", "two words/mine", cwd=here)
    assert (done.returncode, done.stderr) == (0, "")
    assert "two words/mine.yaml; to check it: scalestudy validate 'two words/mine.yaml'" in done.stdout
    refused = scalestudy("new", "-x", cwd=here)
    assert refused.returncode == 2
