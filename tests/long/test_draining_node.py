"""Three real raylets, one of which Ray drains in the middle of a trial: who trains where, and what is recorded.

And a study whose cluster's head drains.
"""

import re

import pytest

from scalestudy.experiments.study.journal import Journal
from tests.long.programs import told_by
from tests.support.draining_raylet import EPOCHS
from tests.support.drivers import SLOW, Driver, assert_recorded_once
from tests.support.ray_heads import drain, head
from tests.support.studies import scalestudy, write_spec

pytestmark = pytest.mark.chaos

PORT = 26481
ADDRESS = f"127.0.0.1:{PORT}"
STEPS = 6  # an epoch: 1,437 examples in batches of 256


@pytest.fixture(scope="module")
def found(_own_environment):
    """What the program found."""
    return told_by("draining_raylet", seconds=400)


def nodes_of(ended):
    return {worker["node"] for worker in ended["world"]["workers"]}


def test_the_trial_leaves_for_the_notice_and_not_for_the_node_s_end(found):
    """A node that ended under its workers would be `node_lost`; Ray ends a drained one as soon as nobody is on it."""
    assert found["drained"] in found["before"]
    assert found["retry"]["error"]["kind"] == "preempted"


def test_it_goes_on_elsewhere_without_a_changed_doubled_or_missing_epoch(found):
    hit = found["hit"]
    assert (hit["status"], hit["attempts"], hit["error"]) == ("finished", 2, None)
    assert [(lost["attempt"], lost["kind"]) for lost in hit["failures"]] == [(1, "preempted")]
    assert [epoch["epoch"] for epoch in hit["epochs"]] == list(range(1, EPOCHS + 1))
    assert [epoch["steps"] for epoch in hit["epochs"]] == [STEPS] * EPOCHS
    assert found["same"], "to the bit"
    assert "resumed" in hit["flags"]
    assert len(hit["world"]["workers"]) == 3
    assert found["drained"] not in nodes_of(hit)


def test_no_step_is_made_twice(found):
    """But for the rehearsal of a resumed DistributedDataParallel, one forward pass."""
    assert found["passes"]["plain"] == [EPOCHS * STEPS]
    before, after = found["passes"]["hit"]
    assert before + after == EPOCHS * STEPS + 1
    epochs, steps = divmod(before, STEPS)
    (lost,) = found["hit"]["failures"]
    assert f"rank 0: {epochs} epochs and {steps} steps of the next are made" in lost["message"]


def test_nothing_is_placed_on_the_node_any_more(found):
    assert found["later"]["status"] == "finished"
    assert found["drained"] not in nodes_of(found["later"])
    assert all(found["drained"] not in group["nodes"] for group in found["pool"]["groups"])
    assert found["pool"]["room"].get(found["drained"], 0) == 0
    assert found["pool"]["waiting"] == []


def test_a_study_whose_head_drains_ends_and_goes_on_elsewhere(tmp_path):
    sweep = {"num_gpus": [1], "batch_size": [64], "learning_rate": [0.1, 0.2], "seed": [0]}
    store = {"uri": f"sqlite:///{tmp_path}/mlflow.db"}
    write_spec(tmp_path, workload=SLOW, train={"epochs": 8}, sweep=sweep, tracking=store)
    with head(1, PORT) as joined:
        driver = Driver(tmp_path, "out", address=ADDRESS, **joined)
        driver.wait_for("epoch", 1)
        entries = Journal(driver.folder.journal_folder).entries()
        (worker,) = next(entry for entry in entries if entry.type == "running").event["world"]["workers"]
        drain(ADDRESS, worker["node"], 600, **joined)
        status, printed = driver.end()
        assert status == 3, printed
        assert "the sweep broke off: the cluster's head is about to be removed" in printed
        refused = scalestudy("resume", "out", "--address", ADDRESS, cwd=tmp_path, **joined)
    assert (refused.returncode, refused.stdout) == (3, "")
    assert re.search("head (was drained|is about to be removed)", refused.stderr), refused.stderr
    again = scalestudy("resume", "out", "--address", "local", cwd=tmp_path)
    assert again.returncode == 0, again.stdout + again.stderr
    assert [trial["status"] for trial in driver.folder.read_trials()] == ["finished"] * 2
    assert_recorded_once(driver.folder, tmp_path / "mlflow.db", 8)
