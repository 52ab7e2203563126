"""Three real raylets, one of which is killed in the middle of a trial: who trains where, and what is recorded."""

import pytest

from tests.long.programs import told_by
from tests.support.three_raylets import EPOCHS


@pytest.fixture(scope="module")
def found(_own_environment):
    """What the program found."""
    return told_by("three_raylets", seconds=280)


def nodes_of(ended):
    return [worker["node"] for worker in ended["world"]["workers"]]


def test_a_group_spans_nodes_when_it_must_and_the_record_says_so(found):
    assert found["plain"]["status"] == "finished"
    assert (found["plain"]["world"]["nodes"], len(set(nodes_of(found["plain"])))) == (2, 2)


def test_a_group_stays_on_one_node_when_it_fits(found):
    assert found["small"]["status"] == "finished"
    assert (found["small"]["world"]["nodes"], len(set(nodes_of(found["small"])))) == (1, 1)


def test_a_trial_that_loses_a_node_goes_on_elsewhere_without_a_changed_or_doubled_epoch(found):
    hit = found["hit"]
    assert (hit["status"], hit["attempts"]) == ("finished", 2)
    assert [(lost["attempt"], lost["kind"]) for lost in hit["failures"]] == [(1, "node_lost")]
    assert [epoch["epoch"] for epoch in hit["epochs"]] == list(range(1, EPOCHS + 1))
    assert found["same"], "to the bit"
    assert "resumed" in hit["flags"]
    assert set(nodes_of(hit)) == set(found["pool"]["room"])


def test_a_trial_that_no_node_set_can_hold_any_more_is_put_off_and_told_so(found):
    error = found["put_off"]["error"]
    assert (found["put_off"]["attempt"], error["kind"]) == (1, "no_room")
    assert "room for 4 workers" in error["message"]
    assert "needs 5" in error["message"]


def test_a_node_with_another_version_is_named(found):
    told = found["versions"]
    assert told["same"] == ""
    assert f"({told['other'][:8]}): torch 1.13.0, here 2." in told["all"]
    assert told["all"].count(", here ") == 1


def test_what_a_lost_node_has_left_keeps_nobody_waiting_at_the_end(found):
    assert found["closing_seconds"] < 10
    assert found["pool"]["waiting"] == []
