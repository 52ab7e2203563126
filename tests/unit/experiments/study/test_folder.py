"""The files of a study."""

import json

import pytest

from scalestudy.experiments.study.folder import StudyFolder
from tests.support.synthetic_studies import folder_of, study_of

TEXT = "name: x\ntrain: {epochs: 2}\nsweep: {num_gpus: [1, 2], seed: [0, 1]}"


def test_trials_come_back_as_they_were_written(tmp_path):
    folder = folder_of(tmp_path / "s", TEXT)
    assert folder.read_trials() == study_of(TEXT)[2]
    assert folder.read_plan() == study_of(TEXT)[1]
    assert StudyFolder(tmp_path / "nothing").read_trials() == []


def test_a_torn_last_line_is_left_out_and_overwritten(tmp_path):
    folder = folder_of(tmp_path / "s", TEXT)
    whole = folder.trials_file.read_bytes()
    lines = whole.splitlines(keepends=True)
    folder.trials_file.write_bytes(b"".join(lines[:2]) + lines[2][:100])
    assert len(folder.read_trials()) == 2
    folder.append_trial(json.loads(lines[3]))
    assert [trial["trial_id"] for trial in folder.read_trials()] == [
        json.loads(line)["trial_id"] for line in (lines[0], lines[1], lines[3])
    ]


@pytest.mark.parametrize("length", [1, 70_000, 200_000])
def test_torn_lines_of_any_length_are_cut(tmp_path, length):
    folder = folder_of(tmp_path / "s", TEXT)
    before = folder.trials_file.read_bytes()
    with folder.trials_file.open("ab") as stream:
        stream.write(b"x" * length)
    trial = {"trial_id": "new", "params": {}, "status": "finished"}
    folder.append_trial(trial)
    assert folder.trials_file.read_bytes() == before + json.dumps(trial, separators=(",", ":")).encode() + b"\n"


def test_a_first_line_that_is_torn(tmp_path):
    folder = StudyFolder(tmp_path)
    folder.trials_file.write_bytes(b'{"trial')
    assert folder.read_trials() == []
    folder.append_trial({"trial_id": "a", "params": {}, "status": "finished"})
    assert len(folder.read_trials()) == 1


def test_a_broken_line_in_the_middle_names_file_and_line(tmp_path):
    folder = folder_of(tmp_path / "s", TEXT)
    lines = folder.trials_file.read_bytes().splitlines(keepends=True)
    for broken in (b"{oops\n", b"[]\n", b'{"trial_id": 1}\n'):
        folder.trials_file.write_bytes(lines[0] + broken + lines[1])
        with pytest.raises(ValueError, match=r"trials\.jsonl:2"):
            folder.read_trials()


def test_the_first_record_of_a_trial_wins(tmp_path):
    folder = folder_of(tmp_path / "s", TEXT)
    first = folder.read_trials()
    folder.append_trial({**first[0], "status": "failed"})
    assert folder.read_trials() == first


def test_not_a_number_is_never_written(tmp_path):
    folder = StudyFolder(tmp_path)
    for write in (folder.append_trial, lambda data: folder.write_json(folder.summary_file, data)):
        with pytest.raises(ValueError, match="JSON"):
            write({"trial_id": "a", "params": {}, "status": "finished", "x": float("nan")})
    assert folder.read_trials() == []
    assert not folder.summary_file.exists()


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    folder = StudyFolder(tmp_path)
    folder.write_text(folder.report_file, "old")

    def refuse(_):
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", refuse)
    with pytest.raises(OSError, match="disk full"):
        folder.write_text(folder.report_file, "new")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert folder.report_file.read_text() == "old"


def test_measured_trials_carry_their_workload(tmp_path):
    folder = folder_of(tmp_path / "s", TEXT)
    folder.append_trial({"trial_id": "stranger", "params": {}, "status": "finished"})
    assert [trial["workload"]["model"] for trial in folder.measured_trials()] == ["lenet"] * 4


@pytest.mark.parametrize(
    ("text", "page"),
    [
        ('{"experiment": "https://host/#/experiments/1/runs"}', "https://host/#/experiments/1/runs"),
        ('{"experiment": "javascript:alert(1)"}', None),
        ('{"experiment": 1}', None),
        ("[]", None),
        ("{", None),
        (None, None),
    ],
)
def test_only_a_server_s_page_is_linked(tmp_path, text, page):
    folder = StudyFolder(tmp_path)
    if text is not None:
        folder.write_text(folder.pages_file, text)
    assert folder.runs_page() == page


def test_the_timing_runs_of_a_study_are_measured_trials_too(tmp_path):
    text = TEXT.replace("seed: [0, 1]", "seed: [0, 1], train.precision: [fp32, bf16]")
    folder = folder_of(tmp_path / "s", text)
    run = folder.read_trials()[-1]
    for identity, kind in (("timed", "timing"), ("stranger", "training")):
        params = {**run["params"], "num_gpus": 4, "seed": 7}
        folder.append_trial({**run, "trial_id": identity, "kind": kind, "params": params})
    *planned, timing = folder.measured_trials()
    assert len(planned) == 8
    assert (timing["trial_id"], timing["train"]["precision"]) == ("timed", run["params"]["train.precision"])
