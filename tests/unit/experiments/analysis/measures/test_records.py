"""Damaged lines of `trials.jsonl` do not stop a report."""

import json

import pytest

from scalestudy.experiments.analysis import recommend, summarise
from scalestudy.experiments.analysis.measures.records import PHASES, epochs_of, usable
from scalestudy.experiments.report import write_report
from scalestudy.training import records
from tests.support.report_pages import check
from tests.support.synthetic_studies import folder_of, study_of

TEXT = """
    name: x
    train: {epochs: 5}
    targets: {accuracy: [0.3]}
    sweep: {num_gpus: [1, 2], batch_size: [32, 64], learning_rate: [0.1, 0.2], seed: [0, 1]}
"""


def without(key):
    def change(trial):
        del trial["params"][key]

    return change


def with_value(key, value):
    return lambda trial: trial["params"].update({key: value})


DAMAGES = {
    "no rate": without("learning_rate"),
    "no seed": without("seed"),
    "no workers": without("num_gpus"),
    "no batch": without("batch_size"),
    "rate in words": with_value("learning_rate", "high"),
    "rate null": with_value("learning_rate", None),
    "no whole workers": with_value("num_gpus", 1.5),
    "workers zero": with_value("num_gpus", 0),
    "seed in words": with_value("seed", "one"),
    "params null": lambda trial: trial.update(params=None),
    "params a list": lambda trial: trial.update(params=[1]),
    "unknown status": lambda trial: trial.update(status="lost"),
    "status null": lambda trial: trial.update(status=None),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_an_incomplete_record_is_left_out_and_told(damage):
    spec, plan, trials = study_of(TEXT)
    damage(trials[3])
    summary = summarise(spec, plan, trials)
    json.dumps(summary, allow_nan=False)
    kept = summarise(spec, plan, trials[:3] + trials[4:])
    assert summary["cells"] == kept["cells"]
    assert summary["timings"] == kept["timings"]
    assert (summary["trials"]["finished"], summary["trials"]["not_run"]) == (15, 0)
    assert summary["caveats"][0].startswith("1 record of trials.jsonl lacks")
    assert recommend(plan, trials, targets=[0.3])["choice"] == recommend(plan, usable(trials), targets=[0.3])["choice"]


def test_the_report_is_written_all_the_same(tmp_path):
    folder = folder_of(tmp_path / "x", TEXT.replace("seed: [0, 1]", "seed: [0, 1, 2, 3]"))
    trials = folder.read_trials()
    damages = [*DAMAGES.values(), lambda trial: trial["epochs"][1].pop("epoch")]
    for damage, trial in zip(damages, trials, strict=False):  # a damage a trial; the others are whole
        damage(trial)
    folder.trials_file.unlink()
    for trial in trials:
        folder.append_trial(trial)
    page = check(write_report(folder).read_text("utf-8"))
    assert f"{len(DAMAGES)} records of trials.jsonl lack" in page.shown


def test_whole_records_are_as_they_were():
    _, _, trials = study_of(TEXT)
    assert usable(trials) == trials


@pytest.mark.parametrize("damage", [lambda epoch: epoch.pop("epoch"), lambda epoch: epoch.update(epoch=None)])
def test_epochs_without_a_number_have_that_of_their_place(damage):
    spec, plan, trials = study_of(TEXT)
    truth = summarise(spec, plan, trials)
    for trial in trials:
        for epoch in trial["epochs"]:
            damage(epoch)
    assert summarise(spec, plan, trials) == truth


def test_what_is_no_record_of_an_epoch_is_passed_over():
    assert epochs_of({"epochs": [None, {"epoch": 2, "steps": 3}, 7]}) == [{"epoch": 2, "steps": 3}]
    assert epochs_of({"epochs": None}) == []


def test_the_phases_are_those_that_a_training_records():
    assert PHASES == records.PHASES
