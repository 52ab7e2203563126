"""Stage 4, worker groups: the actor that keeps the books of warm groups and the trials that they serve.

One `WorkerGroups` actor a study. Three parties call it, each by long polling, so that nobody is called back:

* a Tune trial asks for workers (`lease`), follows its trial (`events`) and gives the workers back (`release`);
* the driver starts the groups that are wanted (`next_orders`) and says when one has ended (`group_closed`);
* every rank of a group announces itself (`register`), takes trials (`next_trial`) and tells how they go (`post`).

No rank waits for another while the group is idle: each takes the next trial by itself, so that the process group's
timeout never runs. An *incarnation* is one life of a group's workers: Ray Train restarts all of them when one fails,
and reports of an earlier incarnation are dropped.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from orchestration.books import Assignment, Group, GroupLimits, Lease, has_work, overrun, slots_of
from orchestration.failures import Cause, RankReport, Verdict, judge
from orchestration.leases import Action, Grant, Node, Request, Start, decide
from orchestration.outcomes import error_of, worker_flags

POLL_SECONDS = 20.0
TICK_SECONDS = 0.5


class WorkerGroups:
    """The books: groups, leases, waiting trials. Decisions are made in `leases` and `failures`."""

    def __init__(
        self,
        nodes: Sequence[Node],
        limits: GroupLimits,
        *,
        exclusive: bool,
        kill: Callable[[Any], None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._nodes = list(nodes)
        self._limits = limits
        self._exclusive = exclusive
        self._kill = kill or _kill_actor
        self._clock = clock
        self._groups: dict[str, Group] = {}
        self._leases: dict[str, Lease] = {}
        self._waiting: list[str] = []
        self._starts: list[dict[str, Any]] = []
        self._cold_starts: dict[str, float] = {}  # group → seconds from its order to all of its ranks being here
        self._told: set[str] = set()  # those of them that the driver knows
        self._started = 0
        self._best: float | None = None
        self._closing = False
        self._changed = asyncio.Condition()

    # --- a Tune trial -------------------------------------------------------------------------------------------

    async def lease(self, trial: dict[str, Any]) -> None:
        """Asks for `trial["num_workers"]` workers for a trial; its progress comes through `events`.

        A trial that is leased again, its Tune process having died, gives its first lease back.
        """
        await self.release(str(trial["trial_id"]))
        lease = self._leases[str(trial["trial_id"])] = Lease(trial)
        if self._closing:
            self._end(lease, "failed", {"kind": "stopped", "message": "the study is stopping", "rank": None})
        else:
            self._waiting.append(lease.trial_id)
        await self._reconcile()

    async def events(self, trial_id: str, after: int) -> list[dict[str, Any]]:
        """The events of a trial from number `after` on; waits for one, and returns [] when none came in a while."""
        lease = self._leases[trial_id]
        await self._wait(lambda: len(lease.events) > after)
        return lease.events[after:]

    async def release(self, trial_id: str) -> None:
        """Gives a trial's workers back. A trial that still trains is broken off, which costs its group."""
        lease = self._leases.pop(trial_id, None)
        if lease is None:
            return
        if trial_id in self._waiting:
            self._waiting.remove(trial_id)
        group = self._groups.get(lease.group_id or "")
        if group and group.trial_id == trial_id:
            self._restart(group)
        await self._reconcile()

    # --- the driver ---------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Runs for the life of the actor: ends trials that stall or run over their time."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            if self._enforce_limits():
                await self._reconcile()

    async def prepare(self, num_workers: int) -> None:
        """Starts a group before the first trial asks, so that Ray Train and Tune start at the same time."""
        if not self._groups and not self._closing:
            views = [Request(trial_id="", num_workers=num_workers)]
            for action in decide(self._nodes, [], views, exclusive=self._exclusive):
                self._carry_out(action)
        await self._notify()

    async def next_orders(self) -> dict[str, Any] | None:
        """What the driver is to do or know: `start`, the groups to start; `ready`, seconds that their starts took.

        Both are empty after a while without news; None when the study has closed the books.
        """
        await self._wait(lambda: bool(self._starts) or self._cold_starts.keys() > self._told or self._closing)
        starts, self._starts = self._starts, []
        ready = {group_id: self._cold_starts[group_id] for group_id in self._cold_starts.keys() - self._told}
        self._told |= ready.keys()
        return None if self._closing else {"start": starts, "ready": ready}

    async def group_closed(self, group_id: str, error: str | None) -> None:
        """A group's `fit()` has returned. If it never served a trial, the trials that wait for its size fail."""
        group = self._groups.pop(group_id, None)
        if group is None:
            return
        if group.assignment:
            self._break_attempt(group, "worker_lost")
        if error and not group.served and group.state != "stopping":
            self._refuse(group.num_workers, error)
        await self._reconcile()

    async def close(self) -> None:
        """Tells every idle group to end, breaks off what runs, and answers every waiting trial."""
        self._closing = True
        stopped = {"kind": "stopped", "message": "the study was stopped", "rank": None}
        for lease in self._leases.values():
            if not lease.done:
                self._end(lease, "failed", stopped)
        self._waiting.clear()
        for group in self._groups.values():
            group.stop(self._clock())
        await self._notify()

    async def snapshot(self) -> dict[str, Any]:
        """The books in plain data: groups with state and trials served, waiting trials."""
        groups = [
            {"group_id": g.group_id, "num_workers": g.num_workers, "state": g.state, "served": g.served}
            for g in self._groups.values()
        ]
        return {"groups": groups, "waiting": list(self._waiting)}

    # --- a rank -------------------------------------------------------------------------------------------------

    async def register(self, group_id: str, incarnation: str, rank: int, member: dict[str, Any], handle: Any) -> None:
        """A rank is ready to serve. The group is idle once all ranks of an incarnation are here."""
        group = self._groups.get(group_id)
        if group is None or incarnation in group.past_incarnations:
            return
        if group.incarnation != incarnation:
            if group.assignment:
                self._break_attempt(group, "worker_lost")
            group.past_incarnations.add(group.incarnation)
            group.incarnation, group.members, group.handles = incarnation, {}, {}
            group.state = "stopping" if group.state == "stopping" else "starting"
        group.members[rank], group.handles[rank] = member, handle
        if len(group.members) == group.num_workers and group.state == "starting":
            group.slots = slots_of(group.members)
            group.state = "idle"
            self._cold_starts.setdefault(group_id, self._clock() - group.ordered_at)
        await self._reconcile()

    async def next_trial(self, group_id: str, incarnation: str, after: int) -> dict[str, Any] | None:
        """The next trial for a rank that has served up to number `after`; {"stop": True} to end; None: ask again."""
        group = self._groups.get(group_id)
        if group is None:
            return {"stop": True}
        await self._wait(lambda: has_work(group, incarnation, after) or group.state == "stopping")
        assignment = group.assignment
        if assignment and has_work(group, incarnation, after):
            head = {"sequence": assignment.sequence, "attempt": assignment.attempt, "best": self._best}
            return {**head, "trial": assignment.trial}
        return {"stop": True} if group.state == "stopping" else None

    async def post(self, group_id: str, incarnation: str, rank: int, sequence: int, event: dict[str, Any]) -> None:
        """A rank reports on its trial: `started`, `progress`, `epoch`, `ended` (rank 0) or `error` (any rank)."""
        group = self._groups.get(group_id)
        if group is None or group.incarnation != incarnation:
            return
        assignment = group.assignment
        if assignment is None or assignment.sequence != sequence:
            return
        assignment.last_progress = self._clock()
        lease = self._leases.get(group.trial_id)
        if event["type"] == "error":
            self._take_error(group, RankReport(rank=rank, kind=event["kind"], message=event["message"]))
        elif lease is not None:
            self._take_progress(group, lease, event)
        await self._reconcile()

    # --- inside -------------------------------------------------------------------------------------------------

    def _take_progress(self, group: Group, lease: Lease, event: dict[str, Any]) -> None:
        if event["type"] == "started":
            lease.outcome.training_started(self._clock(), lease.started_at, resumed=event["resumed"])
        elif event["type"] == "epoch" and not lease.done and lease.outcome.new_epoch(event["epoch"]):
            lease.events.append(event)
        elif event["type"] == "ended":
            self._finish(group, lease, event)

    def _finish(self, group: Group, lease: Lease, event: dict[str, Any]) -> None:
        group.assignment = None
        group.served += 1
        group.state = "idle" if group.state == "leased" else group.state
        score = event.get("score")
        if event["status"] == "finished" and score is not None:
            self._best = score if self._best is None else max(score, self._best)
        lease.outcome.training_ended(event)
        message = event.get("message")
        self._end(lease, event["status"], error_of(event["status"], message) if message else None)

    def _take_error(self, group: Group, report: RankReport) -> None:
        """Notes what a rank said. The user's own exceptions decide at once; a lost peer waits for the reason."""
        assert group.assignment is not None
        group.assignment.reports[report.rank] = report
        if report.kind != "collective":
            self._break_attempt(group, "reported")

    def _break_attempt(self, group: Group, cause: Cause) -> None:
        assignment, group.assignment = group.assignment, None
        group.served += 1
        if group.state == "leased":
            group.state = "starting"  # Ray Train restarts the workers
        lease = self._leases.get(str(assignment.trial["trial_id"])) if assignment else None
        if assignment is None or lease is None or lease.done:
            return
        budget = self._limits.failures_per_trial
        verdict = judge(assignment.reports, cause=cause, attempt=assignment.attempt, failures_per_trial=budget)
        self._apply(lease, verdict)

    def _apply(self, lease: Lease, verdict: Verdict) -> None:
        if verdict.status != "retry":
            self._end(lease, verdict.status, verdict.error)
            return
        lease.events.append({"type": "retry", "attempt": lease.attempt, "error": verdict.error})
        lease.attempt += 1
        lease.group_id = None
        self._waiting.insert(0, lease.trial_id)

    def _end(self, lease: Lease, status: str, error: dict[str, Any] | None) -> None:
        if lease.done:  # the study was closed while the trial ran
            return
        lease.done = True
        lease.events.append(
            {
                "type": "ended",
                **lease.outcome.to_dict(
                    status=status, attempts=lease.attempt, started_at=lease.started_at, now=self._clock(), error=error
                ),
            }
        )

    def _refuse(self, num_workers: int, error: str) -> None:
        """Fails the trials that wait for a size whose group could not be started."""
        doomed = [t for t in self._waiting if self._leases[t].trial["num_workers"] == num_workers]
        for trial_id in doomed:
            self._waiting.remove(trial_id)
            self._end(self._leases[trial_id], "failed", error_of("group_start", error))

    def _enforce_limits(self) -> bool:
        now, leases, limits = self._clock(), self._leases, self._limits
        causes = [(group, overrun(group, leases.get(group.trial_id), limits, now)) for group in self._groups.values()]
        broken = [(group, cause) for group, cause in causes if cause]
        for group, cause in broken:
            if group.assignment:
                self._break_attempt(group, cause)
            self._restart(group)
        return bool(broken)

    def _restart(self, group: Group) -> None:
        """Kills a group's workers; Ray Train starts new ones, which end at once if the group is to end."""
        group.assignment = None
        if group.state == "stopping":
            group.stopping_since = self._clock()
        else:
            group.state = "starting"
        for handle in group.handles.values():
            self._kill(handle)

    async def _reconcile(self) -> None:
        if not self._closing:
            views = [group.view(self._limits) for group in self._groups.values()]
            waiting = [(trial_id, self._leases[trial_id].trial["num_workers"]) for trial_id in self._waiting]
            requests = [Request(trial_id=trial_id, num_workers=size) for trial_id, size in waiting]
            for action in decide(self._nodes, views, requests, exclusive=self._exclusive):
                self._carry_out(action)
        await self._notify()

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, Grant):
            self._grant(self._leases[action.trial_id], self._groups[action.group_id])
        elif isinstance(action, Start):
            self._order_start(action)
        else:
            self._groups[action.group_id].stop(self._clock())

    def _order_start(self, action: Start) -> None:
        self._started += 1
        group_id = f"group-{self._started}-of-{action.num_workers}"
        slots = dict(action.slots)
        self._groups[group_id] = Group(group_id, action.num_workers, slots, self._clock())
        if lease := self._leases.get(action.trial_id):
            lease.started_at = lease.started_at or self._clock()
        nodes = [node for node, count in slots.items() for _ in range(count)]  # one a worker
        self._starts.append({"group_id": group_id, "num_workers": action.num_workers, "nodes": nodes})

    def _grant(self, lease: Lease, group: Group) -> None:
        now = self._clock()
        self._waiting.remove(lease.trial_id)
        lease.group_id = group.group_id
        lease.started_at = lease.started_at or now
        group.sequence += 1
        group.state = "leased"
        group.assignment = Assignment(group.sequence, lease.trial, lease.attempt, last_progress=now)
        members = [{"rank": rank, **group.members[rank]} for rank in sorted(group.members)]
        lease.outcome.granted(now, members, worker_flags(members))
        self._flag_shared(group)
        lease.events.append({"type": "running", "attempt": lease.attempt, "world": lease.outcome.world})

    def _flag_shared(self, group: Group) -> None:
        """Marks this trial and every running one beside it on the same host: their timings disturb each other."""
        beside = [other for other in self._groups.values() if other is not group and other.hosts & group.hosts]
        running = [other for other in beside if other.trial_id]
        for each in [group, *running] if running else []:
            if lease := self._leases.get(each.trial_id):
                lease.outcome.flags.add("shared_node")

    async def _wait(self, ready: Callable[[], bool]) -> None:
        async with self._changed:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait_for(ready), POLL_SECONDS)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def _kill_actor(handle: Any) -> None:
    import ray

    ray.kill(handle)
