"""The pool as a Ray actor. A report changes the `GroupPool`; a question waits until there is an answer.

One `GroupPoolActor` serves a study. Four parties call it by long polling, so that it never calls anybody back:

* a Tune trial asks for workers (`request`) and follows its trial (`events`, `follows`);
* the driver starts the groups that the pool orders (`next_orders`), reports a group that has ended (`group_closed`),
  the cluster's nodes (`set_nodes`), who else waits for room (`share`), what a scheduler stops (`stop`), and the trials
  whose end it has (`release`);
* every rank of a group registers, takes trials (`next_trial`) and reports on them (`report`), through a `PoolClient`;
  rank 0 also waits for the order to leave its trial (`wait_for_exit`);
* a group's Ray Train controller reports that it runs (`controller_started`) and that workers have died
  (`workers_lost`).

No rank waits for another while the group is idle: each takes the next trial by itself, so that the process group's
timeout never runs. Reports of an earlier incarnation of the workers are dropped.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scalestudy.orchestration.cluster.nodes import Node
from scalestudy.orchestration.cluster.sharing import Demand
from scalestudy.orchestration.groups.clock import PoolClock
from scalestudy.orchestration.groups.events import (
    Ended,
    JournalEvent,
    KillCount,
    LoopEnded,
    LoopReport,
    Member,
    TrialError,
    WorkerPost,
)
from scalestudy.orchestration.groups.failures import Cause, Loss
from scalestudy.orchestration.groups.model import (
    EndGroup,
    ExitMode,
    HostOrders,
    NextTrial,
    TrialOrder,
    Turn,
    Wanted,
)
from scalestudy.orchestration.groups.pool import GroupPool, Hands, PoolSettings

if TYPE_CHECKING:
    from concurrent.futures import Future


POLL_SECONDS = 20.0
TICK_SECONDS = 0.5


class GroupPoolActor:
    """The pool of one study."""

    def __init__(
        self, nodes: Sequence[Node], settings: PoolSettings, hands: Hands | None = None, clock: PoolClock | None = None
    ) -> None:
        """Make the pool. hands: None: Ray's. clock: None: the machine's."""
        self._pool = GroupPool(nodes, settings, hands or RayHands(), clock or PoolClock())
        self._told: set[str] = set()  # groups whose cold start the driver has heard of
        self._changed = asyncio.Condition()

    # --- a Tune trial -------------------------------------------------------------------------------------------

    async def request(self, order: TrialOrder) -> int:
        """Ask for workers for a trial; return the number of the lease. See `GroupPool.request`."""
        lease = self._pool.request(order)
        await self._settle()
        return lease

    async def events(self, trial_id: str, lease: int, after: int) -> list[JournalEvent] | None:
        """Return the events of a trial from number `after` on. Waits for one; returns [] if none came for a while.

        None: the lease is over. It was given back, or another Tune process has the trial.
        """
        request = self._pool.requests.get(trial_id)
        if request is None or request.lease != lease:
            return None
        await self._wait(lambda: bool(request.events_after(after)) or request.lease != lease)
        return request.events_after(after) if request.lease == lease else None

    async def follows(self, trial_id: str, lease: int) -> bool:
        """Return whether the lease goes on.

        It ends when the trial is put off; the next request for the trial gets another lease.
        """
        request = self._pool.requests.get(trial_id)
        return request is not None and request.lease == lease and not request.put_off

    # --- the driver ---------------------------------------------------------------------------------------------

    async def stop(self, trial_id: str, epoch: int) -> Ended | None:
        """Stop a trial after an epoch; return its end, with no later epoch. None: the trial was released.

        The workers leave it within a step. See `GroupPool.stop`.
        """
        request = self._pool.requests.get(trial_id)
        while request is not None and trial_id in self._pool.requests:
            self._pool.stop(trial_id, epoch)
            await self._settle()
            await self._wait(lambda: request.ended is not None or request.group_id is None)
            if request.ended is not None:
                return request.ended
        return None

    async def release(self, trial_id: str) -> None:
        """Note that the study has a trial's end and is done with it. Its workers leave it within a step."""
        self._pool.release(trial_id)
        await self._settle()

    async def watch(self) -> None:
        """End trials that stall or run over their time, for as long as the actor lives."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            if self._pool.enforce_limits():
                await self._settle()

    async def prepare(self, *sizes: int) -> None:
        """Start a group of each size ahead of need, where it can. sizes: of the trials to come, in their order."""
        self._pool.sizes_ahead = list(dict.fromkeys(sizes))
        await self._settle()

    async def set_exclusive(self) -> None:
        """Run one trial at a time on a machine from now on. What runs already goes on."""
        self._pool.exclusive = True
        await self._settle()

    async def next_orders(self) -> HostOrders | None:
        """Return what the driver should do or know. Empty after a while without news; None when the pool is closed."""
        pool = self._pool
        await self._wait(lambda: bool(pool.starts) or pool.cold_starts.keys() > self._told or pool.closing)
        starts, pool.starts = pool.starts, []
        ready = {group_id: pool.cold_starts[group_id] for group_id in pool.cold_starts.keys() - self._told}
        self._told |= ready.keys()
        return None if pool.closing else HostOrders(start=tuple(starts), ready=ready)

    async def group_closed(self, group_id: str, error: str | None, cause: Cause = "worker_lost") -> None:
        """Note that a group's `fit()` has returned, or raised `error` for that cause."""
        self._pool.group_closed(group_id, error, cause)
        await self._settle()

    async def set_nodes(self, nodes: Sequence[Node]) -> None:
        """Take the cluster's present nodes, the room on each when it is empty, and which of them drain."""
        self._pool.set_nodes(nodes)
        await self._settle()

    async def share(self, demand: Demand, unplaced: Collection[str]) -> Wanted | None:
        """Take who else waits for room, and which groups got none; return what waits for room here.

        See `GroupPool.share`.
        """
        wanted = self._pool.share(demand, unplaced)
        if unplaced:
            await self._settle()
        return wanted

    async def close(self) -> None:
        """Tell every group to end, stop what runs, and answer every waiting trial."""
        self._pool.close()
        await self._settle()

    async def abandon(self) -> None:
        """End every group at once, where `close` was not enough."""
        self._pool.abandon()

    async def ping(self) -> None:
        """Return; the call fails if the actor has died."""

    # --- a rank, and its group's controller ---------------------------------------------------------------------

    async def register(self, group_id: str, incarnation: str, member: Member, handle: Any) -> None:
        """Note that a rank is ready to serve. handle: its actor's."""
        self._pool.register(group_id, incarnation, member, handle)
        await self._settle()

    async def next_trial(self, group_id: str, incarnation: str, after: int) -> NextTrial | EndGroup | None:
        """Return the next trial for a rank that has served up to number `after`. None: ask again."""
        group = self._pool.groups.get(group_id)
        if group is None:
            return EndGroup()
        await self._wait(lambda: group.has_work(incarnation, after) or group.state == "stopping")
        assignment = group.assignment
        if assignment and group.has_work(incarnation, after):
            return NextTrial(
                sequence=assignment.sequence,
                attempt=assignment.attempt,
                best_score=self._pool.best_score,
                order=assignment.order,
                checkpoint=assignment.checkpoint,
            )
        return EndGroup() if group.state == "stopping" else None

    async def wait_for_exit(self, mode: ExitMode, turn: Turn) -> bool:
        """Wait until a group should leave its trial in that mode; return False if it left the trial by itself."""
        async with self._changed:
            await self._changed.wait_for(
                lambda: (group := self._pool.groups.get(turn.group_id)) is None or not group.still_trains(turn, mode)
            )
        group = self._pool.groups.get(turn.group_id)
        return group is not None and group.holds(turn)

    async def report(self, turn: Turn, rank: int, post: WorkerPost) -> None:
        """Take a rank's report on the trial in its hands."""
        if self._pool.report(turn, rank, post):
            await self._settle()

    async def loop_report(self, group_id: str, incarnation: str, post: LoopReport | LoopEnded) -> bool:
        """Take what a group's controller says of the user's loop in its hands. Return whether the loop goes on."""
        group = self._pool.groups.get(group_id)
        if group is None or group.assignment is None:
            return False
        await self.report(Turn(group_id=group_id, incarnation=incarnation, sequence=group.assignment.sequence), 0, post)
        return group.assignment is not None and not group.assignment.stopping

    async def datasets_failed(self, group_id: str, error: TrialError) -> None:
        """Take what a function of the user's for Ray's data sets has raised, in a group's controller."""
        self._pool.datasets_failed(error)
        if group := self._pool.groups.get(group_id):
            group.stop(self._pool.clock())
        await self._settle()

    async def kept_checkpoints(self) -> list[str]:
        """Return the addresses of the checkpoints from which trials of users' loops may go on."""
        return self._pool.kept_checkpoints()

    async def kernel_kills(self, group_id: str) -> dict[int, KillCount]:
        """Return what the ranks of a group counted when they began the trial in their hands."""
        group = self._pool.groups.get(group_id)
        return dict(group.assignment.kernel_kills) if group and group.assignment else {}

    async def controller_started(self, group_id: str, controller: Any) -> None:
        """Note a group's Ray Train controller, by its actor handle."""
        self._pool.controller_started(group_id, controller)

    async def workers_lost(self, group_id: str, loss: Loss) -> bool:
        """Take a report of Ray Train that workers of a group are dead. Return whether to start the group again."""
        group = self._pool.groups.get(group_id)
        if group is None:
            return False
        self._pool.workers_lost(group_id, loss)
        await self._settle()
        return group.state != "stopping"

    # --- inside -------------------------------------------------------------------------------------------------

    async def _settle(self) -> None:
        """Do what has become possible, and wake the waiting calls; runs after every change."""
        self._pool.reconcile()
        async with self._changed:
            self._changed.notify_all()

    async def _wait(self, ready: Callable[[], bool]) -> None:
        async with self._changed:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait_for(ready), POLL_SECONDS)


class RayHands:
    """See `Hands`."""

    def kill(self, actor: Any) -> None:
        """See `Hands`."""
        import ray

        ray.kill(actor)

    def remove_workers(self, tag: int) -> None:
        """See `Hands`. Find the group's placement group by a unique amount of memory in its bundles.

        Ray Train does not name its placement groups, and reports one only once its workers are ready.
        """
        import ray
        from ray.util.placement_group import PlacementGroup

        for key, facts in ray.util.placement_group_table().items():
            asked = {bundle.get("memory") for bundle in facts["bundles"].values()}
            if asked == {tag} and facts["state"] != "REMOVED":
                ray.util.remove_placement_group(PlacementGroup(ray.PlacementGroupID(bytes.fromhex(key))))


@dataclass
class PoolClient:
    """A rank's connection to the pool. A report to a pool that is gone is lost; a question raises ActorDiedError."""

    pool: Any
    group_id: str
    incarnation: str
    rank: int
    _last: Any = None  # the report that the next one must not overtake

    def register(self, member: Member) -> None:
        """Tell the pool that this rank is ready to serve."""
        import ray

        handle = ray.get_runtime_context().current_actor
        ray.get(self.pool.register.remote(self.group_id, self.incarnation, member, handle))

    def next_trial(self, served: int) -> NextTrial | EndGroup:
        """Wait for the next trial after that number, or for the order to end."""
        import ray

        while (given := ray.get(self.pool.next_trial.remote(self.group_id, self.incarnation, served))) is None:
            pass
        return given

    def send(self, sequence: int, post: WorkerPost) -> Any:
        """Send a report on the trial of that number, without waiting; return what `wait_for` takes."""
        return self.pool.report.remote(self._turn(sequence), self.rank, post)

    def send_in_order(self, sequence: int, post: WorkerPost) -> Any:
        """Send as `send` does, after the previous report arrived.

        Calls of an asynchronous actor may overtake each other.
        """
        if self._last is not None:
            self.wait_for(self._last)
        self._last = self.send(sequence, post)
        return self._last

    def wait_for(self, sent: Any) -> None:
        """Wait until a report has arrived.

        If the pool is gone, this raises nothing: `exit_asked` then ends the trial, on all ranks in one step. A single
        rank that left it would keep the others in a collective.
        """
        import ray
        from ray.exceptions import ActorDiedError

        with suppress(ActorDiedError):
            ray.get(sent)

    def exit_asked(self, mode: ExitMode, sequence: int) -> threading.Event:
        """Return an event that is set as soon as the pool asks to leave the trial in that mode, or is gone.

        One call for each trial and mode. The pool answers it at the trial's end at the latest. Reading the event costs
        nothing.
        """
        asked = threading.Event()

        def answered(future: Future[bool]) -> None:
            if future.exception() is not None or future.result():
                asked.set()

        answer = self.pool.wait_for_exit.remote(mode, self._turn(sequence))
        answer.future().add_done_callback(answered)
        return asked

    def _turn(self, sequence: int) -> Turn:
        return Turn(group_id=self.group_id, incarnation=self.incarnation, sequence=sequence)
