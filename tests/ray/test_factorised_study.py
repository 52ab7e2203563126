"""A real factorised study: trainings, a held-out cell, timing runs; what follows when it is cut off, or extended."""

import json
import shutil

import pytest

from scalestudy import run_study
from scalestudy.experiments.plan.plan import make_plan
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.experiments.spec.yaml_lines import read_yaml
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.experiments.study.journal import Journal
from scalestudy.orchestration.base.errors import ExitCode
from scalestudy.orchestration.commands.folder import status_of
from scalestudy.orchestration.study.study import resume_study
from tests.ray.conftest import cut_study
from tests.support.studies import write_spec

SWEEP = {"num_gpus": [1, 2], "batch_size": [32], "learning_rate": [0.1, 0.2], "seed": [0]}
STUDY = {
    "train": {"epochs": 3},
    "sweep": SWEEP,
    "search": {"method": "factorised", "held_out": 1},
    "targets": {"accuracy": [0.4]},
}


@pytest.fixture(scope="module")
def place(module_place):
    return module_place


@pytest.fixture(scope="module")
def run(cluster, place):
    """Runs something in the study's own folder."""

    def run(function, *arguments, **keywords):
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(place)
            return function(*arguments, **keywords)

    return run


@pytest.fixture(scope="module")
def done(run, place):
    return run(run_study, write_spec(place, **STUDY))


def parts_of(folder):
    """Lines of trials.jsonl: trainings, held-out trials, timing runs."""
    trials = StudyFolder(folder).read_trials()
    trainings = [trial for trial in trials if trial["kind"] == "training"]
    held_out = [trial for trial in trainings if trial["params"]["num_gpus"] == 2]
    timings = [trial for trial in trials if trial["kind"] == "timing"]
    return [trial for trial in trainings if trial not in held_out], held_out, timings


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
    assert sorted(trial["params"]["num_gpus"] for trial in timings) == [1, 2]
    assert {trial["status"] for trial in (*trained, *held_out, *timings)} == {"finished"}
    assert {trial["trial_id"] for trial in (*trained, *held_out)} < grid_ids(done.folder)
    assert len(done.cold_starts) == 3, "two groups of one worker, for trainings side by side, and one of two"


def test_what_is_timed_is_undisturbed(done):
    """Trainings may run side by side; what follows has its machine to itself, the held-out cell first."""
    trained, held_out, timings = parts_of(done.folder)
    assert all("shared_node" not in trial["flags"] for trial in (*held_out, *timings))
    assert max(trial["ended_at"] for trial in trained) <= held_out[0]["started_at"]
    assert held_out[0]["ended_at"] <= min(trial["started_at"] for trial in timings)
    first, second = sorted(timings, key=lambda trial: trial["started_at"])
    assert first["ended_at"] <= second["started_at"]


def test_the_summary_has_the_whole_grid(done):
    kinds = {row["label"]: row["kind"] for row in done.summary["cells"]}
    assert list(kinds) == [f"gpus={gpus} batch=32 lr={rate}" for gpus in (1, 2) for rate in (0.1, 0.2)]
    assert sorted(kinds.values()) == ["factorised", "measured", "measured", "measured"]
    assert all(row["epoch_seconds"]["value"] > 0 for row in done.summary["cells"])
    assert all(row["seconds"] for row in done.summary["time_to_target"])
    assert all(row["flags"] == [] for row in done.summary["cells"])
    part = done.summary["factorised"]
    assert (part["cells"], part["timings"]) == (2, 2)
    (row,) = part["held_out"]
    assert kinds[row["label"]] == "measured"
    assert row["target"] == 0.4
    assert abs(row["error"]) < 1, "both were measured on a machine that others use"
    assert part["gpu_seconds"] > 0
    assert part["grid_gpu_seconds"] > 0


def test_it_stands_as_finished(done):
    assert status_of(done.folder).trials == {"planned": 3, "finished": 3}
    plan = StudyFolder(done.folder).read_plan()
    assert (len(plan.trials), len(plan.swept), plan.factorised.train_on) == (3, 2, 1)


def started(folder):
    return sum(entry.type == "running" for entry in Journal(StudyFolder(folder).journal_folder).entries())


def test_a_resumed_study_runs_nothing_again(run, done):
    before = StudyFolder(done.folder).trials_file.read_bytes()
    count = started(done.folder)
    again = run(resume_study, done.folder)
    assert again.exit_code == ExitCode.DONE
    assert StudyFolder(done.folder).trials_file.read_bytes() == before
    assert started(done.folder) == count == 5
    figures = ("trials", "timing_runs", "cells", "timings", "recommendation", "factorised")
    assert json.dumps([again.summary[key] for key in figures]) == json.dumps([done.summary[key] for key in figures])


def test_a_study_that_was_killed_after_its_trainings_goes_on(run, done, tmp_path):
    """The held-out cell was not chosen yet: the same one is, and the timing runs follow."""
    folder = cut_study(done.folder, tmp_path / "cut", lambda entry: entry.type == "suggested")
    before = folder.trials_file.read_bytes()
    again = run(resume_study, folder.path)
    assert again.exit_code == ExitCode.DONE
    assert folder.trials_file.read_bytes().startswith(before)
    trials = [[trial["trial_id"] for trial in part] for part in parts_of(folder.path)]
    assert trials == [[trial["trial_id"] for trial in part] for part in parts_of(done.folder)]
    assert again.summary["factorised"]["held_out"][0]["error"] is not None


def test_another_seed_is_trained_and_held_out_too_and_timed_no_more(run, done, tmp_path, place):
    folder = StudyFolder(shutil.copytree(done.folder, tmp_path / "grown"))
    alone = {"exclusive": True}  # one group starts sooner than two
    spec = write_spec(place, "grown.yaml", **{**STUDY, "sweep": {**SWEEP, "seed": [0, 1]}, "resources": alone})
    grown = run(run_study, spec, extend=folder.path)
    assert grown.exit_code == ExitCode.DONE
    trained, held_out, timings = parts_of(folder.path)
    assert (len(trained), len(held_out), len(timings)) == (4, 2, 2)
    assert len({trial["params"]["learning_rate"] for trial in held_out}) == 1
    assert all(row["test_accuracy"]["n"] == 2 for row in grown.summary["cells"])


def test_asha_stops_trainings_and_never_what_is_held_out(run, place):
    sweep = {**SWEEP, "learning_rate": [0.2, 0.0001], "batch_size": [64]}
    search = {"method": "factorised", "held_out": 1, "scheduler": "asha", "reduction": 2}
    spec = write_spec(
        place, "asha.yaml", **{**STUDY, "sweep": sweep, "search": search, "resources": {"exclusive": True}}
    )
    done = run(run_study, spec)
    trained, held_out, timings = parts_of(done.folder)
    status = {trial["params"]["learning_rate"]: trial["status"] for trial in trained}
    assert status == {0.2: "finished", 0.0001: "stopped"}
    assert [(trial["params"]["learning_rate"], trial["status"]) for trial in held_out] == [(0.2, "finished")]
    assert len(timings) == 2
    part = done.summary["factorised"]
    assert 0 < part["saved_by_asha"] < 1
    together = (1 - part["saved_by_factorising"]) * (1 - part["saved_by_asha"])
    assert together == pytest.approx(part["gpu_seconds"] / part["grid_gpu_seconds"])
