"""The pool: what each event changes in it.

Ray starts nothing new on such a node. What runs there is left alone until the node goes, so that there is time to write
a checkpoint: minutes, or half a minute.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scalestudy.orchestration.cluster.nodes import Node
from scalestudy.orchestration.groups.failures import Cause, RankReport, Verdict, judge, no_room, over_budget, with_logs
from scalestudy.orchestration.groups.model import (
    FOLLOWER_SECONDS,
    Assignment,
    Group,
    GroupLimits,
    Lease,
    overrun,
    slots_of,
    start_hangs,
)
from scalestudy.orchestration.groups.placement import Action, Grant, Request, Start, ahead, decide
from scalestudy.orchestration.groups.trial_record import error_of, worker_flags


def allocate(books: Ledger) -> None:
    """Does what can be done now for the trials that wait; without any, starts a group for those to come."""
    views = [group.view(books.limits) for group in books.groups.values()]
    requests = [Request(trial_id=lease.trial_id, num_workers=lease.num_workers) for lease in _that_could_run(books)]
    for action in decide(books.nodes, views, requests, exclusive=books.exclusive):
        _carry_out(books, action)
    if not books.waiting and books.sizes_ahead:
        _start_ahead(books)


def _that_could_run(books: Ledger) -> list[Lease]:
    """Trials that wait, but for those that a group is just leaving, and those that the cluster can't hold now."""
    held = {group.trial_id for group in books.groups.values()}
    waiting = [books.leases[trial_id] for trial_id in books.waiting if trial_id not in held]
    return [lease for lease in waiting if lease.num_workers <= books.room()]


def _start_ahead(books: Ledger) -> None:
    views = [group.view(books.limits) for group in books.groups.values()]
    start = ahead(books.nodes, views, books.sizes_ahead, exclusive=books.exclusive)
    if start:
        _order_start(books, start)


def _carry_out(books: Ledger, action: Action) -> None:
    if isinstance(action, Grant):
        _grant(books, books.leases[action.trial_id], books.groups[action.group_id])
    elif isinstance(action, Start):
        _order_start(books, action)
    else:
        group = books.groups[action.group_id]
        books.evictions += not group.view(books.limits).exhausted
        group.stop(books.clock())


def _order_start(books: Ledger, action: Start) -> None:
    books.started += 1
    group_id = f"group-{books.started}-of-{action.num_workers}"
    slots, now, mark = dict(action.slots), books.clock(), books.new_mark()
    books.groups[group_id] = Group(group_id, action.num_workers, slots, now, mark=mark, starting_since=now)
    books.sizes_ahead = [size for size in books.sizes_ahead if size != action.num_workers]
    if lease := books.leases.get(action.trial_id):
        lease.started_at = lease.started_at or books.clock()
    nodes = [node for node, count in slots.items() for _ in range(count)]  # one a worker
    books.starts.append({"group_id": group_id, "num_workers": action.num_workers, "nodes": nodes, "mark": mark})


def _grant(books: Ledger, lease: Lease, group: Group) -> None:
    now = books.clock()
    books.waiting.remove(lease.trial_id)
    lease.group_id = group.group_id
    lease.started_at = lease.started_at or now
    group.sequence += 1
    group.state = "leased"
    group.assignment = Assignment(group.sequence, lease.trial, lease.attempt, last_progress=now)
    members = [{"rank": rank, **group.members[rank]} for rank in sorted(group.members)]
    lease.outcome.granted(now, members, worker_flags(members))
    _flag_shared(books, group)
    lease.events.append({"type": "running", "attempt": lease.attempt, "world": lease.outcome.world})


def _flag_shared(books: Ledger, group: Group) -> None:
    """Marks this trial and every running one beside it on the same host: their timings disturb each other."""
    beside = [other for other in books.groups.values() if other is not group and other.hosts & group.hosts]
    running = [other for other in beside if other.trial_id]
    for each in [group, *running] if running else []:
        if lease := books.lease_of(each):
            lease.outcome.flags.add("shared_node")


def leave_draining_nodes(books: Ledger) -> None:
    """Ends the groups that have workers on a node that drains, each as soon as it can.

    An idle one is told to end. One that starts is given up: its workers may never come. One that trains is asked to
    leave its trial with a checkpoint; without checkpoints it trains on, as its trial may end before the node goes, and
    would begin anew otherwise.
    """
    draining = {node.node_id for node in books.nodes if node.draining}
    for group in [group for group in books.groups.values() if group.slots.keys() & draining]:
        if group.state == "starting":
            group.stop(books.clock())
            books.give_up(group, "preempted")
        elif group.state == "idle":
            group.stop(books.clock())
        elif group.assignment and group.assignment.checkpointed:
            group.assignment.leaving = True


STARTS_WITHOUT_SERVICE = 3
MARKS = 2**24
STOPPED = {"kind": "stopped", "message": "the study was stopped", "rank": None}


class Ledger:
    """Groups, leases and waiting trials. Decisions are made in `leases` and `failures`."""

    def __init__(
        self,
        nodes: Sequence[Node],
        limits: GroupLimits,
        *,
        exclusive: bool,
        kill: Callable[[Any], None],
        vacate: Callable[[int], None],
        clock: Callable[[], float],
        logs: str,
    ) -> None:
        """kill, vacate: end an actor, by its handle, and all workers of a group and their room, by the group's mark."""
        self.vacate = vacate
        self.nodes, self.limits, self.exclusive, self.kill = list(nodes), limits, exclusive, kill
        self.clock, self.logs = clock, logs
        self.groups: dict[str, Group] = {}
        self.leases: dict[str, Lease] = {}
        self.waiting: list[str] = []
        self.starts: list[dict[str, Any]] = []
        self.cold_starts: dict[str, float] = {}  # group → seconds from its order to all of its ranks being here
        self.sizes_ahead: list[int] = []  # of trials to come, each once, in their order
        self.best: float | None = None
        self.evictions = 0
        self.closing = False
        self.started = 0  # groups
        self._lost_starts: dict[int, int] = {}  # size → controllers lost in a row before their group had served

    # --- a trial ------------------------------------------------------------------------------------------------

    def take_up(self, trial: Mapping[str, Any]) -> None:
        """A trial asks for workers, for the first time or because the Tune process that followed it was lost."""
        lease = self.leases.get(str(trial["trial_id"]))
        if lease is not None:
            lease.heard_at = self.clock()
            self._follower_lost(lease)
            return
        lease = Lease.of(trial, self.clock())
        self.leases[lease.trial_id] = lease
        spent = over_budget(lease.outcome.failures, self.limits.failures_per_trial)
        if self.closing:
            self._end(lease, "failed", {**STOPPED, "message": "the study is stopping"})
        elif spent:
            lease.attempt -= 1
            self._end(lease, "failed", error_of(spent.kind, spent.message, spent.rank))
        else:
            self.waiting.append(lease.trial_id)

    def stop(self, lease: Lease, epoch: int) -> None:
        """A scheduler ends a trial after an epoch; whatever it has done since does not count."""
        if lease.status == "stopped" or (lease.status == "finished" and lease.last_epoch() <= epoch):
            return
        self._forget_wait(lease)
        lease.stop_at(epoch, self.clock())
        self._leave_trial(lease)

    def give_back(self, trial_id: str) -> None:
        """A trial's workers are free; where they still train it, they leave it within a step."""
        lease = self.leases.pop(trial_id, None)
        if lease is None:
            return
        self._forget_wait(lease)
        self._leave_trial(lease)
        if lease.status == "finished" and lease.score is not None:
            self.best = lease.score if self.best is None else max(lease.score, self.best)

    # --- a group ------------------------------------------------------------------------------------------------

    def register(self, group: Group, incarnation: str, rank: int, member: dict[str, Any], handle: Any) -> None:
        """A rank is ready to serve. The group is idle once all ranks of an incarnation are here."""
        if group.incarnation != incarnation:
            if group.assignment:
                self.break_attempt(group, "worker_lost")
            group.new_life(incarnation)
        group.members[rank], group.handles[rank] = member, handle
        if len(group.members) == group.num_workers and group.state == "starting":
            group.slots = slots_of(group.members)
            group.state = "idle"
            self.cold_starts.setdefault(group.group_id, self.clock() - group.ordered_at)

    def take_post(self, group: Group, rank: int, event: dict[str, Any]) -> None:
        """A rank has said something about the trial in its group's hands."""
        assert group.assignment is not None
        group.assignment.last_progress = self.clock()
        lease = self.lease_of(group)
        if event["type"] == "error":
            self._take_error(group, RankReport.of(rank, event))
        elif event["type"] == "ended":
            self._finish(group, lease, event)
        elif event["type"] == "left":
            group.assignment.reports[rank] = RankReport.of(rank, {"kind": "left", **event})
            group.stop(self.clock())
            self.break_attempt(group, "preempted")
        elif event["type"] == "begun":
            group.assignment.kernel_kills[rank] = event["kernel_kills"]
        elif lease is not None and not lease.done:
            self._take_progress(lease, event)

    def workers_lost(self, group: Group, incarnation: str, reports: Mapping[int, str], cause: Cause) -> None:
        """Ray Train has found workers dead; `reports`: what it says of those that were killed for memory, by rank."""
        if group.assignment is None or group.incarnation != incarnation:
            return
        for rank, message in reports.items():
            group.assignment.reports[rank] = RankReport(rank=rank, kind="out_of_memory", message=message)
        self.break_attempt(group, cause)

    def closed(self, group_id: str, error: str | None, cause: Cause) -> None:
        """A group's `fit()` has returned. If it never served a trial, the trials that wait for its size fail."""
        group = self.groups.pop(group_id, None)
        if group is None:
            return
        if group.assignment:
            self.break_attempt(group, cause)
        if cause == "controller_lost":
            self.vacate(group.mark)  # a placement group outlives the actor that made it
        if error and not group.served and group.state != "stopping" and self._gives_up(group, cause):
            self._refuse(group.num_workers, error)

    def controller_started(self, group_id: str, controller: Any) -> None:
        """A group's controller is there; one whose group was given up meanwhile is ended."""
        group = self.groups.get(group_id)
        if group is None:
            self.kill(controller)
        else:
            group.controller = controller

    def break_attempt(self, group: Group, cause: Cause) -> None:
        """The group has lost its trial: another attempt, or the trial's end."""
        assignment, lease = group.assignment, self.lease_of(group)
        group.assignment = None
        group.served += 1
        if group.state == "leased":
            group.start_again(self.clock())
        if assignment is None or lease is None or lease.done:
            return
        verdict = judge(
            assignment.reports,
            cause=cause,
            attempt=lease.attempt,
            earlier=lease.outcome.failures,
            failures_per_trial=self.limits.failures_per_trial,
            logs=self.logs,
        )
        if self._go_on(lease, verdict):
            lease.group_id = None
            self.waiting.insert(0, lease.trial_id)

    # --- the cluster, and time ----------------------------------------------------------------------------------

    def set_nodes(self, nodes: Sequence[Node]) -> None:
        """The cluster's room as it is now. Groups with workers on a node that has gone are given up."""
        there = {node.node_id for node in nodes}
        self.nodes = list(nodes)
        for group in [group for group in self.groups.values() if not group.slots.keys() <= there]:
            self.give_up(group, "node_lost")

    def enforce_limits(self) -> bool:
        """Breaks off what takes too long; says whether anything was changed."""
        now = self.clock()
        groups = self.groups.values()
        late = [(each, overrun(each, self.lease_of(each), self.limits, now, closing=self.closing)) for each in groups]
        broken = [(group, cause) for group, cause in late if cause]
        for group, cause in broken:
            if group.assignment:
                self.break_attempt(group, cause)
            self._restart(group)
        for group in [group for group in self.groups.values() if start_hangs(group, self.limits, now)]:
            group.start_again(now)
            self.vacate(group.mark)
        silent = [lease for lease in self.leases.values() if now - lease.heard_at > FOLLOWER_SECONDS]
        for lease in silent:
            self.give_back(lease.trial_id)
        waiting = [self.leases[trial_id] for trial_id in self.waiting]
        hopeless = [each for each in waiting if each.lacks_room(self.room(), now) > self.limits.stalled_seconds]
        for lease in hopeless:
            self._fail_for_room(lease)
        return bool(broken or silent or hopeless)

    def close(self) -> None:
        """Ends every trial and tells every group to end as soon as it has left its own."""
        self.closing = True
        self.waiting.clear()
        for lease in self.leases.values():
            if not lease.done:
                self._end(lease, "failed", dict(STOPPED))
        for group in self.groups.values():
            group.stop_trial()
            group.stop(self.clock())

    def abandon(self) -> None:
        """Ends every group at once, whatever its workers do."""
        for group in self.groups.values():
            self._end_at_once(group)

    def give_up(self, group: Group, cause: Cause) -> None:
        """Ends a group at once, its workers and the controller that would start others."""
        del self.groups[group.group_id]
        self.starts = [start for start in self.starts if start["group_id"] != group.group_id]
        if group.assignment:
            self.break_attempt(group, cause)
        self._kill_workers(group)
        self._end_at_once(group)

    def reconcile(self) -> None:
        """Leaves nodes that drain, and does what can be done now for the trials that wait."""
        if not self.closing:
            leave_draining_nodes(self)
            allocate(self)

    # --- inside -------------------------------------------------------------------------------------------------

    def lease_of(self, group: Group) -> Lease | None:
        """The lease whose attempt the group makes; None when it was given back, or has another group by now."""
        lease = self.leases.get(group.trial_id)
        return lease if lease and lease.group_id == group.group_id else None

    def _forget_wait(self, lease: Lease) -> None:
        if lease.trial_id in self.waiting:
            self.waiting.remove(lease.trial_id)

    def _leave_trial(self, lease: Lease) -> None:
        group = self.groups.get(lease.group_id or "")
        if group and group.trial_id == lease.trial_id:
            group.stop_trial()

    def _follower_lost(self, lease: Lease) -> None:
        """The training goes on; a new Tune process follows it from its first event on."""
        if lease.done or lease.group_id is None:
            return
        verdict = judge(
            {},
            cause="tune_trial",
            attempt=lease.attempt,
            earlier=lease.outcome.failures,
            failures_per_trial=self.limits.failures_per_trial,
            logs=self.logs,
        )
        if self._go_on(lease, verdict):
            lease.events.append({"type": "running", "attempt": lease.attempt, "world": lease.outcome.world})
        else:
            self._leave_trial(lease)

    def _go_on(self, lease: Lease, verdict: Verdict) -> bool:
        """Notes what became of an attempt; says whether the trial makes another."""
        if verdict.failure:
            lease.outcome.failures.append(verdict.failure)
        if verdict.status != "retry":
            self._end(lease, verdict.status, verdict.error)
            return False
        lease.events.append({"type": "retry", "attempt": lease.attempt, "error": verdict.error})
        lease.attempt += 1
        return True

    def _take_progress(self, lease: Lease, event: dict[str, Any]) -> None:
        if event["type"] == "started":
            lease.outcome.training_started(self.clock(), lease.started_at, resumed=event["resumed"])
        elif event["type"] == "epoch" and lease.outcome.new_epoch(event["epoch"]):
            flags = sorted(lease.outcome.flags)
            lease.events.append({**event, "flags": flags} if flags else event)

    def _take_error(self, group: Group, report: RankReport) -> None:
        """Notes what a rank said. The user's own exceptions decide at once; a lost peer waits for the reason."""
        assert group.assignment is not None
        group.assignment.reports[report.rank] = report
        if report.kind != "collective":
            self.break_attempt(group, "reported")

    def _finish(self, group: Group, lease: Lease | None, event: dict[str, Any]) -> None:
        group.assignment = None
        group.served += 1
        group.state = "idle" if group.state == "leased" else group.state
        self._lost_starts.pop(group.num_workers, None)
        if lease is None or lease.done:
            return
        lease.score = event.get("score")
        lease.outcome.training_ended(event)
        message = event.get("message")
        self._end(lease, event["status"], error_of(event["status"], message) if message else None)

    def _end(self, lease: Lease, status: str, error: dict[str, Any] | None) -> None:
        lease.end(status, error, self.clock())

    def _gives_up(self, group: Group, cause: Cause) -> bool:
        """Whether a group that has not served is the last of its size: `fit()` itself has tried again but for this."""
        if cause != "controller_lost":
            return True
        self._lost_starts[group.num_workers] = self._lost_starts.get(group.num_workers, 0) + 1
        return self._lost_starts[group.num_workers] >= STARTS_WITHOUT_SERVICE

    def _refuse(self, num_workers: int, error: str) -> None:
        """Fails the trials that wait for a size whose group could not be started."""
        doomed = [lease for lease in map(self.leases.__getitem__, self.waiting) if lease.num_workers == num_workers]
        for lease in doomed:
            self._forget_wait(lease)
            self._end(lease, "failed", error_of("group_start", with_logs(error, self.logs)))

    def new_mark(self) -> int:
        """Of a group: as good as its own among all that use the cluster, and little enough to be had anywhere."""
        return secrets.randbelow(MARKS) + 1

    def room(self) -> int:
        """Workers that the empty cluster could hold."""
        return sum(node.slots for node in self.nodes)

    def _fail_for_room(self, lease: Lease) -> None:
        self._forget_wait(lease)
        self._end(lease, "failed", error_of("no_room", no_room(self.room(), lease.num_workers)))

    def _restart(self, group: Group) -> None:
        """Kills a group's workers; Ray Train starts new ones, unless the group is to end."""
        group.assignment = None
        if group.state == "stopping":
            group.stopping_since = self.clock()
        else:
            group.start_again(self.clock())
        self._kill_workers(group)

    def _end_at_once(self, group: Group) -> None:
        """Ends a group's `fit()`, which may wait for minutes for workers that don't come."""
        if group.controller is not None:
            self.kill(group.controller)
        self.vacate(group.mark)  # a placement group outlives the actor that made it

    def _kill_workers(self, group: Group) -> None:
        if not group.handles:  # none of them has come as far as the books
            self.vacate(group.mark)
        for handle in group.handles.values():
            self.kill(handle)
