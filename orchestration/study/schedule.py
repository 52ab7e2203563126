"""Which trials share a machine, and when each trial of a plan will run, by the engine's decisions. Pure.

The simulation hands in trials as Tune does, in the plan's order and so many at a time. `placement.decide` and
`placement.ahead` decide as they will in the run, while a clock jumps from one end to the next. So the rule is written
once. The simulation knows no failures, and no trials that a scheduler stops early. It also ignores that groups slow
each other down when they start together.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from scalestudy.experiments.spec.sections import Resources
from scalestudy.orchestration.cluster.nodes import Grown, Node, largest_group
from scalestudy.orchestration.groups.placement import Grant, GroupView, Placement, Request, Start, Stop, ahead, decide
from scalestudy.training.config import Workload

Rule = Literal["exclusive", "packed", "packed, then timed"]


def timing_rule(resources: Resources, device: str) -> Rule:
    """Return how a study's trials share a machine; see docs/concepts.md, Timed alone.

    "exclusive": one at a time. "packed": side by side where they fit. "packed, then timed": side by side, and then each
    kind of step timed by a run with a machine to itself. device: of the workers, "cpu" or "cuda".
    """
    if resources.exclusive == "auto":
        return "exclusive" if device == "cpu" else "packed, then timed"
    return "exclusive" if resources.exclusive else "packed"


def trainings_rule(resources: Resources, device: str, *, trains_for_all: bool) -> Rule:
    """Return how the trials of a study's sweep share a machine.

    Where a training stands for the same with every num_gpus (`StudySpec.trains_for_all`), its duration is not used. So
    trainings run side by side on a CPU too, unless the spec decides.
    """
    if trains_for_all and resources.exclusive is not True:
        return "packed, then timed"
    return timing_rule(resources, device)


@dataclass(frozen=True, kw_only=True)
class Placed:
    """Where a study's trials run."""

    device: str  # "cpu" or "cuda"
    nodes: tuple[Node, ...]  # those with room for workers
    rule: Rule  # of the sweep's trials


@dataclass(frozen=True, kw_only=True)
class Work:
    """A trial to schedule."""

    trial_id: str
    num_workers: int
    duration: float  # how long it trains


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What the engine adds, in seconds: medians of docs/results/engine.md, two cores."""

    start: float = 7.0  # from a group's order to its workers being ready
    stop: float = 1.5  # from the order to end to its room being free
    trial: float = 0.1  # a trial in a warm group, beyond its training


NO_COSTS = Costs(start=0.0, stop=0.0, trial=0.0)


@dataclass(frozen=True, kw_only=True)
class Room:
    """What the trials run on, and by which rules."""

    nodes: tuple[Node, ...]
    exclusive: bool
    trials_per_group: int
    placement: Placement = "pack"

    @property
    def slots(self) -> int:
        """The number of workers that run at a time."""
        return sum(node.slots for node in self.nodes)


@dataclass(frozen=True, kw_only=True)
class TrialSpan:
    """When a trial runs, and in which group."""

    trial_id: str
    group_id: str
    start: float
    end: float


@dataclass(kw_only=True)
class GroupSpan:
    """A group of workers that was started."""

    group_id: str
    num_workers: int
    nodes: int  # of its workers
    ready: float  # when its workers can take a trial
    served: int = 0  # number of trials


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """When everything runs, in the unit of the durations."""

    trials: tuple[TrialSpan, ...]
    groups: tuple[GroupSpan, ...]
    makespan: float  # from the first order to the last trial's end


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


def simulate(works: Sequence[Work], room: Room, costs: Costs = NO_COSTS) -> Schedule:
    """Simulate the trials in their order. Raises ValueError for a trial that the room can never take."""
    largest = max((work.num_workers for work in works), default=0)
    if largest > (most := largest_group(room.nodes)):
        raise ValueError(f"num_gpus: {largest}: there is room for {most} workers at a time")
    run = _Run(works=works, room=room, costs=costs)
    run.go()
    return Schedule(
        trials=tuple(run.spans),
        groups=tuple(run.groups.values()),
        makespan=max((span.end for span in run.spans), default=0.0),
    )


@dataclass(kw_only=True)
class _Run:
    """A simulation under way; times in the durations' unit."""

    works: Sequence[Work]
    room: Room
    costs: Costs
    now: float = 0.0
    waiting: list[Request] = field(default_factory=list)
    views: dict[str, GroupView] = field(default_factory=dict)  # groups that hold room
    groups: dict[str, GroupSpan] = field(default_factory=dict)
    spans: list[TrialSpan] = field(default_factory=list)
    submitted: int = 0
    changes: list[tuple[float, int, str]] = field(default_factory=list)  # heap of (time, number, group that changes)
    numbered: int = 0
    sizes_ahead: list[int] = field(default_factory=list)  # of trials that have had no group, in the plan's order

    def go(self) -> None:
        """Jump from one moment at which groups change to the next, until every trial has ended."""
        self.durations = {work.trial_id: work.duration for work in self.works}
        self.sizes_ahead = list(dict.fromkeys(work.num_workers for work in self.works))
        for _ in range(concurrency([work.num_workers for work in self.works], self.room) if self.works else 0):
            self._submit()
        self._act()
        while self.changes:
            self.now = self.changes[0][0]
            while self.changes and self.changes[0][0] == self.now:
                self._change(heapq.heappop(self.changes)[-1])
            self._act()

    def _submit(self) -> None:
        """Hand the next trial of the plan to the engine, as Tune does when one has ended."""
        if self.submitted < len(self.works):
            work = self.works[self.submitted]
            self.waiting.append(Request(trial_id=work.trial_id, num_workers=work.num_workers))
            self.submitted += 1

    def _act(self) -> None:
        """Do what the engine decides now; start groups ahead of need if no trial waits."""
        rules: Any = {"exclusive": self.room.exclusive, "placement": self.room.placement}
        for action in decide(self.room.nodes, [*self.views.values()], self.waiting, **rules):
            match action:
                case Grant(trial_id=trial_id, group_id=group_id):
                    self.waiting = [request for request in self.waiting if request.trial_id != trial_id]
                    end = self.now + self.costs.trial + self.durations[trial_id]
                    self.spans.append(TrialSpan(trial_id=trial_id, group_id=group_id, start=self.now, end=end))
                    self.groups[group_id].served += 1
                    self._becomes(group_id, "busy", until=end)
                case Start():
                    self._start(action)
                case Stop(group_id=group_id):
                    self._becomes(group_id, "stopping", until=self.now + self.costs.stop)
        if not self.waiting and self.sizes_ahead:
            views = [*self.views.values()]
            if start := ahead(self.room.nodes, views, self.sizes_ahead, **rules):
                self._start(start)

    def _start(self, action: Start) -> None:
        size = action.num_workers
        group_id = f"group-{len(self.groups) + 1}-of-{size}"
        ready = self.now + self.costs.start
        self.sizes_ahead = [other for other in self.sizes_ahead if other != size]
        self.groups[group_id] = GroupSpan(group_id=group_id, num_workers=size, nodes=len(action.slots), ready=ready)
        self.views[group_id] = GroupView(group_id=group_id, num_workers=size, state="starting", slots=action.slots)
        self._becomes(group_id, "starting", until=ready)

    def _becomes(self, group_id: str, state: Any, *, until: float) -> None:
        self.views[group_id] = replace(self.views[group_id], state=state)
        self.numbered += 1
        heapq.heappush(self.changes, (until, self.numbered, group_id))

    def _change(self, group_id: str) -> None:
        """Change a group's state: it is ready, has trained its trial, or is gone."""
        view = self.views[group_id]
        if view.state == "stopping":
            del self.views[group_id]
            return
        if view.state == "busy":
            self._submit()
        exhausted = self.groups[group_id].served >= self.room.trials_per_group
        self.views[group_id] = replace(view, state="idle", exhausted=exhausted)


def spare_cpus(workload: Workload) -> int:
    """Return how many CPUs no worker may get: Ray's data sets are read by tasks, which would wait for ever for one."""
    return 1 if workload.datasets else 0
