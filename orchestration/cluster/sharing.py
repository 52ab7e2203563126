"""Other work on the cluster: what it holds and what it waits for, seen through Ray's placement groups.

Every group of workers is a placement group, and so is the room that a study waits for. Ray numbers its jobs, and a
placement group's id ends with the number of the job that made it: so each of two studies knows which one is older.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from scalestudy.orchestration.cluster.nodes import ClusterNode
from scalestudy.orchestration.cluster.ray_private import job_of_placement_group

Demand = Literal["none", "younger study", "other"]
"""Who else waits for room: nobody, only studies that began later than this one, or other work too."""
Used = Mapping[str, Mapping[str, float]]
"""How much of each resource is used, by node."""

TAGS = 2**24
"""The number of bytes of memory that each worker requests identifies its group. This is the largest such number."""
WANTED = "scalestudy-wanted"
"""Name of the placement group by which a study shows the room that it waits for."""
SAMPLES = 3


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """A placement group that has room, or waits for it."""

    key: str  # its id
    name: str  # as its maker named it; may be empty
    job: int  # number of the Ray job that made it
    memory: float | None  # bytes that each of its bundles requests; None: none, or they differ
    waits: bool  # it has no room yet
    held: Used = field(default_factory=dict)
    """What it holds on each node, even while it waits for the rest, as after a node was lost."""

    @property
    def is_study(self) -> bool:
        """Whether a study made it."""
        return self.name == WANTED or (self.memory is not None and 0 < self.memory <= TAGS)


def reservations() -> list[Reservation]:
    """Return the placement groups, of all jobs of the cluster, that have room or wait for it."""
    import ray

    found = []
    for key, facts in ray.util.placement_group_table().items():
        if facts["state"] not in ("PENDING", "PREPARED", "CREATED", "RESCHEDULING"):
            continue
        held: dict[str, dict[str, float]] = {}
        for number, bundle in facts["bundles"].items():
            if node_id := facts["bundles_to_node_id"].get(number):
                on_node = held.setdefault(node_id, {})
                for resource, amount in bundle.items():
                    on_node[resource] = on_node.get(resource, 0.0) + amount
        memory = {bundle.get("memory") for bundle in facts["bundles"].values()}
        found.append(
            Reservation(
                key=key,
                name=facts["name"],
                job=job_of_placement_group(key),
                memory=memory.pop() if len(memory) == 1 else None,
                waits=facts["state"] in ("PENDING", "RESCHEDULING"),
                held=held,
            )
        )
    return found


def used_by_others(
    nodes: Sequence[ClusterNode],
    available: Used,
    reservations: Sequence[Reservation],
    ours: Callable[[Reservation], bool],
) -> dict[str, dict[str, float]]:
    """Return the CPUs and GPUs of each node that are neither available nor held by our placement groups.

    available: what Ray can still give away, by node; a node that is missing counts as unused.
    """
    own = [reservation for reservation in reservations if ours(reservation)]
    used: dict[str, dict[str, float]] = {}
    for node in nodes:
        if (free := available.get(node.node_id)) is None:
            continue
        for resource, total in (("CPU", node.cpus), ("GPU", node.gpus)):
            held = sum(each.held.get(node.node_id, {}).get(resource, 0.0) for each in own)
            used.setdefault(node.node_id, {})[resource] = max(0.0, total - free.get(resource, 0.0) - held)
    return used


def demand_of_others(reservations: Sequence[Reservation], job: int) -> Demand:
    """Return who else waits for room. job: number of this process's Ray job."""
    waiting = [each for each in reservations if each.waits and each.job != job]
    if not waiting:
        return "none"
    return "younger study" if all(each.is_study and each.job > job for each in waiting) else "other"


def older_studies(reservations: Sequence[Reservation], job: int) -> int:
    """Return how many studies on the cluster began before this process's, whose Ray job has that number."""
    return len({each.job for each in reservations if each.is_study and each.job < job})


class LeastUsed:
    """The least that was used in the last samples, by node.

    Ray's head learns what its nodes give away a moment after it has listed the placement groups. A single sample would
    take a group of ours that starts or ends for others' work.
    """

    def __init__(self) -> None:
        self._samples: deque[Used] = deque(maxlen=SAMPLES)

    def take(self, sample: Used) -> dict[str, dict[str, float]]:
        """Add a sample; return the least so far, for the nodes in it."""
        self._samples.append(sample)
        return {
            node: {
                resource: min(_of(each, node, resource, amount) for each in self._samples)
                for resource, amount in use.items()
            }
            for node, use in sample.items()
        }


def _of(sample: Used, node: str, resource: str, default: float) -> float:
    """Return what a sample says of a node; for a node that came later, its present use."""
    return sample.get(node, {}).get(resource, default)
