"""When each trial of a plan runs, by the engine's decisions, and what no schedule can be shorter than. Pure.

The simulation hands in trials as Tune does, in the plan's order and so many at a time. `placement.decide` and
`placement.ahead` decide as in a run, while a clock jumps from one end to the next. It knows no failures, and ignores
that groups slow each other down when they start together.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scalestudy.orchestration.groups.placement import Grant, GroupView, Placement, Request, Start, Stop, ahead, decide
from scalestudy.orchestration.study.concurrency import Room, concurrency


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
    nodes: int  # of its workers
    ready: float  # when its workers can take a trial
    served: int = 0  # number of trials


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """When everything runs, in the unit of the durations."""

    trials: Sequence[TrialSpan]
    groups: Sequence[GroupSpan]

    @property
    def makespan(self) -> float:
        """From the first order to the last trial's end."""
        return max(span.end for span in self.trials)


def simulate(works: Sequence[Work], room: Room, costs: Costs = NO_COSTS, placement: Placement = "pack") -> Schedule:
    """Simulate trials in their order; each must fit the room."""
    run = _Run(works=works, room=room, costs=costs, placement=placement)
    run.go()
    return Schedule(trials=run.spans, groups=[*run.groups.values()])


def lower_bound(works: Sequence[Work], room: Room) -> float:
    """Return the longest of: the longest trial, the work over the room, the trials that exclude one another."""
    longest = max(work.duration for work in works)
    shared = sum(work.duration * work.num_workers for work in works) / room.slots
    alone = sum(work.duration for work in works if 2 * work.num_workers > room.slots)
    machines = len({node.machine for node in room.nodes if node.slots})
    one_a_machine = sum(work.duration for work in works) / machines if room.exclusive else 0.0
    return max(longest, shared, alone, one_a_machine)


@dataclass(kw_only=True)
class _Run:
    """A simulation under way; times in the durations' unit."""

    works: Sequence[Work]
    room: Room
    costs: Costs
    placement: Placement
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
        for _ in range(concurrency([work.num_workers for work in self.works], self.room)):
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
        rules: Any = {"exclusive": self.room.exclusive, "placement": self.placement}
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
        self.groups[group_id] = GroupSpan(group_id=group_id, nodes=len(action.slots), ready=ready)
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
        self.views[group_id] = replace(view, state="idle")
