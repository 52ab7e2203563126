"""Who gets which group next, as one pure function.

A *slot* is room for one worker. Requests are served in the order in which they came, so that a large trial is not
starved by small ones: a request that must wait holds back the room that it waits for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from scalestudy.orchestration.cluster.nodes import Node

GroupState = Literal["starting", "idle", "leased", "stopping"]


@dataclass(frozen=True, kw_only=True)
class GroupView:
    """What the decision needs to know of a group; `slots` says how many of its workers each node holds."""

    group_id: str
    num_workers: int
    state: GroupState
    slots: Mapping[str, int]
    exhausted: bool = False  # has served its number of trials: stop it instead of leasing it again


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
    groups: dict[str, GroupView]
    exclusive: bool
    taken: set[str] = field(default_factory=set)  # groups that this decision has used up
    stopped: set[str] = field(default_factory=set)  # those of them that it ends
    busy: set[str] = field(default_factory=set)  # machines on which a trial runs or a group starts

    def unused(self, state: GroupState) -> list[GroupView]:
        return [group for group in self.groups.values() if group.state == state and group.group_id not in self.taken]

    def disturbs(self, slots: Mapping[str, int]) -> bool:
        """Whether work on these nodes would spoil the timings of a trial that has its machines to itself."""
        return self.exclusive and not self.busy.isdisjoint(self._on(slots))

    def mark_busy(self, slots: Mapping[str, int]) -> None:
        """A trial runs, or a group starts, on these nodes."""
        self.busy.update(self._on(slots))

    def _on(self, slots: Mapping[str, int]) -> set[str]:
        return {self.machines.get(node_id, node_id) for node_id in slots}

    def occupy(self, slots: Mapping[str, int]) -> None:
        for node_id, count in slots.items():
            self.free[node_id] = self.free.get(node_id, 0) - count
        self.mark_busy(slots)


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
    room = _room(nodes, groups, exclusive=exclusive)
    for group in groups:
        if group.state in ("leased", "starting"):
            room.mark_busy(group.slots)
    actions: list[Action] = [Stop(group_id=group.group_id) for group in room.unused("idle") if group.exhausted]
    room.stopped.update(group.group_id for group in room.unused("idle") if group.exhausted)
    room.taken.update(room.stopped)
    for request in requests:
        answer = _answer(room, request)
        actions.extend(answer.actions)
        if answer.holds_back:
            break
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
    room = _room(nodes, groups, exclusive=exclusive)
    for group in groups:
        room.mark_busy(group.slots)
    slots = _placement(room, size)
    return None if slots is None or room.disturbs(slots) else Start(trial_id="", num_workers=size, slots=slots)


def _room(nodes: Sequence[Node], groups: Sequence[GroupView], *, exclusive: bool) -> _Room:
    """What the groups leave free; nothing counts as busy yet."""
    room = _Room(
        free={node.node_id: node.slots for node in nodes},
        machines={node.node_id: node.machine for node in nodes},
        groups={group.group_id: group for group in groups},
        exclusive=exclusive,
    )
    for group in groups:
        for node_id, count in group.slots.items():
            room.free[node_id] = room.free.get(node_id, 0) - count
    return room


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """What is done for one request, and whether the requests behind it must wait for it."""

    actions: Sequence[Action] = ()
    holds_back: bool = False


def _answer(room: _Room, request: Request) -> _Answer:
    group = _idle_group(room, request)
    if group is not None:
        room.taken.add(group.group_id)
        room.mark_busy(group.slots)
        return _Answer(actions=[Grant(trial_id=request.trial_id, group_id=group.group_id)])
    on_the_way = next((g for g in room.unused("starting") if g.num_workers == request.num_workers), None)
    if on_the_way is not None:
        room.taken.add(on_the_way.group_id)
        return _Answer()
    slots = _placement(room, request.num_workers)
    if slots is None:
        return _Answer(actions=_evictions(room, request), holds_back=True)
    if room.disturbs(slots):
        return _Answer(holds_back=True)
    room.occupy(slots)
    return _Answer(actions=[Start(trial_id=request.trial_id, num_workers=request.num_workers, slots=slots)])


def _idle_group(room: _Room, request: Request) -> GroupView | None:
    """An idle group of the right size, on nodes where nothing else runs if timings must be undisturbed."""
    fitting = [group for group in room.unused("idle") if group.num_workers == request.num_workers]
    return next((group for group in fitting if not room.disturbs(group.slots)), None)


def _placement(room: _Room, num_workers: int) -> dict[str, int] | None:
    """Where a group of this size fits now: one node if any has the room, else spread over several, else None."""
    by_room = sorted(room.free.items(), key=lambda item: (room.disturbs({item[0]: 1}), -item[1], item[0]))
    for node_id, free in by_room:
        if free >= num_workers:
            return {node_id: num_workers}
    slots: dict[str, int] = {}
    for node_id, free in by_room:
        count = min(max(free, 0), num_workers - sum(slots.values()))
        if count:
            slots[node_id] = count
    return slots if sum(slots.values()) == num_workers else None


def _evictions(room: _Room, request: Request) -> list[Stop]:
    """The fewest idle groups whose end makes room; none when that would not be enough, or when room is on its way."""
    on_the_way = sum(group.num_workers for group in room.groups.values() if group.state == "stopping")
    on_the_way += sum(room.groups[group_id].num_workers for group_id in room.stopped)
    missing = request.num_workers - on_the_way - sum(max(count, 0) for count in room.free.values())
    idle = [group for group in room.unused("idle") if not room.disturbs(group.slots)]
    stops: list[Stop] = []
    for group in sorted(idle, key=lambda group: -group.num_workers):
        if missing <= 0:
            break
        stops.append(Stop(group_id=group.group_id))
        missing -= group.num_workers
    return stops if missing <= 0 else []
