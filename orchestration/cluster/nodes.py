"""The nodes of a cluster, and how many workers fit on each. A *slot* is room for one worker."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scalestudy.experiments.spec.sections import Resources
from scalestudy.orchestration.base.errors import RequestError
from scalestudy.orchestration.cluster.ray_private import ClusterLimits, draining_node_ids

ROUNDING = 1e-6
"""Added to a quotient before it is rounded down, since 1 // 0.2 is 4."""
NO_LIMIT = float(2**53)
"""In a sum, a resource without a limit."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node of the cluster and the number of workers that it has room for when it is empty.

    A study trains on nodes of one type of GPUs; an unknown type ("") counts as one. Several nodes may be raylets on one
    machine: work on one disturbs the timings of the others. A draining node has no room, but workers may still be on
    it.
    """

    node_id: str
    slots: int
    host: str = ""  # the machine's name; "": the node is the machine
    draining: bool = False
    taken: int = 0  # slots that other work on the cluster leaves no room for
    accelerator: str = ""  # the type of its GPUs, if workers get GPUs; "": unknown, or workers get none

    @property
    def machine(self) -> str:
        """The machine that the node is on; nodes of one machine disturb each other's timings."""
        return self.host or self.node_id


HEAD = "node:__internal_head__"
"""A resource that Ray gives to the head alone."""
ACCELERATOR_LABEL = "ray.io/accelerator-type"
ACCELERATOR_RESOURCE = "accelerator_type:"
"""Prefix of the resource by which a node, or an autoscaler's group of nodes, names its type of GPUs."""


@dataclass(frozen=True, kw_only=True)
class ClusterNode:
    """A machine, or a raylet that stands for one: its id and the resources that Ray may give away there."""

    node_id: str
    host: str
    cpus: float
    gpus: float
    draining: bool = False  # goes soon, like a spot machine that is taken back; Ray starts nothing new on it
    is_head: bool = False  # the cluster ends with it; the pool and Tune's processes run there
    accelerator: str = ""  # the type of its GPUs; "": unknown


HEAD_DRAINS = "the cluster's head is about to be removed (it drains), and the cluster with it"


def head_drains(nodes: Sequence[ClusterNode]) -> bool:
    """Whether the head goes soon."""
    return any(node.is_head and node.draining for node in nodes)


def alive_nodes() -> tuple[ClusterNode, ...]:
    """Return the nodes of the connected cluster, as Ray's head sees them now."""
    import ray

    draining = draining_node_ids()
    return tuple(
        ClusterNode(
            node_id=node["NodeID"],
            host=node["NodeManagerHostname"],
            cpus=node["Resources"].get("CPU", 0.0),
            gpus=node["Resources"].get("GPU", 0.0),
            draining=node["NodeID"] in draining,
            is_head=HEAD in node["Resources"],
            accelerator=accelerator_type(node["Resources"], node.get("Labels") or {}),
        )
        for node in ray.nodes()
        if node["Alive"]
    )


def accelerator_type(resources: Iterable[str], labels: Mapping[str, str]) -> str:
    """Return the type of a node's GPUs, "" if nothing names it.

    Its label wins; else the first in the alphabet of the resources that name a type.
    """
    named = (name.removeprefix(ACCELERATOR_RESOURCE) for name in resources if name.startswith(ACCELERATOR_RESOURCE))
    return labels.get(ACCELERATOR_LABEL) or min(named, default="")


def choose_device(wanted: str, nodes: Sequence[ClusterNode]) -> str:
    """Return `cpu` or `cuda`; `auto` takes GPUs where the cluster has any."""
    if wanted == "auto":
        return "cuda" if any(node.gpus for node in nodes) else "cpu"
    return wanted


def slots(
    nodes: Sequence[ClusterNode],
    *,
    device: str,
    cpus_per_worker: int,
    gpus_per_worker: float,
    spare_cpus: int = 0,
    used: Mapping[str, Mapping[str, float]] | None = None,
) -> list[Node]:
    """Return each node with the number of workers that it has room for. A draining node has none.

    Only nodes for GPU workers have a type of GPUs. spare_cpus: that no worker gets, on the node with the most CPUs.
    used: CPUs and GPUs that other work holds, by node.
    """
    largest = max((node for node in nodes if not node.draining), key=lambda node: node.cpus, default=None)

    def fit(node: ClusterNode, use: Mapping[str, float]) -> int:
        spared = spare_cpus if node is largest else 0
        cpus, gpus = node.cpus - spared - use.get("CPU", 0.0), node.gpus - use.get("GPU", 0.0)
        fitting = workers_that_fit(cpus, gpus, device, cpus_per_worker, gpus_per_worker)
        return 0 if node.draining else max(0, fitting)

    def describe(node: ClusterNode) -> Node:
        total = fit(node, {})
        taken = total - fit(node, (used or {}).get(node.node_id, {}))
        return Node(
            node_id=node.node_id,
            slots=total,
            host=node.host,
            draining=node.draining,
            taken=taken,
            accelerator=node.accelerator if device == "cuda" else "",
        )

    return [describe(node) for node in nodes]


def room_by_type(nodes: Iterable[Node]) -> dict[str, int]:
    """Return how many workers fit on empty nodes, by type of GPUs; a type without room is left out."""
    room: dict[str, int] = {}
    for node in nodes:
        if node.slots:
            room[node.accelerator] = room.get(node.accelerator, 0) + node.slots
    return room


def of_one_type(nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes of the type of GPUs that has the most room when empty; of several such types, the first by name.

    All trials of a study train there, even if they must wait: times on another type can't be compared.
    """
    room = room_by_type(nodes)
    chosen = min(room, key=lambda kind: (-room[kind], kind), default="")
    return [node for node in nodes if node.accelerator == chosen]


def largest_group(nodes: Sequence[Node]) -> int:
    """Return the most workers that a group can have on empty nodes of one type of GPUs."""
    return sum(node.slots for node in of_one_type(nodes))


def workers_that_fit(cpus: float, gpus: float, device: str, cpus_per_worker: int, gpus_per_worker: float) -> int:
    """Return how many workers of a device these CPUs and GPUs of one node are enough for.

    A fraction of a GPU lies on one GPU. What others leave free of shared GPUs counts as one piece: Ray fills a GPU that
    is in use before it begins another.
    """
    by_cpu = int(cpus // cpus_per_worker)
    if device != "cuda":
        return by_cpu
    if gpus_per_worker >= 1:
        return min(by_cpu, int(gpus // gpus_per_worker))
    whole = math.floor(gpus + ROUNDING)
    on_each, on_piece = int(1 / gpus_per_worker + ROUNDING), int((gpus - whole) / gpus_per_worker + ROUNDING)
    return min(by_cpu, whole * on_each + on_piece)


@dataclass(frozen=True, kw_only=True)
class Growth:
    """How far an autoscaler may let the cluster grow."""

    limits: ClusterLimits | None = None  # None: unknown

    def most(self, *, device: str, cpus_per_worker: int, gpus_per_worker: float) -> Grown:
        """Return the most that the cluster can have."""
        if self.limits is None:
            return Grown(machines=math.inf, slots=math.inf, largest_group=math.inf)

        def fit(resources: Mapping[str, float], default: float) -> int:
            cpus, gpus = resources.get("CPU", default), resources.get("GPU", default)
            return workers_that_fit(cpus, gpus, device, cpus_per_worker, gpus_per_worker)

        fitting = [(group, count) for group in self.limits.groups if (count := fit(group.resources, 0.0))]
        limited = self.limits.total.keys() & ({"CPU", "GPU"} if device == "cuda" else {"CPU"})
        in_all = fit(self.limits.total, NO_LIMIT) if limited else math.inf
        by_type: dict[str, float] = {}
        for group, count in fitting:
            kind = accelerator_type(group.resources, {}) if device == "cuda" else ""
            by_type[kind] = by_type.get(kind, 0) + group.most * count
        return Grown(
            machines=sum(group.most for group, _ in fitting),
            slots=min(in_all, sum(by_type.values())),
            largest_group=min(in_all, max(by_type.values(), default=0)),
        )


@dataclass(frozen=True, kw_only=True)
class Grown:
    """The most that a cluster can have; infinity: unknown."""

    machines: float  # with room for a worker
    slots: float  # workers in all
    largest_group: float  # workers of one group, which are all on GPUs of one type


def place(
    resources: Resources,
    sizes: Sequence[int],
    nodes: Sequence[ClusterNode],
    growth: Growth | None = None,
    *,
    spare_cpus: int = 0,
) -> tuple[str, list[Node]]:
    """Return the device that a study's workers get, and their room on each node.

    growth: None: no autoscaler adds nodes. spare_cpus: see `slots`.

    Raises RequestError if a trial of one of these sizes needs more workers than the cluster can ever have.
    """
    device = choose_device(resources.device, nodes)
    cpus, gpus = resources.cpus_per_worker, resources.gpus_per_worker
    room = slots(nodes, device=device, cpus_per_worker=cpus, gpus_per_worker=gpus, spare_cpus=spare_cpus)
    grown = growth.most(device=device, cpus_per_worker=cpus, gpus_per_worker=gpus).largest_group if growth else 0
    check_capacity(sizes, room, device=device, grown=grown)
    return device, room


def check_capacity(sizes: Sequence[int], room: Sequence[Node], *, device: str, grown: float = 0) -> None:
    """Raise RequestError if a trial needs more workers than the cluster can ever have.

    grown: the workers of one trial that fit once the autoscaler has added all that it may.
    """
    now = largest_group(room)
    most, largest = max(now, grown), max(sizes)
    if largest > most:
        what = "GPU workers" if device == "cuda" else "CPU workers"
        later = f", and for {grown:g} with all that its autoscaler may add" if grown > now else ""
        raise RequestError(
            f"sweep.num_gpus: {largest}: the cluster has room for {now} {what}{types_words(room)}{later}",
            f"use num_gpus up to {most:g}, add machines, lower resources.cpus_per_worker, or on one machine allow more "
            "workers than cores with `--set resources.oversubscribe=true` (timings are then flagged)",
        )


def types_words(room: Sequence[Node]) -> str:
    """Return the words after a number of workers that name the types of GPUs; "" if there is only one type."""
    by_type = room_by_type(room)
    if len(by_type) < 2:
        return ""
    listed = ", ".join(f"{kind or 'unknown'} {count}" for kind, count in sorted(by_type.items()))
    return f" on GPUs of one type ({listed}), and a study never mixes types"
