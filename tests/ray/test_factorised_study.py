"""A real factorised study: trainings, a held-out cell, timing runs. tests/long cuts it off and extends it."""

import json
from itertools import pairwise

import pytest

from scalestudy import run_study
from scalestudy.experiments.plan.plan import make_plan
from scalestudy.experiments.plan.timing_flags import TimingFlag
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.experiments.spec.yaml_lines import read_yaml
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.experiments.study.journal import Journal
from scalestudy.orchestration.base.errors import ExitCode
from scalestudy.orchestration.commands.study_commands import status_of
from scalestudy.orchestration.study.study import resume_study
from tests.support.factorised_study import STUDY, parts_of, run_in
from tests.support.studies import write_spec


@pytest.fixture(scope="module")
def place(module_place):
    return module_place


@pytest.fixture(scope="module")
def done(cluster, place):
    return run_in(place, run_study, write_spec(place, **STUDY))


def spec_in(folder):
    return StudySpec.model_validate(read_yaml((folder / "spec.yaml").read_text()).data)


def grid_ids(folder):
    plain = spec_in(folder).to_dict()
    grid = StudySpec.model_validate({**plain, "search": {"method": "grid"}})
    return {trial.trial_id for trial in make_plan(grid).trials}


def test_it_trains_once_holds_out_and_times_every_size(done):
    assert done.exit_code == ExitCode.DONE
    trained, held_out, timings = parts_of(done.folder)
    assert sorted(trial["params"]["learning_rate"] for trial in trained) == [0.1, 0.2]
    assert len(held_out) == 1
    assert sorted(trial["params"]["num_gpus"] for trial in timings) == [1, 1, 2, 2]
    assert {trial["status"] for trial in timings} == {"finished"}
    for trial in (*trained, *held_out):  # 0.4 is the hardest target, and these reach it soon
        met = [epoch["test_accuracy"] >= 0.4 for epoch in trial["epochs"]]
        assert (trial["status"], met[-2:], len(met)) == ("at_target", [True, True], met.index(True) + 2)
    assert {trial["trial_id"] for trial in (*trained, *held_out)} < grid_ids(done.folder)
    assert len(done.cold_starts) == 3, "two groups of one worker, for trainings side by side, and one of two"


def test_a_model_of_a_training_that_stopped_at_the_target_is_kept(done):
    folder = StudyFolder(done.folder)
    (best,) = (entry.event["best"] for entry in Journal(folder.journal_folder).entries() if "best" in entry.event)
    assert folder.model_file(best).exists()


def test_what_is_timed_is_undisturbed(done):
    """Trainings may run side by side; what follows has its machine to itself, the held-out cell first."""
    trained, held_out, timings = parts_of(done.folder)
    assert all("shared_node" not in trial["flags"] for trial in (*held_out, *timings))
    assert max(trial["ended_at"] for trial in trained) <= held_out[0]["started_at"]
    assert held_out[0]["ended_at"] <= min(trial["started_at"] for trial in timings)
    in_order = sorted(timings, key=lambda trial: trial["started_at"])
    assert all(one["ended_at"] <= other["started_at"] for one, other in pairwise(in_order))


def test_the_summary_has_the_whole_grid(done):
    kinds = {row["label"]: row["kind"] for row in done.summary["cells"]}
    assert list(kinds) == [f"workers={gpus} batch=32 lr={rate}" for gpus in (1, 2) for rate in (0.1, 0.2)]
    assert sorted(kinds.values()) == ["factorised", "measured", "measured", "measured"]
    assert all(row["epoch_seconds"]["value"] > 0 for row in done.summary["cells"])
    assert all(row["seconds"] for row in done.summary["time_to_target"])
    assert all(set(row["flags"]) <= {TimingFlag.STARVED} for row in done.summary["cells"])
    part = done.summary["factorised"]
    assert (part["cells"], part["timings"]) == (2, 4)
    (row,) = part["held_out"]
    assert kinds[row["label"]] == "measured"
    assert row["target"] == 0.4
    assert abs(row["error"]) < 1, "both were measured on a machine that others use"
    assert part["worker_seconds"] > 0
    assert part["grid_worker_seconds"] > 0


def test_it_stands_as_finished(done):
    assert status_of(done.folder).trials == {"at_target": 3, "planned": 3}
    plan = StudyFolder(done.folder).read_plan()
    assert (len(plan.trials), len(plan.swept), plan.factorised.train_on) == (3, 2, 1)


def started(folder):
    return sum(entry.type == "running" for entry in Journal(StudyFolder(folder).journal_folder).entries())


def test_a_resumed_study_runs_nothing_again(done, place):
    before = StudyFolder(done.folder).trials_file.read_bytes()
    count = started(done.folder)
    again = run_in(place, resume_study, done.folder)
    assert again.exit_code == ExitCode.DONE
    assert StudyFolder(done.folder).trials_file.read_bytes() == before
    assert started(done.folder) == count == 7
    figures = ("trials", "timing_runs", "cells", "timings", "recommendation", "factorised")
    assert json.dumps([again.summary[key] for key in figures]) == json.dumps([done.summary[key] for key in figures])
