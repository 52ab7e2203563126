"""A real adaptive study whose driver is killed twice: nothing is lost, and nothing runs twice."""

import json
import signal

import pytest

from scalestudy.experiments.study.journal import Journal
from tests.support.adaptive_study import STUDY
from tests.support.drivers import Driver
from tests.support.studies import scalestudy, write_spec


@pytest.mark.chaos
def test_a_driver_killed_after_a_decision_and_after_an_end(tmp_path):
    write_spec(tmp_path, **STUDY)
    driver = Driver(tmp_path, "killed")
    driver.wait_for("suggested", 3)  # a first training is decided, and hardly begun
    driver.send(signal.SIGKILL)
    decided = suggested(driver.folder)
    driver = Driver(tmp_path, "killed", resume=True)
    driver.wait_for("ended", 4)  # both have ended, and the confirmation is not decided, or hardly begun
    driver.send(signal.SIGKILL)
    assert suggested(driver.folder)[: len(decided)] == decided
    lines = driver.folder.trials_file.read_bytes()
    done = scalestudy("resume", "killed", "--address", "local", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert driver.folder.trials_file.read_bytes().startswith(lines)
    trials = driver.folder.read_trials()
    assert sorted(trial["look"]["number"] for trial in trials) == [1, 2, 3, 4, 5, 6]
    assert len({trial["trial_id"] for trial in trials}) == 6
    assert [trial["look"]["kind"] for trial in trials].count("confirmation") == 2
    assert {trial["status"] for trial in trials} == {"finished", "at_target"}
    assert [event["trial"]["trial_id"] for event in suggested(driver.folder)] == [
        trial["trial_id"] for trial in sorted(trials, key=lambda trial: trial["look"]["number"])
    ], "each was decided once"
    summary = json.loads(driver.folder.summary_file.read_text("utf-8"))
    assert summary["adaptive"]["ended"] == "budget"


def suggested(folder):
    return [entry.event for entry in Journal(folder.journal_folder).entries() if entry.type == "suggested"]
