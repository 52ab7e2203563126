"""Three real raylets, one of which Ray drains in the middle of a trial: who trains where, and what is recorded."""

import pytest

from tests.support.draining_raylet import EPOCHS
from tests.support.programs import told_by

STEPS = 6  # an epoch: 1,437 examples in batches of 256


@pytest.fixture(scope="module")
def found(_own_environment):
    """What the program found."""
    return told_by("draining_raylet", seconds=400)


def nodes_of(ended):
    return {worker["node"] for worker in ended["world"]["workers"]}


def test_the_trial_leaves_while_the_node_is_still_there(found):
    assert found["drained"] in found["before"]
    assert found["drained"] in found["alive_when_left"]
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
