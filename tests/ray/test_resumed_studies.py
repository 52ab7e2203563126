"""The small study, cut off at two places of its journal, goes on; and it grows."""

import json

import pytest

from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.experiments.study.journal import Journal
from scalestudy.orchestration.base.errors import ExitCode
from scalestudy.orchestration.storage.lock import lock_of
from scalestudy.orchestration.study.study import resume_study
from tests.ray.conftest import ANSWERED, run_by_command
from tests.support.drivers import assert_recorded_once, outcome
from tests.support.in_process import scalestudy
from tests.support.studies import SMALL, write_spec


@pytest.fixture(scope="module")
def undisturbed(small_study):
    """Losses and accuracies by trial, to the bit."""
    return outcome(StudyFolder(small_study.result.folder))


def running(folder):
    return [entry.trial_id for entry in Journal(folder.journal_folder).entries() if entry.type == "running"]


def is_second_epoch(entry):
    return entry.type == "epoch" and entry.event["epoch"]["epoch"] == 2


def test_a_study_that_was_cut_in_the_middle_of_its_last_trial_goes_on_and_grows(
    interrupted, small_study, undisturbed, place
):
    """By the command line: as it stands, that another process can't run it too, and how it goes on."""
    last = running(StudyFolder(small_study.result.folder))[-1]
    folder = interrupted(lambda entry: entry.trial_id == last and is_second_epoch(entry))
    ended = {trial["trial_id"]: trial for trial in folder.read_trials()}
    assert len(ended) == 3

    told = scalestudy("status", "cut", cwd=place)
    assert "interrupted" in told.stdout
    assert "to go on: scalestudy resume" in told.stdout
    with lock_of(folder) as lock:
        busy = scalestudy("resume", "cut", cwd=place)
        assert (busy.returncode, busy.stdout) == (2, "")
        assert f"is being run by process {lock.holder().pid}" in busy.stderr
        assert json.loads(scalestudy("status", "cut", "--json", cwd=place).stdout)["state"] == "running"

    fewer = write_spec(place, **ANSWERED, sweep={**SMALL["sweep"], "num_gpus": [1]})
    refused = scalestudy("run", fewer, "--extend", "cut", "--address", "local", cwd=place)
    assert refused.returncode == 2, "trials of two workers have run, and are not in the spec"

    points = [{"num_gpus": gpus, "batch_size": 64, "learning_rate": rate} for gpus in (1, 2) for rate in (0.1, 0.2)]
    points.append({"num_gpus": 2, "batch_size": 64, "learning_rate": 0.3})
    write_spec(place, **ANSWERED, sweep={"points": points, "seed": [0]})
    grown, printed = run_by_command("run", "study.yaml", "--extend", "cut", "--address", "local", cwd=place)
    assert printed.returncode == grown.exit_code == ExitCode.DONE, printed.stderr
    assert "5 trials, 3 of them ended before" in printed.stdout
    found = outcome(folder)
    assert {trial_id: found[trial_id] for trial_id in undisturbed} == undisturbed
    trials = {trial["trial_id"]: trial for trial in folder.read_trials()}
    assert {trial_id: trials[trial_id] for trial_id in ended} == ended, "not run again"
    (cut,) = [trial for trial in trials.values() if trial["attempts"] == 2]
    assert (cut["trial_id"], [failure["kind"] for failure in cut["failures"]]) == (last, ["interrupted"])
    assert len(trials) == grown.summary["trials"]["finished"] == 5
    assert_recorded_once(folder, place / "mlflow.db", epochs=3)
    assert json.loads(scalestudy("status", "cut", "--json", cwd=place).stdout)["state"] == "finished"


def test_a_study_that_was_cut_before_its_report_runs_nothing_again(interrupted, undisturbed, place):
    folder = interrupted(lambda entry: entry.event.get("state") == "finished")
    before, count = folder.trials_file.read_bytes(), len(running(folder))
    folder.report_file.unlink()
    done = resume_study(folder.path)
    assert done.exit_code == ExitCode.DONE
    assert folder.report_file.exists()
    assert (folder.trials_file.read_bytes(), len(running(folder))) == (before, count)
    assert outcome(folder) == undisturbed
    assert_recorded_once(folder, place / "mlflow.db", epochs=3)
