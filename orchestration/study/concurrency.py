"""Which trials share a machine, and how many run at a time. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.orchestration.cluster.nodes import Grown, Node
from scalestudy.training.config import Workload

Rule = Literal["exclusive", "packed", "packed, then timed"]


def sharing_rule(spec: StudySpec, device: str) -> Rule:
    """Return how the trials of a study's sweep share a machine; see docs/concepts.md, Timed alone.

    "exclusive": one at a time. "packed": side by side where they fit. "packed, then timed": side by side, and then each
    kind of step timed by a run with a machine to itself. device: of the workers, "cpu" or "cuda".
    """
    exclusive = spec.resources.exclusive
    if exclusive is True:
        return "exclusive"
    if exclusive is False or spec.is_adaptive:  # an adaptive search takes times from the timing runs it asks for
        return "packed"
    return "exclusive" if device == "cpu" else "packed, then timed"


@dataclass(frozen=True, kw_only=True)
class Placed:
    """Where a study's trials run."""

    device: str  # "cpu" or "cuda"
    nodes: tuple[Node, ...]  # those with room for workers
    rule: Rule  # of the sweep's trials


@dataclass(frozen=True, kw_only=True)
class Room:
    """What the trials run on, and whether each has its machines to itself."""

    nodes: tuple[Node, ...]
    exclusive: bool

    @property
    def slots(self) -> int:
        """The number of workers that run at a time."""
        return sum(node.slots for node in self.nodes)


GROWING_CONCURRENCY = 1_000
"""Trials at a time if nobody knows how far the cluster may grow: the head takes no more of Tune's processes."""


def concurrency(sizes: Sequence[int], room: Room, grown: Grown | None = None) -> int:
    """Return how many trials run at a time: one a machine if they have it to themselves, else as many as fit.

    grown: what an autoscaler may make of the room; None: there is none.
    """

    def fitting(machines: float, slots: float) -> float:
        return machines if room.exclusive else slots // min(sizes)

    now = fitting(len({node.machine for node in room.nodes if node.slots}), room.slots)
    later = now
    if grown is not None:
        later = GROWING_CONCURRENCY if math.isinf(grown.slots) else fitting(grown.machines, grown.slots)
    return max(1, int(now), int(later))


def spare_cpus(workload: Workload) -> int:
    """Return how many CPUs no worker may get: Ray's data sets are read by tasks, which would wait for ever for one."""
    return 1 if workload.datasets else 0
