"""The actor that keeps the books of warm groups and the trials that they serve.

One `WorkerGroups` actor a study. Four parties call it, each by long polling, so that nobody is called back:

* a Tune trial asks for workers (`lease`), follows its trial (`events`) and gives the workers back (`release`);
* the driver starts the groups that are wanted (`next_orders`), says when one has ended (`group_closed`), which nodes
  there are (`nodes_changed`), and what a scheduler stops (`stop`);
* every rank of a group announces itself (`register`), takes trials (`next_trial`) and tells how they go (`post`);
  rank 0 also asks whether all are to leave their trial, and how (`asks_to`);
* a group's Ray Train controller says that it is there (`controller_started`) and that workers have died
  (`workers_lost`).

No rank waits for another while the group is idle: each takes the next trial by itself, so that the process group's
timeout never runs. An *incarnation* is one life of a group's workers: Ray Train restarts all of them when one fails,
and reports of an earlier incarnation are dropped.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from scalestudy.orchestration.cluster.nodes import Node
from scalestudy.orchestration.groups.failures import Cause
from scalestudy.orchestration.groups.model import GroupLimits, Lease, Way, has_work, holds, trains_on
from scalestudy.orchestration.groups.pool import Ledger

POLL_SECONDS = 20.0
TICK_SECONDS = 0.5


class WorkerGroups:
    """The books as an actor: what it is told changes the `Ledger`; what it is asked waits until there is an answer."""

    def __init__(
        self,
        nodes: Sequence[Node],
        limits: GroupLimits,
        *,
        exclusive: bool,
        logs: str = "",
        kill: Callable[[Any], None] | None = None,
        vacate: Callable[[int], None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """logs: where the workers' output lies, for messages."""
        self._ledger = Ledger(
            nodes,
            limits,
            exclusive=exclusive,
            kill=kill or _kill_actor,
            vacate=vacate or _remove_placement_groups,
            clock=clock,
            logs=logs,
        )
        self._told: set[str] = set()  # groups of whose cold start the driver knows
        self._listening = 0  # calls of `asks_to` that wait
        self._changed = asyncio.Condition()

    # --- a Tune trial -------------------------------------------------------------------------------------------

    async def lease(self, trial: dict[str, Any]) -> None:
        """Asks for `trial["num_workers"]` workers for a trial; its progress comes through `events`.

        `trial["history"]`: what earlier engines of the study have left of it (`Outcome.of_history`), with the number
        of its `attempts`. A trial that is leased again before it was released has lost its Tune process: its training
        goes on as the next attempt, and all of its events are told again.
        """
        self._ledger.take_up(trial)
        await self._settle()

    async def events(self, trial_id: str, after: int) -> list[dict[str, Any]]:
        """The events of a trial from number `after` on; waits for one, and returns [] when none came in a while.

        Raises LookupError for a trial that has no lease, or none any more.
        """
        lease = self._lease(trial_id)
        lease.heard_at = self._ledger.clock()
        await self._wait(lambda: bool(lease.events_after(after)))
        lease.heard_at = self._ledger.clock()
        return lease.events_after(after)

    async def release(self, trial_id: str) -> None:
        """Gives a trial's workers back; where they still train it, they leave it within a step."""
        self._ledger.give_back(trial_id)
        await self._settle()

    # --- the driver ---------------------------------------------------------------------------------------------

    async def stop(self, trial_id: str, epoch: int) -> dict[str, Any] | None:
        """A scheduler stops a trial after an epoch: returns its `ended` event, with no epoch beyond that one.

        The workers leave it within a step. What the trial has done meanwhile is forgotten, even its end; but one that
        has recorded its last epoch is left to finish. None: it has no lease.
        """
        lease = self._ledger.leases.get(trial_id)
        if lease is None:
            return None
        if not lease.is_last(epoch):
            self._ledger.stop(lease, epoch)
            await self._settle()
        while not lease.done:
            await self._wait(lambda: lease.done)
        return lease.events[-1]

    async def watch(self) -> None:
        """Runs for the life of the actor: ends trials that stall or run over their time."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            if self._ledger.enforce_limits():
                await self._settle()

    async def prepare(self, *sizes: int) -> None:
        """The sizes of the trials to come, in their order: a group of each is started ahead of need, where it can."""
        self._ledger.sizes_ahead = list(dict.fromkeys(sizes))
        await self._settle()

    async def set_exclusive(self) -> None:
        """From now on one trial at a time on a machine; what runs already is not touched."""
        self._ledger.exclusive = True
        await self._settle()

    async def next_orders(self) -> dict[str, Any] | None:
        """What the driver is to do or know: `start`, the groups to start; `ready`, seconds that their starts took.

        Both are empty after a while without news; None when the study has closed the books.
        """
        books = self._ledger
        await self._wait(lambda: bool(books.starts) or books.cold_starts.keys() > self._told or books.closing)
        starts, books.starts = books.starts, []
        ready = {group_id: books.cold_starts[group_id] for group_id in books.cold_starts.keys() - self._told}
        self._told |= ready.keys()
        return None if books.closing else {"start": starts, "ready": ready}

    async def group_closed(self, group_id: str, error: str | None, cause: Cause = "worker_lost") -> None:
        """A group's `fit()` has returned, or raised `error` for that cause."""
        self._ledger.closed(group_id, error, cause)
        await self._settle()

    async def nodes_changed(self, nodes: Sequence[Node]) -> None:
        """The nodes that the cluster has now, the room on each when it is empty, and which of them drain."""
        self._ledger.set_nodes(nodes)
        await self._settle()

    async def close(self) -> None:
        """Tells every group to end, stops what runs, and answers every waiting trial."""
        self._ledger.close()
        await self._settle()

    async def abandon(self) -> None:
        """Ends every group at once, where `close` was not enough."""
        self._ledger.abandon()

    async def snapshot(self) -> dict[str, Any]:
        """The books in plain data, for who looks at a running study."""
        books = self._ledger
        return {
            "groups": [group.to_dict() for group in books.groups.values()],
            "leases": [lease.to_dict() for lease in books.leases.values()],
            "waiting": list(books.waiting),
            "room": {node.node_id: node.slots for node in books.nodes},
            "evictions": books.evictions,
            "cold_starts": dict(books.cold_starts),
            "listening": self._listening,
        }

    # --- a rank, and its group's controller ---------------------------------------------------------------------

    async def register(self, group_id: str, incarnation: str, rank: int, member: dict[str, Any], handle: Any) -> None:
        """A rank is ready to serve."""
        group = self._ledger.groups.get(group_id)
        if group is not None and incarnation not in group.past_incarnations:
            self._ledger.register(group, incarnation, rank, member, handle)
            await self._settle()

    async def next_trial(self, group_id: str, incarnation: str, after: int) -> dict[str, Any] | None:
        """The next trial for a rank that has served up to number `after`; {"stop": True} to end; None: ask again."""
        group = self._ledger.groups.get(group_id)
        if group is None:
            return {"stop": True}
        await self._wait(lambda: has_work(group, incarnation, after) or group.state == "stopping")
        assignment = group.assignment
        if assignment and has_work(group, incarnation, after):
            head = {"sequence": assignment.sequence, "attempt": assignment.attempt, "best": self._ledger.best}
            return {**head, "trial": assignment.trial}
        return {"stop": True} if group.state == "stopping" else None

    async def asks_to(self, way: Way, group_id: str, incarnation: str, sequence: int) -> bool:
        """Waits until a group is to leave its trial in that way (True), or has left it by itself (False).

        By "stop" within a step, as nothing of it is wanted any more; by "leave" with a checkpoint, as a node drains.
        """
        self._listening += 1
        try:
            async with self._changed:
                await self._changed.wait_for(
                    lambda: not trains_on(self._ledger.groups.get(group_id), incarnation, sequence, way)
                )
        finally:
            self._listening -= 1
        return holds(self._ledger.groups.get(group_id), incarnation, sequence)

    async def post(self, group_id: str, incarnation: str, rank: int, sequence: int, event: dict[str, Any]) -> None:
        """A rank reports on its trial: `started`, `progress`, `epoch`, `ended`, `left` (rank 0), `error`."""
        group = self._ledger.groups.get(group_id)
        if group is not None and holds(group, incarnation, sequence):
            self._ledger.take_post(group, rank, event)
            await self._settle()

    async def kernel_kills(self, group_id: str) -> dict[int, dict[str, Any]]:
        """What the ranks of a group counted when they began the trial in their hands (`kernel_kills.kills_so_far`)."""
        group = self._ledger.groups.get(group_id)
        return dict(group.assignment.kernel_kills) if group and group.assignment else {}

    async def controller_started(self, group_id: str, controller: Any) -> None:
        """A group's Ray Train controller is there, with its actor handle."""
        self._ledger.controller_started(group_id, controller)

    async def workers_lost(
        self, group_id: str, incarnation: str, out_of_memory: Mapping[int, str], cause: Cause = "worker_lost"
    ) -> bool:
        """Ray Train has found workers of a group dead, some of them, by rank, killed for memory.

        Returns whether the group is to be started again.
        """
        group = self._ledger.groups.get(group_id)
        if group is None:
            return False
        self._ledger.workers_lost(group, incarnation, out_of_memory, cause)
        await self._settle()
        return group.state != "stopping"

    # --- inside -------------------------------------------------------------------------------------------------

    def _lease(self, trial_id: str) -> Lease:
        lease = self._ledger.leases.get(trial_id)
        if lease is None:
            raise LookupError(f"trial {trial_id} has no lease: it was given back, or its engine is another")
        return lease

    async def _settle(self) -> None:
        """After every change: does what has become possible, and wakes who waits."""
        self._ledger.reconcile()
        async with self._changed:
            self._changed.notify_all()

    async def _wait(self, ready: Callable[[], bool]) -> None:
        async with self._changed:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait_for(ready), POLL_SECONDS)


def _kill_actor(handle: Any) -> None:
    import ray

    ray.kill(handle)


def _remove_placement_groups(mark: int) -> None:
    """Ends the workers whose group has this mark. Ray Train names no placement group, nor does it tell of one before
    its workers are ready: it is known by the memory that its bundles ask for."""
    import ray
    from ray.util.placement_group import PlacementGroup

    for key, facts in ray.util.placement_group_table().items():
        asked = {bundle.get("memory") for bundle in facts["bundles"].values()}
        if asked == {mark} and facts["state"] != "REMOVED":
            ray.util.remove_placement_group(PlacementGroup(ray.PlacementGroupID(bytes.fromhex(key))))
