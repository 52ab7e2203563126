"""Studies of ours as a source: how their trainings ended, and how far each evaluation was."""

from functools import partial

import pytest

from scalestudy.experiments.judging.own_study import read_study
from tests.support.loop_studies import LAW, LOOP, as_a_loop_tells
from tests.support.synthetic_studies import TINY, folder_of, spec_of


@pytest.mark.parametrize(
    ("status", "ended"),
    [
        ("finished", "finished"),
        ("at_target", "finished"),
        ("stopped", "cut"),
        ("diverged", "finished"),
        ("failed", "failed"),
        ("out_of_memory", "failed"),
    ],
)
def test_a_training_ended_as_its_status_says(tmp_path, status, ended):
    folder = folder_of(tmp_path / "tiny-1", TINY)
    folder.write_trials([{**line, "status": status} for line in folder.read_trials()])
    assert {run.ended for run in read_study(folder, spec_of(TINY))} == {ended}


def test_timing_runs_and_what_never_ran_are_no_runs(tmp_path):
    folder = folder_of(tmp_path / "tiny-1", TINY)
    first, second, *rest = folder.read_trials()
    folder.write_trials([{**first, "kind": "timing"}, {**second, "status": "skipped"}, *rest])
    assert [run.name for run in read_study(folder, spec_of(TINY))] == [line["trial_id"] for line in rest]


def test_an_evaluation_says_what_was_done_until_then(tmp_path):
    folder = folder_of(tmp_path / "tiny-1", TINY)
    line, run = folder.read_trials()[0], read_study(folder, spec_of(TINY))[0]
    for key, name in (("steps", "global_step"), ("samples", "samples_seen"), ("train_seconds", "train_time")):
        assert run.history[-1][name] == pytest.approx(sum(epoch[key] for epoch in line["epochs"]))
    assert run.values["global_batch_size"] == line["params"]["batch_size"]


@pytest.mark.parametrize("samples", [True, False])
def test_a_loop_says_as_far_as_it_was_what_it_told(samples, tmp_path):
    change = partial(as_a_loop_tells, samples=samples)
    folder = folder_of(tmp_path / "study", LOOP, LAW, change=change)
    row = read_study(folder, spec_of(LOOP))[0].history[0]
    assert row.keys() == {"train_time", "accuracy", *(["samples_seen"] if samples else [])}
