"""What fits on a cluster, by its description alone."""

import math
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scalestudy.experiments.spec.sections import Resources
from scalestudy.orchestration.base.errors import ExitCode, RequestError
from scalestudy.orchestration.cluster.nodes import (
    ACCELERATOR_LABEL,
    ACCELERATOR_RESOURCE,
    ClusterNode,
    Grown,
    Growth,
    accelerator_type,
    check_capacity,
    choose_device,
    head_drains,
    largest_group,
    place,
    room_by_type,
    slots,
)
from scalestudy.orchestration.cluster.ray_private import ClusterLimits, NodeGroup


def node(name="a", cpus=4.0, gpus=0.0, draining=False):
    return ClusterNode(node_id=name, host=name, cpus=cpus, gpus=gpus, draining=draining)


def fit(*nodes, device="cpu", cpus=1, gpus=1.0):
    return [n.slots for n in slots(nodes, device=device, cpus_per_worker=cpus, gpus_per_worker=gpus)]


def test_spared_cpus_are_of_the_largest_node_that_stays():
    nodes = [node("a", cpus=2), node("b", cpus=4), node("c", cpus=8, draining=True)]
    room = slots(nodes, device="cpu", cpus_per_worker=1, gpus_per_worker=1, spare_cpus=1)
    assert [each.slots for each in room] == [2, 3, 0]


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


def test_the_type_of_a_node_s_gpus_is_its_label_or_in_the_name_of_a_resource():
    label, resource = {ACCELERATOR_LABEL: "A100"}, {"CPU": 4.0, "accelerator_type:T4": 1.0}
    assert accelerator_type({"CPU": 4.0}, label) == "A100"
    assert accelerator_type(resource, {}) == "T4"
    assert accelerator_type(resource, label) == "A100", "autoscalers set the label"
    assert accelerator_type({"GPU": 1.0}, {"ray.io/zone": "x"}) == ""


def test_of_several_resources_that_name_a_type_their_order_decides_nothing():
    names = ["accelerator_type:T4", "accelerator_type:A100", "CPU"]
    assert {accelerator_type(order, {}) for order in (names, names[::-1])} == {"A100"}


MIXED = [replace(node("a", 8, 2), accelerator="A100"), replace(node("t", 8, 4), accelerator="T4"), node("u", 8, 1)]


def test_room_has_the_type_of_its_gpus_and_cores_have_none():
    on_gpus, on_cores = (
        slots(MIXED, device=device, cpus_per_worker=1, gpus_per_worker=0.4) for device in ("cuda", "cpu")
    )
    assert room_by_type(on_gpus) == {"A100": 4, "T4": 8, "": 2}, "two workers on each GPU"
    assert (room_by_type(on_cores), largest_group(on_cores)) == ({"": 24}, 24)


def test_a_trial_that_only_fits_across_types_is_refused():
    resources = Resources(gpus_per_worker=0.4)
    assert place(resources, [8], MIXED)[0] == "cuda"
    with pytest.raises(RequestError) as caught:
        place(resources, [8, 9], MIXED)
    assert caught.value.problem == (
        "sweep.num_gpus: 9: the cluster has room for 8 GPU workers on GPUs of one type (unknown 2, A100 4, T4 8), and "
        "a study never mixes types"
    )
    assert "use num_gpus up to 8" in caught.value.remedy
    with pytest.raises(RequestError) as caught:
        place(resources, [3], [*MIXED[2:], node("c")])
    assert caught.value.problem.endswith("room for 2 GPU workers"), "a node without GPUs is of no type"


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


@pytest.mark.parametrize(("gpus", "share", "workers"), [(2, 0.4, 4), (8, 0.75, 8), (3, 0.5, 6), (4, 0.6, 4)])
def test_a_worker_s_share_lies_on_one_gpu(gpus, share, workers):
    assert fit(node(cpus=99, gpus=gpus), device="cuda", gpus=share) == [workers]


@given(st.integers(1, 16), st.integers(1, 100))
def test_a_gpu_holds_as_many_shares_as_come_to_a_whole_one_at_most(gpus, hundredths):
    on_one = max(count for count in range(101) if count * hundredths <= 100)
    assert fit(node(cpus=2_000, gpus=gpus), device="cuda", gpus=hundredths / 100) == [gpus * on_one]


def test_what_others_leave_of_a_gpu_can_be_used():
    def taken(used, share, gpus=2):
        use = {"a": {"GPU": used}}
        (found,) = slots([node(cpus=99, gpus=gpus)], device="cuda", cpus_per_worker=1, gpus_per_worker=share, used=use)
        return found.slots, found.taken

    assert taken(0.5, 0.5) == (4, 1)
    assert taken(0.3, 0.4) == (4, 1), "0.7 and 1 are left: one worker and two"
    assert taken(0.5, 1) == (2, 1)
    assert taken(2.5, 0.5) == (4, 4), "more than there is: the node's report is older than others' work"


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


CPU = {"device": "cpu", "cpus_per_worker": 2, "gpus_per_worker": 1.0}
GPU = {**CPU, "device": "cuda"}


def growth(*groups, **total):
    """Growth up to these groups of nodes, each with the CPUs and GPUs of a node and the number of nodes."""
    kinds = [NodeGroup(resources={"CPU": cpus, "GPU": gpus}, most=most) for cpus, gpus, most in groups]
    return Growth(limits=ClusterLimits(groups=tuple(kinds), total=total))


def test_a_grown_cluster_holds_what_its_nodes_hold_each_by_itself():
    assert growth((3, 0, 3)).most(**CPU) == Grown(machines=3, slots=3, largest_group=3), "not 9 // 2"
    assert growth((4, 0, 2), (1, 0, 9)).most(**CPU) == Grown(machines=2, slots=4, largest_group=4), (
        "a core is too little for a worker"
    )
    assert growth((16, 4, 2), (16, 0, 8)).most(**GPU) == Grown(machines=2, slots=8, largest_group=8)
    kinds = [
        NodeGroup(resources={"CPU": 8, "GPU": 2, f"{ACCELERATOR_RESOURCE}{kind}": 1}, most=most)
        for kind, most in (("A100", 3), ("T4", 2), ("T4", 2))
    ]
    grown = Growth(limits=ClusterLimits(groups=tuple(kinds)))
    assert grown.most(**{**GPU, "cpus_per_worker": 1}) == Grown(machines=7, slots=14, largest_group=8)
    assert grown.most(**CPU) == Grown(machines=7, slots=28, largest_group=28), "cores have no type"
    assert growth((9, 2, 2)).most(**{**GPU, "cpus_per_worker": 1, "gpus_per_worker": 0.4}).slots == 8, "as on a node"


def test_a_grown_cluster_s_limits_may_be_of_all_nodes_or_unknown():
    assert Growth().most(**CPU) == Grown(machines=math.inf, slots=math.inf, largest_group=math.inf)
    assert growth((4, 0, math.inf)).most(**CPU).slots == math.inf
    assert growth((4, 0, math.inf), CPU=17.0).most(**CPU).slots == 8
    assert growth((4, 1, 10), GPU=3).most(**GPU).slots == 3
    assert growth((4, 0, math.inf)).most(**GPU) == Grown(machines=0, slots=0, largest_group=0)


def test_a_cluster_that_may_grow_takes_larger_trials_up_to_its_limit():
    resources = Resources(cpus_per_worker=2)
    assert place(resources, [4000], [node()], Growth())[0] == "cpu"
    assert place(resources, [8], [node()], growth((4, 0, 4)))[0] == "cpu"
    with pytest.raises(RequestError, match=r"9: the cluster has room for 2 CPU workers, and for 8 with all") as caught:
        place(resources, [9], [node()], growth((4, 0, 4)))
    assert "up to 8" in caught.value.remedy
