"""Which trial gets which group next, and on which nodes, as one pure function.

A *slot* is room for one worker. Requests are served in the order in which they came, so that small trials do not starve
a large one: a request that must wait holds back all that came after it. All groups are on GPUs of one type
(`of_one_type`; CPU workers have one type).

Two rules say where a trial's workers go:

* `pack`, the default: on the fewest nodes that can hold them. A trial that one node can hold never spans two: it waits
  for room on one node, and idle groups end to free one. Of the nodes with room it gets the fullest, so that large
  trials find whole nodes.
* `spread`: over all nodes with room, as evenly as it allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from scalestudy.orchestration.cluster.nodes import Node, of_one_type

GroupState = Literal["starting", "idle", "busy", "stopping"]
Placement = Literal["pack", "spread"]


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
    """Start a group for a trial; `slots` says how many workers each node gets."""

    trial_id: str
    num_workers: int
    slots: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Stop:
    """End an idle group."""

    group_id: str


Action = Grant | Start | Stop


def decide(
    nodes: Sequence[Node],
    groups: Sequence[GroupView],
    requests: Sequence[Request],
    *,
    exclusive: bool,
    placement: Placement = "pack",
) -> list[Action]:
    """Decide what to do now for the waiting requests, oldest first.

    Args:
        nodes: the cluster.
        groups: every group that has not ended; a stopping group still holds its slots.
        requests: waiting trials, oldest first.
        exclusive: one trial at a time on a machine, and no group starts beside a running trial.
        placement: where a group's workers go.

    Returns:
        Actions that do not conflict. A request without an action waits.
    """
    room = _Room.of(of_one_type(nodes), groups, exclusive=exclusive, placement=placement)
    for group in groups:
        if group.state in ("busy", "starting"):
            room.mark_busy(group.slots)
    exhausted = [group for group in room.unused("idle") if group.exhausted]
    room.leaving = [*exhausted, *room.unused("stopping")]
    room.taken.update(group.group_id for group in exhausted)
    actions: list[Action] = [Stop(group_id=group.group_id) for group in exhausted]
    for request in requests:
        size = request.num_workers
        most_nodes = room.most_nodes(size)
        idle = [group for group in room.of_size("idle", size, most_nodes) if not room.disturbs(group.slots)]
        if idle:
            group = room.preferred(idle)
            room.taken.add(group.group_id)
            room.mark_busy(group.slots)
            actions.append(Grant(trial_id=request.trial_id, group_id=group.group_id))
        elif starting := room.of_size("starting", size, most_nodes):
            room.taken.add(starting[0].group_id)  # it is on the way for this request
        elif slots := room.place(size, most_nodes):
            room.take(slots)
            actions.append(Start(trial_id=request.trial_id, num_workers=size, slots=slots))
        else:
            actions.extend(Stop(group_id=group.group_id) for group in room.evictions(size, most_nodes))
            break
    return actions


def ahead(
    nodes: Sequence[Node],
    groups: Sequence[GroupView],
    sizes: Sequence[int],
    *,
    exclusive: bool,
    placement: Placement = "pack",
) -> Start | None:
    """Return the start of a group ahead of need, in room that nobody has used yet; call it when no trial waits.

    One at a time: two starts at once take longer than one after the other. With `exclusive`, only on machines without
    any group: a trial that comes in the meantime would have to wait for the start's end.

    Args:
        nodes: the cluster.
        groups: every group that has not ended.
        sizes: of the trials to come, in their order.
        exclusive: as for `decide`.
        placement: as for `decide`.
    """
    there = {group.num_workers for group in groups if group.state != "stopping"}
    size = next((size for size in sizes if size not in there), None)
    if size is None or any(group.state == "starting" for group in groups):
        return None
    room = _Room.of(of_one_type(nodes), groups, exclusive=exclusive, placement=placement)
    for group in groups:
        room.mark_busy(group.slots)
    slots = room.place(size, room.most_nodes(size))
    return Start(trial_id="", num_workers=size, slots=slots) if slots else None


@dataclass
class _Room:
    """The working copy of one decision: what is still free, and which groups are spoken for."""

    totals: Mapping[str, int]  # slots of the empty nodes
    free: dict[str, int]  # below 0 where the node drains, or others hold room, while our workers are still there
    machines: Mapping[str, str]  # node → machine
    groups: Sequence[GroupView]
    exclusive: bool
    placement: Placement
    leaving: Sequence[GroupView] = ()  # groups that end, whose slots will be free soon
    taken: set[str] = field(default_factory=set)  # groups that this decision has used up
    busy: set[str] = field(default_factory=set)  # machines on which a trial runs or a group starts

    @classmethod
    def of(cls, nodes: Sequence[Node], groups: Sequence[GroupView], *, exclusive: bool, placement: Placement) -> _Room:
        """Return what the groups leave free; nothing counts as busy yet."""
        totals = {node.node_id: node.slots for node in nodes}
        free = {node.node_id: node.slots - node.taken for node in nodes}
        for group in groups:
            for node_id, count in group.slots.items():
                free[node_id] = free.get(node_id, 0) - count
        machines = {node.node_id: node.machine for node in nodes}
        return cls(totals=totals, free=free, machines=machines, groups=groups, exclusive=exclusive, placement=placement)

    def unused(self, state: GroupState) -> list[GroupView]:
        """Return the groups in this state that the decision has not used up."""
        return [group for group in self.groups if group.state == state and group.group_id not in self.taken]

    def of_size(self, state: GroupState, size: int, most_nodes: int) -> list[GroupView]:
        """Return the unused groups in this state with so many workers, on at most `most_nodes` nodes."""
        return [group for group in self.unused(state) if group.num_workers == size and len(group.slots) <= most_nodes]

    def disturbs(self, slots: Iterable[str]) -> bool:
        """Return whether work on these nodes would spoil the timings of a trial that has its machines to itself."""
        return self.exclusive and not self.busy.isdisjoint(self._machines_of(slots))

    def mark_busy(self, slots: Iterable[str]) -> None:
        """Note that a trial runs, or a group starts, on these nodes."""
        self.busy.update(self._machines_of(slots))

    def take(self, slots: Mapping[str, int]) -> None:
        """Note that a group is to start on these slots."""
        for node_id, count in slots.items():
            self.free[node_id] -= count
        self.mark_busy(slots)

    def most_nodes(self, size: int) -> int:
        """Return the most nodes that a group of this size may have: with `pack` the fewest that hold it when empty.

        A training could use more nodes than a timing run could. It waits for the fewest as well: groups that span nodes
        leave no node whole, so that the next ones would span too. See docs/results/engine.md for what it costs.
        """
        return (self.placement == "pack" and _fewest(size, self.totals)) or len(self.free)

    def preferred(self, idle: Sequence[GroupView]) -> GroupView:
        """Return which of several idle groups of a size gets the trial.

        With `pack` the one on the fewest nodes, and of these where others train already, so that other nodes can be
        freed; with `spread` the one on the most.
        """
        if len(idle) == 1:
            return idle[0]
        if self.placement == "spread":
            return max(idle, key=lambda group: len(group.slots))
        most = self._once_idle_have_ended()
        return min(idle, key=lambda group: (len(group.slots), sum(most[node_id] for node_id in group.slots)))

    def place(self, size: int, most_nodes: int) -> dict[str, int] | None:
        """Return where a group of this size can start now, on at most `most_nodes` nodes; None: nowhere."""
        free = {node_id: self.free[node_id] for node_id in self._considered() if self.free[node_id] > 0}
        if sum(free.values()) < size:
            return None
        is_packed = self.placement == "pack"
        slots = _packed(size, free, self._once_idle_have_ended()) if is_packed else _dealt(size, free)
        return slots if len(slots) <= most_nodes and not self.disturbs(slots) else None

    def evictions(self, size: int, most_nodes: int) -> Sequence[GroupView]:
        """Return the fewest idle groups whose end makes room for this size on so many nodes; none if all would not.

        Groups that end already count as room to come. Of two ways that end equally many groups, the one that ends fewer
        workers is taken.
        """
        soon, most = self._without(self.leaving), self._once_idle_have_ended()
        nodes = sorted(self._considered(), key=lambda node_id: (-most[node_id], node_id))
        choices = [nodes]
        if most_nodes < len(nodes):  # the roomiest, and any other that may hold the rest
            choices = [[*[node for node in nodes if node != last][: most_nodes - 1], last] for last in nodes]
        ways = []
        for chosen in choices:
            frees = [(sum(group.slots.get(node_id, 0) for node_id in chosen), group) for group in self._evictable()]
            missing = size - sum(max(soon[node_id], 0) for node_id in chosen)
            if (ends := _fewest_ends(frees, missing)) is not None:
                ways.append((len(ends), sum(group.num_workers for group in ends), ends))
        return min(ways, key=lambda way: way[:2])[-1] if ways else ()

    def _considered(self) -> list[str]:
        """Return the nodes on which a start would disturb nobody."""
        return [node_id for node_id in self.free if not self.disturbs([node_id])]

    def _evictable(self) -> list[GroupView]:
        return [group for group in self.unused("idle") if not self.disturbs(group.slots)]

    def _once_idle_have_ended(self) -> dict[str, int]:
        """Return what is free once the groups that end, and all idle ones that may end, are gone."""
        return self._without([*self.leaving, *self._evictable()])

    def _without(self, groups: Iterable[GroupView]) -> dict[str, int]:
        """Return what is free once these groups are gone."""
        free = dict(self.free)
        for group in groups:
            for node_id, count in group.slots.items():
                free[node_id] += count
        return free

    def _machines_of(self, slots: Iterable[str]) -> set[str]:
        return {self.machines.get(node_id, node_id) for node_id in slots}


def _fewest(size: int, free: Mapping[str, int]) -> int | None:
    """Return the fewest nodes that hold so many workers; None if all together don't."""
    held = 0
    for number, count in enumerate(sorted(free.values(), reverse=True), start=1):
        held += max(count, 0)
        if held >= size:
            return number
    return None


def _packed(size: int, free: Mapping[str, int], most: Mapping[str, int]) -> dict[str, int]:
    """Return workers on the fewest nodes: whole nodes with the most room, then for the rest the fullest that holds it.

    The fullest node is the one with the least room even if its idle groups ended. free: has the room. most: once idle
    groups have ended.
    """
    count = _fewest(size, free) or 0
    roomiest = sorted(free, key=lambda node_id: (-free[node_id], node_id))[: count - 1]
    slots = {node_id: free[node_id] for node_id in roomiest}
    rest = size - sum(slots.values())
    holding = [node_id for node_id in free if node_id not in slots and free[node_id] >= rest]
    return {**slots, min(holding, key=lambda node_id: (most[node_id], free[node_id], node_id)): rest}


def _dealt(size: int, free: Mapping[str, int]) -> dict[str, int]:
    """Return workers dealt one by one to the node that has fewest of them; of these nodes, the emptiest."""
    slots: dict[str, int] = {}
    for _ in range(size):
        having_room = [node_id for node_id in free if free[node_id] > slots.get(node_id, 0)]
        least = min(having_room, key=lambda node_id: (slots.get(node_id, 0), -free[node_id], node_id))
        slots[least] = slots.get(least, 0) + 1
    return slots


def _fewest_ends(frees: Iterable[tuple[int, GroupView]], missing: int) -> list[GroupView] | None:
    """Return the fewest groups that free so many slots; None if all together don't.

    frees: the slots that each frees.
    """
    ends: list[GroupView] = []
    left = sorted((each for each in frees if each[0]), key=lambda each: -each[0])
    while missing > 0 and left:
        enough = [each for each in left if each[0] >= missing]
        ending = min(enough, key=lambda each: each[1].num_workers) if enough else left[0]
        left.remove(ending)
        ends.append(ending[1])
        missing -= ending[0]
    return ends if missing <= 0 else None
