"""A node, its room, the device, what fits.

A *slot* is room for one worker. Requests are served in the order in which they came, so that a large trial is not
starved by small ones: a request that must wait holds back the room that it waits for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scalestudy.experiments.spec.sections import Resources
from scalestudy.orchestration.base.errors import RequestError


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node of the cluster and the number of workers that it has room for.

    Several nodes may be raylets on one machine: work on one disturbs the timings of the others. A node that drains is
    to go soon, and has no room; workers may still be on it.
    """

    node_id: str
    slots: int
    host: str = ""  # the machine's name; "": the node is a machine of its own
    draining: bool = False

    @property
    def machine(self) -> str:
        """What nodes that disturb each other have in common."""
        return self.host or self.node_id


@dataclass(frozen=True, kw_only=True)
class ClusterNode:
    """A machine (or a raylet that stands for one): its id and what Ray may give away there.

    draining: it is to go soon, as a spot machine that is taken back; Ray starts nothing new on it.
    """

    node_id: str
    host: str
    cpus: float
    gpus: float
    draining: bool = False


def alive_nodes() -> tuple[ClusterNode, ...]:
    """The nodes of the connected cluster, as Ray's head sees them now.

    Which of them drain is asked as Ray Train and Ray Serve do it: there is no public call.
    """
    import ray
    from ray._private.state import state

    draining = state.get_draining_nodes()
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
    """How many workers each node has room for when it is empty; one that drains has none."""
    return [
        Node(
            node_id=node.node_id,
            slots=_fit(node, device, cpus_per_worker, gpus_per_worker),
            host=node.host,
            draining=node.draining,
        )
        for node in nodes
    ]


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


def _fit(node: ClusterNode, device: str, cpus: int, gpus: float) -> int:
    by_cpu = 0 if node.draining else int(node.cpus // cpus)
    return min(by_cpu, int(node.gpus / gpus + 1e-6)) if device == "cuda" else by_cpu  # 1 // 0.2 is 4


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
