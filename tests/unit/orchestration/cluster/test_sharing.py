"""What others hold and wait for, from what Ray lists of placement groups and free resources."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalestudy.orchestration.cluster.nodes import ClusterNode, slots
from scalestudy.orchestration.cluster.sharing import (
    TAGS,
    WANTED,
    LeastUsed,
    Reservation,
    demand_of_others,
    older_studies,
    used_by_others,
)

OURS = 77.0


def node(name="a", cpus=4.0, gpus=0.0):
    return ClusterNode(node_id=name, host=name, cpus=cpus, gpus=gpus)


def group(key="g", *, name="", job=1, memory=OURS, waits=False, **held):
    """A placement group. held: CPUs by node."""
    return Reservation(
        key=key, name=name, job=job, memory=memory, waits=waits, held={node: {"CPU": n} for node, n in held.items()}
    )


def used(available, *groups, nodes=None):
    return used_by_others(nodes or [node()], available, groups, lambda each: each.memory == OURS)


def test_what_is_neither_free_nor_ours_is_others():
    assert used({"a": {"CPU": 4.0}})["a"]["CPU"] == 0
    assert used({"a": {"CPU": 1.0}})["a"]["CPU"] == 3
    assert used({"a": {"CPU": 1.0}}, group(a=2))["a"]["CPU"] == 1
    assert used({"a": {}}, group(a=2), group(memory=None, a=2))["a"]["CPU"] == 2, "what is used up is not listed"


def test_a_node_that_has_not_been_heard_of_counts_as_unused():
    assert used({}) == {}


def test_ours_are_told_apart_by_node():
    found = used({"a": {"CPU": 2.0}, "b": {"CPU": 2.0}}, group(a=2), nodes=(node("a"), node("b")))
    assert (found["a"]["CPU"], found["b"]["CPU"]) == (0, 2)


@given(st.integers(0, 8), st.integers(0, 8))
def test_more_room_than_there_is_is_never_used(free, held):
    found = used({"a": {"CPU": float(free)}}, group(a=held))["a"]["CPU"]
    assert found == max(0, 4 - free - held)


@pytest.mark.parametrize(("cpus", "taken"), [(0.0, 0), (0.5, 1), (2.0, 1), (2.5, 2), (4.0, 2)])
def test_a_share_of_a_worker_s_room_takes_the_whole(cpus, taken):
    (room,) = slots([node()], device="cpu", cpus_per_worker=2, gpus_per_worker=1, used={"a": {"CPU": cpus}})
    assert (room.slots, room.taken) == (2, taken)


def test_on_gpus_the_scarcer_of_both_counts():
    nodes, rule = [node(cpus=8, gpus=4)], {"device": "cuda", "cpus_per_worker": 1, "gpus_per_worker": 1.0}
    assert slots(nodes, **rule, used={"a": {"CPU": 2.0, "GPU": 3.0}})[0].taken == 3
    assert slots(nodes, **rule, used={"a": {"CPU": 7.0, "GPU": 1.0}})[0].taken == 3
    assert slots(nodes, **rule, used={"a": {"CPU": 4.0, "GPU": 0.0}})[0].taken == 0


def test_who_else_waits():
    mine = group(waits=True, job=2)
    assert demand_of_others([mine, group(job=1, a=1)], job=2) == "none", "what has room does not wait"
    assert demand_of_others([mine, group(waits=True, job=3)], job=2) == "younger study"
    assert demand_of_others([mine, group(waits=True, job=3, name=WANTED, memory=None)], job=2) == "younger study"
    assert demand_of_others([group(waits=True, job=1), group(waits=True, job=3)], job=2) == "other", "an older one"
    assert demand_of_others([group(waits=True, job=3, memory=None)], job=2) == "other", "no study"
    assert demand_of_others([group(waits=True, job=3, memory=TAGS + 1.0)], job=2) == "other", "no study's tag"


def test_studies_that_began_before():
    found = [group(job=1, a=1), group(job=1, waits=True), group(job=2, name=WANTED, memory=None), group(job=4)]
    assert [older_studies(found, job) for job in (1, 2, 3)] == [0, 1, 2]
    assert older_studies([group(job=1, memory=None)], 2) == 0, "no study"


def test_the_least_of_three_samples_counts():
    least, cpus = LeastUsed(), [3.0, 1.0, 2.0, 2.0, 2.0]
    assert [least.take({"a": {"CPU": each}})["a"]["CPU"] for each in cpus] == [3.0, 1.0, 1.0, 1.0, 2.0]


def test_a_node_that_comes_or_goes_has_its_own_samples():
    least = LeastUsed()
    least.take({"a": {"CPU": 0.0}})
    assert least.take({"a": {"CPU": 1.0}, "b": {"CPU": 2.0}}) == {"a": {"CPU": 0.0}, "b": {"CPU": 2.0}}
    assert least.take({"b": {"CPU": 3.0}}) == {"b": {"CPU": 2.0}}
