"""A factorised study that is cut off after its trainings, extended, and stopped early by ASHA."""

import shutil

import pytest

from scalestudy import run_study
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.orchestration.base.errors import ExitCode
from scalestudy.orchestration.study.study import resume_study
from tests.ray.conftest import cut_study
from tests.support.factorised_study import STUDY, SWEEP, parts_of, run_in
from tests.support.studies import write_spec


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("factorised")


@pytest.fixture(scope="module")
def done(ray_session, place):
    return run_in(place, run_study, write_spec(place, **STUDY))


def test_a_study_that_was_killed_after_its_trainings_goes_on(done, tmp_path, place):
    """The held-out cell was not chosen yet: the same one is, and the timing runs follow."""
    folder = cut_study(done.folder, tmp_path / "cut", lambda entry: entry.type == "suggested")
    before = folder.trials_file.read_bytes()
    again = run_in(place, resume_study, folder.path)
    assert again.exit_code == ExitCode.DONE
    assert folder.trials_file.read_bytes().startswith(before)
    trials = [[trial["trial_id"] for trial in part] for part in parts_of(folder.path)]
    assert trials == [[trial["trial_id"] for trial in part] for part in parts_of(done.folder)]
    assert again.summary["factorised"]["held_out"][0]["error"] is not None


@pytest.mark.chaos
def test_another_seed_is_trained_and_held_out_too_and_timed_no_more(done, tmp_path, place):
    folder = StudyFolder(shutil.copytree(done.folder, tmp_path / "grown"))
    alone = {"exclusive": True}  # one group starts sooner than two
    spec = write_spec(place, "grown.yaml", **{**STUDY, "sweep": {**SWEEP, "seed": [0, 1]}, "resources": alone})
    grown = run_in(place, run_study, spec, extend=folder.path)
    assert grown.exit_code == ExitCode.DONE
    trained, held_out, timings = parts_of(folder.path)
    assert (len(trained), len(held_out), len(timings)) == (4, 2, 4)
    assert len({trial["params"]["learning_rate"] for trial in held_out}) == 1
    assert all(row["test_accuracy"]["n"] == 2 for row in grown.summary["cells"])


@pytest.mark.chaos
def test_asha_stops_trainings_and_never_what_is_held_out(ray_session, place):
    sweep = {**SWEEP, "learning_rate": [0.2, 0.0001], "batch_size": [64]}
    search = {"method": "factorised", "held_out": 1, "scheduler": "asha", "reduction": 2}
    alone, whole = {"exclusive": True}, {"accuracy": [0.4], "stop": False}
    spec = write_spec(
        place, "asha.yaml", **{**STUDY, "sweep": sweep, "search": search, "resources": alone, "targets": whole}
    )
    done = run_in(place, run_study, spec)
    trained, held_out, timings = parts_of(done.folder)
    status = {trial["params"]["learning_rate"]: trial["status"] for trial in trained}
    assert status == {0.2: "finished", 0.0001: "stopped"}
    assert [(trial["params"]["learning_rate"], trial["status"]) for trial in held_out] == [(0.2, "finished")]
    assert len(timings) == 4
    part = done.summary["factorised"]
    assert 0 < part["saved_by_asha"] < 1
    together = (1 - part["saved_by_factorising"]) * (1 - part["saved_by_asha"])
    assert together == pytest.approx(part["worker_seconds"] / part["grid_worker_seconds"])
