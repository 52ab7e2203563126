"""What Ray tells of free room, placement groups and jobs, by the names that are private to it."""

import math

import pytest
import ray
from ray.core.generated import autoscaler_pb2
from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_put

from scalestudy.orchestration.base.errors import UnreachableError
from scalestudy.orchestration.cluster import connection, nodes, ray_private
from scalestudy.orchestration.cluster.nodes import alive_nodes
from scalestudy.orchestration.cluster.ray_private import ClusterLimits, NodeGroup
from scalestudy.orchestration.cluster.sharing import WANTED, demand_of_others, reservations, used_by_others
from tests.support.groups import wait_until


def of(group):
    """The reservation of a placement group; None: Ray does not list it."""
    return next((each for each in reservations() if each.key == group.id.hex()), None)


def used(ours=lambda each: False):
    """CPUs of the only node that others hold."""
    (node,) = alive_nodes()
    return used_by_others([node], ray_private.available_per_node(), reservations(), ours)[node.node_id]["CPU"]


def test_a_group_that_has_room_holds_it(cluster):
    job = ray_private.job_number(ray.get_runtime_context().get_job_id())
    before = used()
    group = ray.util.placement_group([{"CPU": 1, "memory": 77}] * 2)
    try:
        ray.get(group.ready(), timeout=30)
        (node,) = alive_nodes()
        found = of(group)
        assert (found.job, found.memory, found.waits, found.is_study) == (job, 77.0, False, True)
        assert found.held[node.node_id]["CPU"] == 2
        wait_until(lambda: used() == before + 2, 20)
        wait_until(lambda: used(lambda each: each.key == found.key) == before, 20)
    finally:
        ray.util.remove_placement_group(group)
    wait_until(lambda: of(group) is None, 20)
    wait_until(lambda: used() == before, 20)


def test_a_group_without_room_waits(cluster):
    job = ray_private.job_number(ray.get_runtime_context().get_job_id())
    group = ray.util.placement_group([{"CPU": 1}] * 50, name=WANTED)
    try:
        found = wait_until(lambda: of(group), 20)
        assert (found.waits, found.held, found.memory, found.is_study) == (True, {}, None, True)
        assert demand_of_others(reservations(), job) == "none", "it is this job's own"
        assert demand_of_others(reservations(), job + 1) == "other", "of an older study"
        assert demand_of_others(reservations(), job - 1) == "younger study"
    finally:
        ray.util.remove_placement_group(group)


@pytest.mark.chaos
def test_a_cluster_whose_head_drains_is_not_joined(cluster, monkeypatch):
    (node,) = alive_nodes()
    assert node.is_head
    gcs = ray.get_runtime_context().gcs_address
    assert not ray_private.is_without_nodes(gcs)
    assert not ray_private.is_without_nodes("127.0.0.1:1"), "nobody tells"
    monkeypatch.setattr(nodes, "draining_node_ids", lambda: {node.node_id})
    with pytest.raises(UnreachableError, match="the cluster's head is about to be removed") as caught:
        connection.connect(gcs)
    assert caught.value.exit_code == 3


def test_a_cluster_of_this_machine_does_not_grow(cluster):
    assert ray_private.cluster_limits() is None
    assert not ray_private.is_autoscaled()
    assert cluster.growth is None


def test_an_autoscaler_s_limits_are_read_where_it_tells_them(cluster):
    config = autoscaler_pb2.ClusterConfig()
    for name, cpus, gpus, most in (("head", 8, 0, 1), ("gpu", 16, 4, -1)):
        kind = config.node_group_configs.add(name=name, max_count=most)
        kind.resources["CPU"] = cpus
        if gpus:
            kind.resources["GPU"] = gpus
    config.max_resources["CPU"] = 100
    key, space = ray._raylet.GCS_AUTOSCALER_CLUSTER_CONFIG_KEY, ray._raylet.GCS_AUTOSCALER_STATE_NAMESPACE
    _internal_kv_put(key, config.SerializeToString(), namespace=space)
    try:
        limits = ray_private.cluster_limits()
    finally:
        _internal_kv_del(key, namespace=space)
    assert limits == ClusterLimits(
        groups=(
            NodeGroup(resources={"CPU": 8}, most=1),
            NodeGroup(resources={"CPU": 16, "GPU": 4}, most=math.inf),
        ),
        total={"CPU": 100},
    )
    assert ray_private.cluster_limits() is None
