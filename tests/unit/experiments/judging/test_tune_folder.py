"""Ray Tune's results as its files have them, whole and torn."""

import json
import math
import shutil
from pathlib import Path

import pytest

import tests.support
from scalestudy.experiments.judging.runs import SourceError
from scalestudy.experiments.judging.tune_folder import read_tune

STARTED = 1_700_000_000


def result(trial_id, iteration, accuracy, **more):
    """A result as Tune fills it in."""
    return {
        "accuracy": accuracy,
        "timestamp": STARTED + 10 * iteration,
        "done": False,
        "training_iteration": iteration,
        "trial_id": trial_id,
        "date": "2023-11-14_22-13-20",
        "time_this_iter_s": 10.0,
        "time_total_s": 10.0 * iteration,
        "pid": 7,
        "hostname": "node1",
        "node_ip": "10.0.0.1",
        "config": {"train_loop_config": {"lr": 0.1}},
        "time_since_restore": 10.0 * iteration,
        "iterations_since_restore": iteration,
        **more,
    }


def results(trial_id, values, **last):
    found = [result(trial_id, place, value) for place, value in enumerate(values, start=1)]
    found[-1] |= last
    return found


def write_trial(experiment, trial_id, found, config=None):
    folder = experiment / f"train_{trial_id}_0_lr=0.1_2023-11-14_22-13-20"
    folder.mkdir(parents=True)
    (folder / "params.json").write_text(json.dumps(config or {"train_loop_config": {"lr": 0.1, "seed": 3}}))
    (folder / "result.json").write_text("".join(json.dumps(each) + "\n" for each in found))
    return folder


def write_states(experiment, statuses, criteria=None, name="experiment_state-2023-11-14_22-13-20.json"):
    trials = [
        {"trial_id": trial_id, "status": status, "stopping_criterion": criteria or {}}
        for trial_id, status in statuses.items()
    ]
    (experiment / name).write_text(json.dumps({"trial_data": [[json.dumps(trial), "{}"] for trial in trials]}))


def read(path):
    said = []
    return read_tune(path, said.append), said


def test_a_trial(tmp_path):
    write_trial(tmp_path / "exp", "a_00000", results("a_00000", [0.5, 0.7]))
    [run], said = read(tmp_path / "exp")
    assert run.name == "a_00000"
    assert run.where == "train_a_00000_0_lr=0.1_2023-11-14_22-13-20, result.json"
    assert run.values == {"train_loop_config/lr": 0.1, "train_loop_config/seed": 3, "hostname": "node1"}
    assert list(run.history) == [
        {"accuracy": value, "timestamp": STARTED + at, "training_iteration": place, "time_total_s": float(at)}
        for place, (value, at) in enumerate(((0.5, 10), (0.7, 20)), start=1)
    ]
    assert (run.started, run.stopped, run.ended) == (STARTED, STARTED + 20, None)
    assert not said


def test_one_trials_folder_and_the_folder_of_experiments(tmp_path):
    folder = write_trial(tmp_path / "all" / "exp", "a_00000", results("a_00000", [0.5]))
    assert read(folder)[0] == read(folder.parent)[0] == read(tmp_path / "all")[0]


def test_what_is_nested_in_a_result(tmp_path):
    write_trial(tmp_path, "a_00000", [result("a_00000", 1, 0.5, val={"loss": 2.5, "by_class": [1, 2]})])
    [run], _ = read(tmp_path)
    assert {"val/loss": 2.5, "val/by_class": "[1, 2]"}.items() <= run.history[0].items()


def test_not_a_number(tmp_path):
    write_trial(tmp_path, "a_00000", [result("a_00000", 1, math.nan), result("a_00000", 2, "null")])
    [run], _ = read(tmp_path)
    assert all(math.isnan(row["accuracy"]) for row in run.history)


def test_a_torn_last_line(tmp_path):
    folder = write_trial(tmp_path, "a_00000", results("a_00000", [0.5, 0.7]))
    file = folder / "result.json"
    file.write_text(file.read_text()[:-30])
    [run], said = read(tmp_path)
    assert len(run.history) == 1
    assert said == [f"{folder.name}, result.json: line 2 ends in the middle, and is left out"]


def test_a_line_that_is_no_json(tmp_path):
    folder = write_trial(tmp_path, "a_00000", results("a_00000", [0.5, 0.7]))
    file = folder / "result.json"
    file.write_text("{oops\n" + file.read_text())
    [run], said = read(tmp_path)
    assert len(run.history) == 2
    assert said == [f"{folder.name}, result.json: line 1 is no JSON, and is left out"]


@pytest.mark.parametrize("left", [None, ""], ids=["gone", "empty"])
def test_the_table_where_there_are_no_lines(tmp_path, left):
    folder = write_trial(tmp_path, "a_00000", [])
    (folder / "result.json").unlink() if left is None else None
    (folder / "params.json").unlink()
    (folder / "progress.csv").write_text(
        "accuracy,timestamp,done,training_iteration,trial_id,time_total_s,hostname,iterations_since_restore,config/lr\n"
        f'0.5,{STARTED + 10},False,1,a_00000,10.0,"node, 1",1,0.1\n'
        f"nan,{STARTED + 20},False,2,a_00000,20.0,node1,2,0.1\n"
        f"0.8,{STARTED + 30},Fal"
    )
    [run], said = read(tmp_path)
    assert run.where == f"{folder.name}, progress.csv"
    assert [row["training_iteration"] for row in run.history] == [1, 2]
    assert math.isnan(run.history[1]["accuracy"])
    assert run.started == STARTED
    assert said == [f"{folder.name}, progress.csv: row 4 has 3 of 9 cells; left out"]


def test_a_configuration_that_only_the_results_have(tmp_path):
    folder = write_trial(tmp_path, "a_00000", results("a_00000", [0.5]))
    (folder / "params.json").write_text("{")
    [run], said = read(tmp_path)
    assert run.values["train_loop_config/lr"] == 0.1
    assert said == [f"{folder.name}, params.json: can't be read, and is left out"]


def test_a_trial_without_results(tmp_path):
    folder = write_trial(tmp_path, "a_00000", [])
    write_states(tmp_path, {"a_00000": "RUNNING"})
    [run], _ = read(tmp_path)
    assert (list(run.history), run.ended, run.started) == ([], "running", None)
    assert run.where == f"{folder.name}, params.json"


def test_results_made_again_after_a_restart(tmp_path):
    again = [result("a_00000", 2, 0.8, iterations_since_restore=1), result("a_00000", 3, 0.9)]
    folder = write_trial(tmp_path, "a_00000", [*results("a_00000", [0.5, 0.6, 0.7]), *again])
    [run], said = read(tmp_path)
    assert [row["accuracy"] for row in run.history] == [0.5, 0.8, 0.9]
    assert said == [f"{folder.name}, result.json: 2 results that were made again after a restart are left out"]


LONG, SHORT = [0.1, 0.2, 0.3], [0.1, 0.2]
DONE = {"done": True}
ENDINGS = {
    # results of the trial beside one of three iterations, its status, whether it has an error.txt, and how it ended
    "returned": (results("b_00000", SHORT), "TERMINATED", False, "finished"),
    "failed": (results("b_00000", SHORT), "ERROR", True, "failed"),
    "failed, and no state": (results("b_00000", SHORT), None, True, "failed"),
    "failed, then finished": (results("b_00000", LONG, **DONE), None, True, "finished"),
    "running": (results("b_00000", SHORT), "RUNNING", False, "running"),
    "paused": (results("b_00000", SHORT), "PAUSED", False, "running"),
    "no state": (results("b_00000", SHORT), None, False, None),
    "cut by a scheduler": (results("b_00000", SHORT, **DONE), "TERMINATED", False, "cut"),
    "cut, and no state": (results("b_00000", SHORT, **DONE), None, False, None),
    "at its limit": (results("b_00000", LONG, **DONE), "TERMINATED", False, "finished"),
    "at its target": (results("b_00000", [0.1, 0.9], **DONE), "TERMINATED", False, "finished"),
    "ended after the state was written": (results("b_00000", LONG, **DONE), "RUNNING", False, "finished"),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_how_a_trial_ended(tmp_path, name):
    found, status, has_error, expected = ENDINGS[name]
    write_trial(tmp_path, "a_00000", results("a_00000", LONG))
    folder = write_trial(tmp_path, "b_00000", found)
    if status:
        write_states(tmp_path, {"a_00000": "TERMINATED", "b_00000": "PENDING"}, name="experiment_state-2022.json")
        write_states(tmp_path, {"a_00000": "TERMINATED", "b_00000": status}, {"accuracy": 0.9})
    if has_error:
        (folder / "error.txt").write_text("Failure # 1")
    runs, said = read(tmp_path)
    assert runs[1].ended == expected
    assert not said


def test_a_state_of_another_version(tmp_path):
    write_trial(tmp_path, "a_00000", results("a_00000", SHORT))
    (tmp_path / "experiment_state-2023.json").write_text('{"trial_data": ["{}", ["{}"], [1], []]}')
    assert read(tmp_path)[0][0].ended is None


@pytest.mark.parametrize(
    ("made", "words"), [(None, "is no folder"), ([], "has no trial of Ray Tune"), (["x.txt"], "has no trial")]
)
def test_a_folder_that_is_none(tmp_path, made, words):
    folder = tmp_path / "exp"
    if made is not None:
        folder.mkdir()
        for name in made:
            (folder / name).write_text("")
    with pytest.raises(SourceError, match=words) as caught:
        read_tune(folder)
    assert str(folder) in caught.value.what
    assert caught.value.remedy


RECORDED = Path(tests.support.__file__).parent / "tune_results"


def test_a_tuner_of_a_plain_function():
    runs, said = read(RECORDED / "plain")
    rates = {run.values["train_loop_config/lr"]: run for run in runs}
    assert {rate: (run.ended, len(run.history)) for rate, run in rates.items()} == {
        **{0.1: ("finished", 6), 0.2: ("finished", 6), 0.6: ("cut", 2), 0.8: ("failed", 1)}
    }
    assert rates[0.1].values == {
        **{"train_loop_config/lr": 0.1, "train_loop_config/seed": 0, "train_loop_config/batch_size": 64},
        "hostname": "node1",
    }
    assert [row["val/accuracy"] for row in rates[0.1].history] == [0.6, 0.7, 0.8, 0.9, 0.99, 0.99]
    assert math.isnan(rates[0.8].history[0]["loss"])
    times = [row["time_total_s"] for row in rates[0.1].history]
    assert times == sorted(times)
    assert rates[0.1].stopped - rates[0.1].started == pytest.approx(times[-1], abs=1)
    assert not said


def test_a_torch_trainer_in_a_tune_function():
    [first, second], said = read(RECORDED / "trainer")
    assert first.values.items() >= {"num_workers": 2, "train_loop_config/lr": 0.1}.items()
    assert [(row["step"], row["val_accuracy"]) for row in first.history] == [
        (100, 0.3),
        (200, 0.6),
        (300, pytest.approx(0.9)),
    ]
    assert (first.ended, second.ended, len(second.history)) == ("finished", "running", 0)
    assert second.values["train_loop_config/seed"] == 1
    assert not said


@pytest.mark.parametrize("experiment", ["plain", "trainer"])
def test_the_table_says_what_the_lines_say(tmp_path, experiment):
    lines, _ = read(RECORDED / experiment)
    copy = shutil.copytree(RECORDED / experiment, tmp_path / "copy")
    for file in copy.rglob("result.json"):
        file.unlink()
    table, said = read(copy)
    rows, known_rows = ([repr(sorted(row.items())) for run in runs for row in run.history] for runs in (table, lines))
    assert rows == known_rows
    known = [(run.name, run.values, run.ended, run.started) for run in lines if run.history]
    assert [(run.name, run.values, run.ended, run.started) for run in table if run.history] == known
    assert not said
