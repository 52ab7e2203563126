"""A study whose trials ran side by side is timed apart: a real one, made to follow that rule on a CPU."""

import itertools
import json
from functools import partial

import pytest
from mlflow import MlflowClient

from scalestudy import run_study
from scalestudy.experiments.plan.timing_flags import TimingFlag
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.experiments.study.journal import Journal
from scalestudy.orchestration.base.errors import ExitCode
from scalestudy.orchestration.commands.study_commands import status_of
from scalestudy.orchestration.study import ready
from scalestudy.orchestration.study.study import resume_study
from tests.ray.conftest import cut_study
from tests.support.studies import write_spec

STEPS = 65  # five to warm up, sixty to be timed


@pytest.fixture(scope="module")
def place(module_place):
    (module_place / "met").mkdir()
    return module_place


@pytest.fixture(scope="module")
def follow(cluster, place):
    """Runs something by a rule of our own, whatever the device."""

    def run(rule, function, *arguments):
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(place)
            patch.setattr(ready, "sharing_rule", lambda spec, device: rule)
            return function(*arguments)

    return run


@pytest.fixture(scope="module")
def timed(follow, place):
    """A study of two trials that wait for each other, so that both run at once, and then its timing runs."""
    workload = {"model": "tests.support.user_models:Meets", "data": "digits"}
    spec = write_spec(
        place,
        workload={**workload, "model_args": {"place": str(place / "met"), "parties": 2, "seconds": 0.03}},
        train={"epochs": 2},
        sweep={"num_gpus": [1], "batch_size": [64], "learning_rate": [0.1], "seed": [0, 1]},
    )
    return follow("packed, then timed", partial(run_study, rehearsal=False), spec)


def lines_of(done, kind):
    return [trial for trial in StudyFolder(done.folder).read_trials() if trial["kind"] == kind]


def test_a_cell_is_timed_twice_by_itself(timed):
    assert timed.exit_code == ExitCode.DONE
    assert len(timed.cold_starts) == 2, "the groups of the trials serve the timing runs too"
    trained, runs = lines_of(timed, "training"), lines_of(timed, "timing")
    assert len(trained) == 2
    assert len(runs) == 2
    assert all((run["status"], run["attempts"]) == ("finished", 1) for run in runs)
    assert all(set(run["flags"]) <= {TimingFlag.STARVED} for run in runs), "but for what others do on this machine"
    assert sum("shared_node" in trial["flags"] for trial in trained) == 2
    assert trained[0]["started_at"] < trained[1]["ended_at"], "the trials ran side by side"
    assert trained[1]["started_at"] < trained[0]["ended_at"]
    for run, other in itertools.product(runs, [*trained, *runs]):
        apart = run["ended_at"] <= other["started_at"] or other["ended_at"] <= run["started_at"]
        assert apart or run is other


def test_a_timing_run_makes_its_steps_of_two_seconds_at_least_and_no_evaluation(timed):
    for run in lines_of(timed, "timing"):
        assert [epoch["steps"] for epoch in run["epochs"][:3]] == [23, 23, STEPS - 46]
        assert run["train_seconds"] >= 2
        assert len(run["epochs"]) <= 6
        for epoch in run["epochs"]:
            assert (epoch["test_accuracy"], epoch["test_loss"], epoch["eval_seconds"]) == (None, None, None)
            assert epoch["train_loss"] is not None
            assert epoch["samples_per_second"] > 0
            assert epoch["replica_max_diff"] == 0.0
    assert not (timed.folder / "checkpoints" / lines_of(timed, "timing")[0]["trial_id"]).exists()


def test_its_figures_are_the_study_s(timed):
    assert (timed.summary["trials"]["planned"], timed.summary["trials"]["finished"]) == (2, 2)
    assert timed.summary["timing_runs"] == {"runs": 2, "used": 2}
    (row,) = timed.summary["cells"]
    # of three epochs or more the first is left out
    rates = [epoch["samples_per_second"] for run in lines_of(timed, "timing") for epoch in run["epochs"][1:]]
    assert min(rates) <= row["samples_per_second"]["value"] <= max(rates)
    assert row["timed_apart"]
    assert set(row["flags"]) <= {TimingFlag.STARVED}
    assert status_of(timed.folder).trials == {"planned": 2, "finished": 2}


def test_the_plan_stays_that_of_the_trials(timed):
    folder = StudyFolder(timed.folder)
    assert {trial.kind for trial in folder.read_plan().trials} == {"training"}
    suggested = [entry.event for entry in Journal(folder.journal_folder).entries() if entry.type == "suggested"]
    assert [event["trial"]["kind"] for event in suggested] == ["timing"] * 2


def test_mlflow_tells_the_kinds_apart(timed):
    client = MlflowClient(tracking_uri=timed.tracking_uri)
    runs = client.search_runs([client.get_experiment_by_name("small").experiment_id])
    kinds = [run.data.tags.get("scalestudy.kind", "study") for run in runs]
    assert sorted(kinds) == ["study"] + ["timing"] * 2 + ["training"] * 2
    timing = [run for run, kind in zip(runs, kinds, strict=True) if kind == "timing"]
    assert {run.info.run_name for run in timing} == {"timing w1 b64"}
    assert not any("test_accuracy" in run.data.metrics or "eval_seconds" in run.data.metrics for run in timing)


def started(folder):
    return sum(entry.type == "running" for entry in Journal(folder.journal_folder).entries())


def test_a_resumed_study_times_nothing_again(follow, timed):
    folder = StudyFolder(timed.folder)
    before = folder.trials_file.read_bytes()
    assert started(folder) == 4
    again = follow("packed, then timed", resume_study, timed.folder)
    assert again.exit_code == ExitCode.DONE
    assert folder.trials_file.read_bytes() == before
    assert started(folder) == 4
    figures = ("trials", "timing_runs", "cells", "timings", "recommendation")
    assert json.dumps([again.summary[key] for key in figures]) == json.dumps([timed.summary[key] for key in figures])


@pytest.fixture
def cut(timed, tmp_path):
    """A copy of the study as a driver would have left it that was killed before its timing runs."""
    return cut_study(timed.folder, tmp_path / "cut", lambda each: each.type == "suggested")


def test_a_study_that_packs_for_good_is_not_timed(follow, cut):
    before = cut.trials_file.read_bytes()
    done = follow("packed", resume_study, cut.path)
    assert done.summary["timing_runs"] == {"runs": 0, "used": 0}
    assert cut.trials_file.read_bytes() == before
    assert "shared_node" in done.summary["cells"][0]["flags"]


@pytest.mark.chaos
def test_a_resumed_study_makes_the_timing_runs_that_it_lacks(follow, cut):
    before = cut.trials_file.read_bytes()
    done = follow("packed, then timed", resume_study, cut.path)
    assert cut.trials_file.read_bytes().startswith(before)
    assert done.summary["timing_runs"] == {"runs": 2, "used": 2}
    assert started(cut) == 4
    assert all(set(row["flags"]) <= {TimingFlag.STARVED} for row in done.summary["cells"])
