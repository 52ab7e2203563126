"""Real studies that are killed, stopped and robbed of their engine, and go on: as if nothing had been.

tests/ray resumes and extends copies of a study whose journal was cut; test_odd_folders.py stops one by Ctrl-C.
"""

import os
import signal
import time

import pytest

from scalestudy.experiments.study.folder import StudyFolder
from tests.support.chaos_outcome import in_peace, outcome_of
from tests.support.drivers import SLOW, Driver, assert_recorded_once, joining
from tests.support.processes import named
from tests.support.studies import scalestudy, write_spec

EPOCHS = 3


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a study of two trials of two workers."""
    place = tmp_path_factory.mktemp("studies")
    sweep = {"num_gpus": [2], "batch_size": [256], "learning_rate": [0.1, 0.2]}
    write_spec(place, workload=SLOW, sweep=sweep, train={"epochs": EPOCHS})
    return place


@pytest.fixture(scope="module")
def undisturbed(place):
    return in_peace(place / "study.yaml")


def test_a_killed_driver(ray_session, place, undisturbed):
    """What `status` says of it, and what is not run again: tests/ray/test_resumed_studies.py."""
    joined = joining(ray_session)
    driver = Driver(place, "killed", address=ray_session.address, **joined)
    driver.wait_for("epoch", EPOCHS + 1)  # in the middle of the second trial
    driver.send(signal.SIGKILL)
    elsewhere = place / "elsewhere"  # where a store of its own would be made
    elsewhere.mkdir()
    done = scalestudy("resume", driver.folder.path, "--address", ray_session.address, cwd=elsewhere, **joined)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(elsewhere.iterdir()) == []
    assert outcome_of(driver.folder) == undisturbed
    (cut,) = [trial for trial in driver.folder.read_trials() if trial["attempts"] == 2]
    assert "resumed" in cut["flags"]  # from a checkpoint
    assert_recorded_once(driver.folder, place / "mlflow.db", EPOCHS)


@pytest.mark.chaos
def test_the_actor_of_the_pool_is_killed(place, undisturbed):
    driver = Driver(place, "robbed")
    driver.wait_for("epoch", 2)
    (pool,) = named(driver.process.pid, "ray::GroupPoolActor")
    os.kill(pool, signal.SIGKILL)
    status, printed = driver.end()
    assert status == 0, printed
    assert "the actor that keeps the pool of worker groups died; starting a new one" in printed
    assert outcome_of(driver.folder) == undisturbed
    kinds = [failure["kind"] for trial in driver.folder.read_trials() for failure in trial.get("failures", ())]
    assert kinds == ["engine_lost"]
    assert_recorded_once(driver.folder, place / "mlflow.db", EPOCHS)


@pytest.mark.chaos
def test_another_process_takes_the_lock(place, undisturbed):
    driver = Driver(place, "disowned")
    driver.wait_for("epoch", 1)
    thief = {"token": "t", "host": "elsewhere", "pid": 1, "born": "1", "beat": time.time()}
    StudyFolder(driver.folder.path).write_json(driver.folder.lock_file, thief)
    status, printed = driver.end()
    assert status == 3, printed
    assert "another process has taken the study's lock" in printed
    assert driver.count("study") == 1  # it has not said its last word
    assert not driver.folder.report_file.exists()
    driver.folder.lock_file.unlink()
    done = scalestudy("resume", "disowned", "--address", "local", cwd=place)
    assert done.returncode == 0, done.stdout + done.stderr
    assert outcome_of(driver.folder) == undisturbed
    assert_recorded_once(driver.folder, place / "mlflow.db", EPOCHS)
