"""Real studies that are killed, stopped and robbed of their engine, and go on: as if nothing had been.

tests/ray resumes and extends copies of a study whose journal was cut.
"""

import json
import os
import signal
import time

import pytest

from scalestudy.experiments.study.folder import StudyFolder
from tests.support.drivers import SLOW, Driver, assert_recorded_once, outcome
from tests.support.processes import named
from tests.support.studies import scalestudy, write_spec

SWEEP = {"num_gpus": [1, 2], "batch_size": [256], "learning_rate": [0.1, 0.2]}
TRIALS, EPOCHS = 4, 3
TWO_WORKERS = ("--set", "sweep.num_gpus=[2]")  # half of the study, where one size shows as much as two


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("studies")
    write_spec(place, workload=SLOW, sweep=SWEEP, train={"epochs": EPOCHS})
    return place


@pytest.fixture(scope="module")
def undisturbed(place):
    """Losses and accuracies by trial, to the bit."""
    done = scalestudy("run", "study.yaml", "--address", "local", "--out", "undisturbed", cwd=place)
    assert done.returncode == 0, done.stdout + done.stderr
    return outcome(StudyFolder(place / "undisturbed"))


def assert_half(folder, undisturbed):
    """The trials of two workers have come to what they come to undisturbed."""
    found = outcome(folder)
    assert len(found) == TRIALS // 2
    assert found.items() <= undisturbed.items()


def test_a_killed_driver(place, undisturbed):
    """What `status` says of it, and what is not run again: tests/ray/test_resumed_studies.py."""
    driver = Driver(place, "killed")
    driver.wait_for("study", 1)
    driver.wait_for("epoch", 1 + EPOCHS * (1 + driver.count("ended")))  # in the middle of a later trial
    driver.send(signal.SIGKILL)
    done = scalestudy("resume", "killed", "--address", "local", cwd=place)
    assert done.returncode == 0, done.stdout + done.stderr
    assert outcome(driver.folder) == undisturbed
    (cut,) = [trial for trial in driver.folder.read_trials() if trial["attempts"] == 2]
    assert "resumed" in cut["flags"]  # from a checkpoint
    assert_recorded_once(driver.folder, place / "mlflow.db", EPOCHS)


def test_ctrl_c(place, undisturbed):
    driver = Driver(place, "stopped", *TWO_WORKERS)
    driver.wait_for("epoch", 1)
    sent = time.monotonic()
    status, printed = driver.send(signal.SIGINT)
    assert status == 130, printed
    assert "Traceback" not in printed
    assert "stopped" in printed
    assert time.monotonic() - sent < 30
    assert f"to go on: scalestudy resume {driver.folder.path}" in printed
    assert driver.folder.report_file.exists()
    assert json.loads(scalestudy("status", "stopped", "--json", cwd=place).stdout)["state"] == "stopped"
    elsewhere = place / "elsewhere"  # where a store of its own would be made
    elsewhere.mkdir()
    done = scalestudy("resume", driver.folder.path, "--address", "local", cwd=elsewhere)
    assert list(elsewhere.iterdir()) == []
    assert done.returncode == 0, done.stdout + done.stderr
    assert_half(driver.folder, undisturbed)
    assert_recorded_once(driver.folder, place / "mlflow.db", EPOCHS)


@pytest.mark.chaos
def test_the_actor_of_the_pool_is_killed(place, undisturbed):
    driver = Driver(place, "robbed", *TWO_WORKERS)
    driver.wait_for("epoch", 2)
    (pool,) = named(driver.process.pid, "ray::GroupPoolActor")
    os.kill(pool, signal.SIGKILL)
    status, printed = driver.end()
    assert status == 0, printed
    assert "the actor that keeps the pool of worker groups died; starting a new one" in printed
    assert_half(driver.folder, undisturbed)
    kinds = [failure["kind"] for trial in driver.folder.read_trials() for failure in trial.get("failures", ())]
    assert kinds == ["engine_lost"]
    assert_recorded_once(driver.folder, place / "mlflow.db", EPOCHS)


@pytest.mark.chaos
def test_another_process_takes_the_lock(place, undisturbed):
    driver = Driver(place, "disowned", *TWO_WORKERS)
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
    assert_half(driver.folder, undisturbed)
    assert_recorded_once(driver.folder, place / "mlflow.db", EPOCHS)
