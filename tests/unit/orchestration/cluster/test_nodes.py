"""What fits on a cluster, by its description alone."""

import math
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scalestudy.experiments.spec.sections import Resources
from scalestudy.orchestration.base.errors import ExitCode, RequestError
from scalestudy.orchestration.cluster.nodes import (
    ClusterNode,
    Growth,
    check_capacity,
    choose_device,
    head_drains,
    place,
    slots,
)


def node(name="a", cpus=4.0, gpus=0.0, draining=False):
    return ClusterNode(node_id=name, host=name, cpus=cpus, gpus=gpus, draining=draining)


def fit(*nodes, device="cpu", cpus=1, gpus=1.0):
    return [n.slots for n in slots(nodes, device=device, cpus_per_worker=cpus, gpus_per_worker=gpus)]


def test_the_head_drains_if_that_node_does_and_no_other():
    head, other = replace(node("a"), is_head=True), node("b", draining=True)
    assert not head_drains([head, other])
    assert head_drains([replace(head, draining=True), node("b")])
    assert not head_drains([])


def test_gpus_are_taken_where_there_are_any():
    assert choose_device("auto", [node(), node(gpus=1)]) == "cuda"
    assert choose_device("auto", [node()]) == "cpu"
    assert choose_device("cpu", [node(gpus=8)]) == "cpu"
    assert choose_device("cuda", [node()]) == "cuda"


def test_workers_by_cores_and_gpus():
    assert fit(node(cpus=4), node(cpus=3), cpus=2) == [2, 1]
    assert fit(node(cpus=16, gpus=4), node(cpus=2, gpus=4), node(), device="cuda") == [4, 2, 0]
    assert fit(node(cpus=16, gpus=4), device="cuda", gpus=2) == [2]


@given(st.integers(1, 8), st.integers(1, 200))
@example(1, 93)  # 1 / (1 / 93) is a little below 93
def test_a_gpu_can_be_shared_by_as_many_workers_as_fit(gpus, workers_per_gpu):
    assert fit(node(cpus=2_000, gpus=gpus), device="cuda", gpus=1 / workers_per_gpu) == [gpus * workers_per_gpu]


def test_shares_written_in_decimals_are_exact():
    assert fit(node(cpus=99, gpus=1), device="cuda", gpus=0.1) == [10]
    assert fit(node(cpus=99, gpus=1), device="cuda", gpus=0.3) == [3]


def test_more_workers_than_the_cluster_has_room_for():
    room = slots([node(cpus=1), node(cpus=1)], device="cpu", cpus_per_worker=1, gpus_per_worker=1)
    check_capacity([1, 2], room, device="cpu")
    with pytest.raises(RequestError, match=r"sweep.num_gpus: 3: the cluster has room for 2 CPU workers") as caught:
        check_capacity([1, 3, 2], room, device="cpu")
    assert caught.value.exit_code == ExitCode.BAD_REQUEST
    assert "up to 2" in caught.value.remedy


def test_a_node_that_drains_is_there_but_has_no_room():
    room = slots([node("a"), node("b", draining=True)], device="cpu", cpus_per_worker=1, gpus_per_worker=1)
    assert [(each.node_id, each.slots, each.draining) for each in room] == [("a", 4, False), ("b", 0, True)]
    with pytest.raises(RequestError, match="room for 4 CPU workers"):
        check_capacity([5], room, device="cpu")


def test_a_cluster_that_may_grow_takes_larger_trials_up_to_its_limit():
    cpu = {"device": "cpu", "cpus_per_worker": 2, "gpus_per_worker": 1.0}
    assert Growth().slots(**cpu) == math.inf
    assert Growth(most={"CPU": 17.0}).slots(**cpu) == 8
    assert Growth(most={"CPU": 17.0, "GPU": 4.0}).slots(**{**cpu, "device": "cuda"}) == 4
    assert Growth(most={"CPU": 17.0}).slots(**{**cpu, "device": "cuda"}) == 0
    shared = {"device": "cuda", "cpus_per_worker": 1, "gpus_per_worker": 0.2}
    assert Growth(most={"CPU": 99.0, "GPU": 1.0}).slots(**shared) == 5, "as on a node"
    resources = Resources(cpus_per_worker=2)
    assert place(resources, [4000], [node()], Growth())[0] == "cpu"
    assert place(resources, [8], [node()], Growth(most={"CPU": 16.0}))[0] == "cpu"
    with pytest.raises(RequestError, match=r"9: the cluster has room for 2 CPU workers, and for 8 with all") as caught:
        place(resources, [9], [node()], Growth(most={"CPU": 16.0}))
    assert "up to 8" in caught.value.remedy
