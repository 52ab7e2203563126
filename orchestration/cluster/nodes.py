"""The nodes of a cluster, and how many workers fit on each. A *slot* is room for one worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scalestudy.experiments.spec.sections import Resources
from scalestudy.orchestration.base.errors import RequestError
from scalestudy.orchestration.cluster.ray_private import draining_node_ids


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node of the cluster and the number of workers that it has room for.

    Several nodes may be raylets on one machine: work on one disturbs the timings of the others. A draining node has no
    room, but workers may still be on it.
    """

    node_id: str
    slots: int
    host: str = ""  # the machine's name; "": the node is a machine of its own
    draining: bool = False

    @property
    def machine(self) -> str:
        """Nodes with the same machine disturb each other's timings."""
        return self.host or self.node_id


@dataclass(frozen=True, kw_only=True)
class ClusterNode:
    """A machine, or a raylet that stands for one: its id and what Ray may give away there.

    draining: the node goes soon, like a spot machine that is taken back. Ray starts nothing new on it.
    """

    node_id: str
    host: str
    cpus: float
    gpus: float
    draining: bool = False


def alive_nodes() -> tuple[ClusterNode, ...]:
    """The nodes of the connected cluster, as Ray's head sees them now."""
    import ray

    draining = draining_node_ids()
    return tuple(
        ClusterNode(
            node_id=node["NodeID"],
            host=node["NodeManagerHostname"],
            cpus=node["Resources"].get("CPU", 0.0),
            gpus=node["Resources"].get("GPU", 0.0),
            draining=node["NodeID"] in draining,
        )
        for node in ray.nodes()
        if node["Alive"]
    )


def choose_device(wanted: str, nodes: Sequence[ClusterNode]) -> str:
    """`cpu` or `cuda`; `auto` takes GPUs where the cluster has any."""
    if wanted == "auto":
        return "cuda" if any(node.gpus for node in nodes) else "cpu"
    return wanted


def slots(nodes: Sequence[ClusterNode], *, device: str, cpus_per_worker: int, gpus_per_worker: float) -> list[Node]:
    """How many workers each node has room for when it is empty. A draining node has none."""

    def fit(node: ClusterNode) -> int:
        by_cpu = 0 if node.draining else int(node.cpus // cpus_per_worker)
        # 1 // 0.2 is 4, so the quotient is rounded up a little
        return min(by_cpu, int(node.gpus / gpus_per_worker + 1e-6)) if device == "cuda" else by_cpu

    return [Node(node_id=node.node_id, slots=fit(node), host=node.host, draining=node.draining) for node in nodes]


def place(resources: Resources, sizes: Sequence[int], nodes: Sequence[ClusterNode]) -> tuple[str, list[Node]]:
    """The device that a study's workers get, and their room on each node.

    Raises RequestError when a trial of one of these sizes wants more workers than the cluster can ever have.
    """
    device = choose_device(resources.device, nodes)
    room = slots(
        nodes,
        device=device,
        cpus_per_worker=resources.cpus_per_worker,
        gpus_per_worker=resources.gpus_per_worker,
    )
    check_capacity(sizes, room, device=device)
    return device, room


def check_capacity(sizes: Sequence[int], room: Sequence[Node], *, device: str) -> None:
    """Raises RequestError when a trial wants more workers than the cluster can ever have."""
    total = sum(node.slots for node in room)
    largest = max(sizes)
    if largest > total:
        what = "GPU workers" if device == "cuda" else "CPU workers"
        raise RequestError(
            f"sweep.num_gpus: {largest}: the cluster has room for {total} {what}",
            f"use num_gpus up to {total}, add machines, lower resources.cpus_per_worker, or on one machine allow more "
            "workers than cores with `--set resources.oversubscribe=true` (timings are then flagged)",
        )
