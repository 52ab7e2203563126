"""Which trial gets which group next, as one pure function.

A *slot* is room for one worker. Requests are served in the order in which they came, so that small trials do not starve
a large one: a request that must wait holds back the room that it waits for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from scalestudy.orchestration.cluster.nodes import Node

GroupState = Literal["starting", "idle", "busy", "stopping"]


@dataclass(frozen=True, kw_only=True)
class GroupView:
    """What the decision needs to know of a group; `slots` says how many of its workers each node holds."""

    group_id: str
    num_workers: int
    state: GroupState
    slots: Mapping[str, int]
    exhausted: bool = False  # has served its number of trials: stop it instead of giving it another trial


@dataclass(frozen=True, kw_only=True)
class Request:
    """A trial that waits for a group."""

    trial_id: str
    num_workers: int


@dataclass(frozen=True, kw_only=True)
class Grant:
    """Give an idle group to a trial."""

    trial_id: str
    group_id: str


@dataclass(frozen=True, kw_only=True)
class Start:
    """Start a group for a trial; `slots` is where, one node if it fits."""

    trial_id: str
    num_workers: int
    slots: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Stop:
    """End an idle group."""

    group_id: str


Action = Grant | Start | Stop


@dataclass
class _Room:
    """The working copy of one decision: what is still free, and which groups are spoken for."""

    free: dict[str, int]
    machines: Mapping[str, str]  # node → machine
    groups: Sequence[GroupView]
    exclusive: bool
    taken: set[str] = field(default_factory=set)  # groups that this decision has used up
    busy: set[str] = field(default_factory=set)  # machines on which a trial runs or a group starts

    @classmethod
    def of(cls, nodes: Sequence[Node], groups: Sequence[GroupView], *, exclusive: bool) -> _Room:
        """What the groups leave free; nothing counts as busy yet."""
        free = {node.node_id: node.slots for node in nodes}
        for group in groups:
            for node_id, count in group.slots.items():
                free[node_id] = free.get(node_id, 0) - count
        machines = {node.node_id: node.machine for node in nodes}
        return cls(free=free, machines=machines, groups=groups, exclusive=exclusive)

    def unused(self, state: GroupState) -> list[GroupView]:
        """The groups in this state that the decision has not used up."""
        return [group for group in self.groups if group.state == state and group.group_id not in self.taken]

    def disturbs(self, slots: Mapping[str, int]) -> bool:
        """Whether work on these nodes would spoil the timings of a trial that has its machines to itself."""
        return self.exclusive and not self.busy.isdisjoint(self._machines_of(slots))

    def mark_busy(self, slots: Mapping[str, int]) -> None:
        """A trial runs, or a group starts, on these nodes."""
        self.busy.update(self._machines_of(slots))

    def place(self, num_workers: int) -> dict[str, int] | None:
        """Where a group of this size fits now: one node if any has the room, else spread over several, else None."""
        by_room = sorted(self.free.items(), key=lambda item: (self.disturbs({item[0]: 1}), -item[1], item[0]))
        for node_id, free in by_room:
            if free >= num_workers:
                return {node_id: num_workers}
        slots: dict[str, int] = {}
        for node_id, free in by_room:
            count = min(max(free, 0), num_workers - sum(slots.values()))
            if count:
                slots[node_id] = count
        return slots if sum(slots.values()) == num_workers else None

    def _machines_of(self, slots: Mapping[str, int]) -> set[str]:
        return {self.machines.get(node_id, node_id) for node_id in slots}


def decide(
    nodes: Sequence[Node], groups: Sequence[GroupView], requests: Sequence[Request], *, exclusive: bool
) -> list[Action]:
    """Decides what to do now for the waiting requests, oldest first.

    Args:
        nodes: the cluster.
        groups: every group that has not ended; a stopping group still holds its slots.
        requests: waiting trials, oldest first.
        exclusive: one trial at a time on a machine, and no group starts beside a running trial.

    Returns:
        Actions that do not conflict. A request without an action waits.
    """
    room = _Room.of(nodes, groups, exclusive=exclusive)
    for group in groups:
        if group.state in ("busy", "starting"):
            room.mark_busy(group.slots)
    exhausted = [group for group in room.unused("idle") if group.exhausted]
    room.taken.update(group.group_id for group in exhausted)
    actions: list[Action] = [Stop(group_id=group.group_id) for group in exhausted]
    for request in requests:
        size = request.num_workers
        fitting = [group for group in room.unused("idle") if group.num_workers == size]
        if idle := next((group for group in fitting if not room.disturbs(group.slots)), None):
            room.taken.add(idle.group_id)
            room.mark_busy(idle.slots)
            actions.append(Grant(trial_id=request.trial_id, group_id=idle.group_id))
            continue
        if starting := next((group for group in room.unused("starting") if group.num_workers == size), None):
            room.taken.add(starting.group_id)  # it is on the way for this request
            continue
        slots = room.place(size)
        if slots is None:
            leaving = sum(group.num_workers for group in (*exhausted, *room.unused("stopping")))
            actions.extend(_evictions(room, size - leaving))
            break
        if room.disturbs(slots):
            break
        for node_id, count in slots.items():
            room.free[node_id] = room.free.get(node_id, 0) - count
        room.mark_busy(slots)
        actions.append(Start(trial_id=request.trial_id, num_workers=size, slots=slots))
    return actions


def ahead(nodes: Sequence[Node], groups: Sequence[GroupView], sizes: Sequence[int], *, exclusive: bool) -> Start | None:
    """The start of a group ahead of need, in room that nobody has used yet; ask when no trial waits.

    One at a time: two starts at once take longer than one after the other. With `exclusive`, only on machines without
    any group: a trial that comes in the meantime would have to wait for the start's end.

    Args:
        nodes: the cluster.
        groups: every group that has not ended.
        sizes: of the trials to come, in their order.
        exclusive: as for `decide`.
    """
    there = {group.num_workers for group in groups if group.state != "stopping"}
    size = next((size for size in sizes if size not in there), None)
    if size is None or any(group.state == "starting" for group in groups):
        return None
    room = _Room.of(nodes, groups, exclusive=exclusive)
    for group in groups:
        room.mark_busy(group.slots)
    slots = room.place(size)
    return None if slots is None or room.disturbs(slots) else Start(trial_id="", num_workers=size, slots=slots)


def _evictions(room: _Room, num_workers: int) -> list[Stop]:
    """The fewest idle groups whose end makes room for so many workers; none when all of them would not be enough."""
    missing = num_workers - sum(max(count, 0) for count in room.free.values())
    stops: list[Stop] = []
    for group in sorted(room.unused("idle"), key=lambda group: -group.num_workers):
        if missing > 0 and not room.disturbs(group.slots):
            stops.append(Stop(group_id=group.group_id))
            missing -= group.num_workers
    return stops if missing <= 0 else []
