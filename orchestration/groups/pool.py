"""The pool of warm groups: what each event changes in it. Nothing here waits or calls Ray.

Decisions are made in `placement` and `failures`; the pool carries them out.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, assert_never

from scalestudy.experiments.plan.timing_flags import TimingFlag
from scalestudy.experiments.spec.reaching import arrival
from scalestudy.orchestration.cluster.nodes import Node, largest_group
from scalestudy.orchestration.cluster.sharing import TAGS, Demand
from scalestudy.orchestration.groups import failures
from scalestudy.orchestration.groups.beats import Beats
from scalestudy.orchestration.groups.clock import PoolClock
from scalestudy.orchestration.groups.events import (
    STUDY_STOPPED,
    WITH_MODEL,
    Beat,
    Begun,
    EpochDone,
    GivenBack,
    Left,
    LoopEnded,
    LoopReport,
    Member,
    RankFailed,
    Retried,
    Running,
    Started,
    TrainingEnded,
    TrialError,
    WorkerPost,
    World,
)
from scalestudy.orchestration.groups.loop_progress import LoopProgress, no_metric
from scalestudy.orchestration.groups.model import (
    Assignment,
    Group,
    GroupLimits,
    GroupStart,
    Hindrance,
    TrialOrder,
    TrialRequest,
    Turn,
    Wanted,
    Withdrawn,
)
from scalestudy.orchestration.groups.placement import Action, Grant, GroupView, Placement, Request, Start, ahead, decide
from scalestudy.orchestration.groups.trial_record import worker_flags

STARTS_WITHOUT_SERVICE = 3
"""Starts of a group's size that may fail before a group of it has served a trial."""
CLOSING_SECONDS = 5.0
YIELD_SECONDS = 5.0
"""How long others wait for room before an idle group is given back."""
AVOID_SECONDS = 5.0
"""How long the pool avoids the nodes on which Ray found no place for a group. It doubles each time."""
MOST_AVOID_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class PoolSettings:
    """How a pool works."""

    limits: GroupLimits
    exclusive: bool  # one trial at a time on a machine
    placement: Placement = "pack"  # see `placement`
    logs: str = ""  # the folder of the workers' output
    grows: bool = False  # whether an autoscaler may add nodes, so that a trial waits for room as long as it takes


class Hands(Protocol):
    """What only Ray can do."""

    def kill(self, actor: Any) -> None:
        """End an actor, by its handle."""

    def remove_workers(self, tag: int) -> None:
        """End all workers of a group and give their room back, by the group's tag."""


class GroupPool:
    """Groups, requests and waiting trials.

    A moment in a group, an assignment or a request is `clock()`, for limits; one in a trial's record is `clock.wall()`.
    """

    def __init__(self, nodes: Sequence[Node], settings: PoolSettings, hands: Hands, clock: PoolClock) -> None:
        self.limits, self.exclusive, self.logs = settings.limits, settings.exclusive, settings.logs
        self.placement, self.grows = settings.placement, settings.grows
        self.nodes, self.hands, self.clock = list(nodes), hands, clock
        self.groups: dict[str, Group] = {}
        self.requests: dict[str, TrialRequest] = {}
        self.waiting: list[str] = []  # trials without a group, in the order in which they are served
        self.starts: list[GroupStart] = []  # that the driver has not taken yet
        self.cold_starts: dict[str, float] = {}  # group → seconds from its order to all of its ranks being here
        self.sizes_ahead: list[int] = []  # of trials to come, each once, in their order
        self.best_score: float | None = None
        self.closing = False
        self.demand: Demand = "none"
        self._demanded_since: float | None = None
        self._ordered = 0  # groups so far
        self._leases = 0  # given so far
        self._given_up: dict[str, int] = {}  # groups whose `fit()` has not returned → tag
        self._over: set[str] = set()  # trials that the study is done with
        self._lost_starts: dict[int, int] = {}  # size → controllers lost in a row before their group served
        self._withdrawn: dict[int, Withdrawn] = {}  # by size
        self._unfit: TrialError | None = None  # why no trial can be trained, as the user's data sets can't be made

    # --- a trial ------------------------------------------------------------------------------------------------

    def request(self, order: TrialOrder) -> int:
        """Take a trial's request for workers; return the number of the lease.

        The trial asks for the first time, or was put off, or lost the Tune process that followed it. In the last case
        its training goes on, as the next attempt, and the new follower hears all of its events. A trial keeps its
        workers until the driver gives them back: a Tune process that is silent for long may have been stopped, with its
        driver, and go on. A request that comes later than that is from a process that has died since, and changes
        nothing.
        """
        now = self.clock.wall()
        self._leases += 1
        if order.trial_id in self._over:
            return self._leases
        request = self.requests.get(order.trial_id)
        if request is not None:
            request.lease = self._leases
            if request.put_off:
                request.put_off = False
                self.waiting.append(request.trial_id)
            if request.ended or request.group_id is None:
                return request.lease
            if self._go_on(request, self._judge(request, "tune_trial")):
                request.tell(Running(attempt=request.attempt, world=request.record.world), now)
            else:
                self._stop_training(request)
            return request.lease
        request = TrialRequest.of(order, self._leases)
        self.requests[order.trial_id] = request
        spent = failures.over_budget(request.record.counted_failures, self.limits.failures_per_trial)
        if self.closing:
            request.end("failed", TrialError(kind=STUDY_STOPPED, message="the study is stopping"), now)
        elif spent:
            request.attempt -= 1
            request.end("failed", TrialError(kind=spent.kind, message=spent.message, rank=spent.rank), now)
        elif self._unfit:
            request.end("failed", self._unfit, now)
        else:
            self.waiting.append(order.trial_id)
        return request.lease

    def stop(self, trial_id: str, epoch: int) -> None:
        """Stop a trial after an epoch, for a scheduler: whatever it has done since does not count.

        A trial that has recorded its last epoch is left to finish, unless it has no workers to bring its end. A trial
        that ended with this epoch stays as it is.
        """
        request = self.requests[trial_id]
        ended = request.ended is not None and request.ended.status in (*WITH_MODEL, "stopped")
        finishes = epoch >= request.order.config.evaluations and request.group_id is not None
        if finishes or (ended and request.last_epoch <= epoch):
            return
        self._forget_wait(request)
        request.put_off = False
        request.stop_after(epoch, self.clock.wall())
        self._stop_training(request)

    def release(self, trial_id: str) -> None:
        """Note that the study is done with a trial. Workers that still train it leave it within a step."""
        self._over.add(trial_id)
        request = self.requests.pop(trial_id, None)
        if request is None:
            return
        self._forget_wait(request)
        self._stop_training(request)
        if request.ended and request.ended.status in WITH_MODEL and request.score is not None:
            self.best_score = request.score if self.best_score is None else max(request.score, self.best_score)

    # --- a group ------------------------------------------------------------------------------------------------

    def controller_started(self, group_id: str, controller: Any) -> None:
        """Note a group's controller. If the group was given up meanwhile, end its controller."""
        group = self.groups.get(group_id)
        if group is None:
            self.hands.kill(controller)
        else:
            group.controller = controller

    def register(self, group_id: str, incarnation: str, member: Member, handle: Any) -> None:
        """Note that a rank is ready to serve. The group is idle once all ranks of an incarnation are here."""
        group = self.groups.get(group_id)
        if group is None or incarnation in group.past_incarnations:
            return
        if group.incarnation != incarnation:
            if group.assignment:
                self._break_attempt(group, "worker_lost")
            group.new_life(incarnation)
        group.members[member.rank], group.handles[member.rank] = member, handle
        if len(group.members) == group.num_workers and group.state == "starting":
            nodes = [member.node for member in group.members.values()]
            group.slots = {node: nodes.count(node) for node in nodes}
            self._withdrawn.pop(group.num_workers, None)
            group.rest(self.clock())
            self.cold_starts.setdefault(group_id, self.clock() - group.ordered_at)

    def report(self, turn: Turn, rank: int, post: WorkerPost) -> bool:
        """Take a rank's report on its trial; return whether that may change what others wait for.

        It does not if it is a beat, or if the rank's group has another trial by now.
        """
        group = self.groups.get(turn.group_id)
        if group is None or group.assignment is None or not group.holds(turn):
            return False
        now, assignment = self.clock.wall(), group.assignment
        assignment.beats.take(rank, post, self.clock())
        request = self._request_of(group)
        alive = request if request and not request.ended else None
        match post:
            case Begun():
                assignment.kernel_kills[rank] = post.kernel_kills
            case Started():
                if alive:
                    alive.record.training_started(now, resumed=post.resumed)
                    alive.record.code |= post.code
            case Beat():
                return False
            case EpochDone():
                if alive and alive.record.is_news(post):
                    alive.tell(EpochDone(record=post.record, flags=tuple(sorted(alive.record.flags))), now)
            case RankFailed():
                assignment.reports[rank] = failures.RankReport(
                    rank=rank, kind=post.kind, message=post.message, log=post.log, traceback=post.traceback
                )
                if post.kind != "collective":  # a lost peer does not show the reason; another report does
                    self._break_attempt(group, "reported")
            case Left():
                assignment.reports[rank] = failures.RankReport(rank=rank, kind="left", message=post.message)
                group.stop(self.clock())
                self._break_attempt(group, "preempted")
            case GivenBack():
                self.limits = replace(self.limits, trials_per_group=1)
                group.stop(self.clock())
                self._break_attempt(group, "used_workers", post.why)
            case LoopReport():
                if alive and assignment.loop:
                    self._take_loop_report(group, alive, assignment.loop, post)
            case LoopEnded():
                self._leave(group, ends=True)
                if alive:
                    self._end_loop(alive, assignment)
            case TrainingEnded():
                self._leave(group, ends=False)
                if alive:
                    alive.score = post.score
                    alive.record.training_ended(post)
                    error = TrialError(kind=post.status, message=post.message) if post.message else None
                    alive.end(post.status, error, now)
            case _:
                assert_never(post)
        return True

    def datasets_failed(self, error: TrialError) -> None:
        """Take what a function of the user's for Ray's data sets has raised. It ends every trial without workers."""
        self._unfit = error
        for trial_id in list(self.waiting):
            self._forget_wait(self.requests[trial_id])
            self.requests[trial_id].end("failed", error, self.clock.wall())

    def workers_lost(self, group_id: str, loss: failures.Loss) -> None:
        """Take a report of Ray Train that workers of a group are dead."""
        group = self.groups.get(group_id)
        if group is None or group.assignment is None or group.incarnation != loss.incarnation:
            return
        for rank, message in loss.out_of_memory.items():
            group.assignment.reports[rank] = failures.RankReport(rank=rank, kind="out_of_memory", message=message)
        self._break_attempt(group, loss.cause)

    def group_closed(self, group_id: str, error: str | None, cause: failures.Cause) -> None:
        """Note that a group's `fit()` has returned, or raised `error`.

        If the group never served a trial, the trials that wait for its size are put off: `fit()` itself has tried
        again. After a lost controller it has not, so the pool tries some further starts.
        """
        if (tag := self._given_up.pop(group_id, None)) is not None:
            self.hands.remove_workers(tag)  # its controller may have asked for workers anew before it died
        group = self.groups.pop(group_id, None)
        if group is None:
            return
        if group.assignment:
            self._break_attempt(group, cause)
        if error:
            self.hands.remove_workers(group.tag)  # a placement group outlives the actor that made it
        if not error or group.served or group.state == "stopping":
            return
        if cause == "controller_lost":
            self._lost_starts[group.num_workers] = self._lost_starts.get(group.num_workers, 0) + 1
            if self._lost_starts[group.num_workers] < STARTS_WITHOUT_SERVICE:
                return
        for request in [self.requests[trial_id] for trial_id in self.waiting]:
            if request.num_workers == group.num_workers:
                self._put_off(request, TrialError(kind="group_start", message=failures.with_logs(error, self.logs)))

    def kept_checkpoints(self) -> list[str]:
        """Return the addresses of the checkpoints from which trials of users' loops may go on."""
        records = [each.record for each in self.requests.values() if each.ended is None]
        return [record.checkpoint.address for record in records if record.checkpoint]

    # --- the cluster, and time ----------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Workers of one group that the empty cluster could hold."""
        return largest_group(self.nodes)

    def set_nodes(self, nodes: Sequence[Node]) -> None:
        """Take the cluster's room as it is now. Give up the groups with workers on a node that has gone."""
        there = {node.node_id for node in nodes}
        self.nodes = list(nodes)
        for group in [group for group in self.groups.values() if not group.slots.keys() <= there]:
            self._give_up(group, "node_lost")
        for group in self.groups.values():
            self._note_others(group)

    def share(self, demand: Demand, unplaced: Collection[str]) -> Wanted | None:
        """Take who else waits for room, and which groups got none; return what waits for room here.

        unplaced: groups without room on the cluster although there seemed to be some. They are withdrawn, and their
        nodes avoided for a while; no trial is to blame. None: every trial that waits gets its turn after others of this
        study.
        """
        if demand == "none":
            self._demanded_since = None
        elif self._demanded_since is None:
            self._demanded_since = self.clock()
        self.demand = demand
        for group in [group for group in self.groups.values() if group.group_id in unplaced]:
            if group.state == "starting":
                self._note_withdrawn(group)
                self._give_up(group)
        return None if self.closing else self._wanted()

    def enforce_limits(self) -> bool:
        """Break off what takes too long; return whether anything was changed."""
        self.clock.tick()
        now = self.clock()
        overrun = [(group, over) for group in self.groups.values() if (over := self._overrun(group, now))]
        for group, (cause, told) in overrun:
            if group.assignment:
                self._break_attempt(group, cause, told)
            if group.state == "stopping":
                group.stopping_since = now
            else:
                group.start_again(now)
            self._kill_workers(group)
        for group in self.groups.values():
            # a worker that has not registered yet may be frozen; Ray notices that after seven minutes
            if group.state == "starting" and now - group.start_began_at > self.limits.start_seconds:
                group.start_again(now)
                self.hands.remove_workers(group.tag)
        hopeless = [] if self.grows else self._without_room(now)
        for request in hopeless:
            request.no_room_since = None
            message = failures.no_room(self.nodes, request.num_workers)
            self._put_off(request, TrialError(kind="no_room", message=message))
        again = [each for each in self._withdrawn.values() if each.until is not None and now >= each.until]
        for withdrawn in again:
            withdrawn.until = None
        return bool(overrun or hopeless or again) or self._yield(now)

    def close(self) -> None:
        """End every trial, and order every group to end as soon as it has left its trial."""
        now = self.clock.wall()
        self.closing = True
        self.waiting.clear()
        for request in self.requests.values():
            if not request.ended:
                request.end("failed", TrialError(kind=STUDY_STOPPED, message="the study was stopped"), now)
        for group in self.groups.values():
            if group.assignment:
                group.assignment.stopping = True
            group.stop(self.clock())

    def abandon(self) -> None:
        """End every group at once, whatever its workers do."""
        for group in self.groups.values():
            self._end_fit(group)

    def reconcile(self) -> None:
        """Leave nodes that drain, then do what is possible now for the trials that wait.

        If none waits, start a group for the trials to come.
        """
        if self.closing:
            return
        self._drain()
        nodes = self._not_avoided()
        for action in self._decide(nodes, self._asking()):
            if isinstance(action, Grant):
                self._grant(self.requests[action.trial_id], self.groups[action.group_id])
            elif isinstance(action, Start):
                self._order_start(action)
            else:
                self.groups[action.group_id].stop(self.clock())
        if self.waiting or not self.sizes_ahead or self.demand != "none":
            return
        start = ahead(nodes, self._views(), self.sizes_ahead, exclusive=self.exclusive, placement=self.placement)
        if start:
            self._order_start(start)

    # --- inside: trials -----------------------------------------------------------------------------------------

    def _without_room(self, now: float) -> list[TrialRequest]:
        """Return the waiting trials that the cluster's nodes have been unable to hold for too long."""
        waiting = [self.requests[trial_id] for trial_id in self.waiting]
        return [each for each in waiting if each.seconds_without_room(self.room, now) > self.limits.stalled_seconds]

    def _put_off(self, request: TrialRequest, error: TrialError) -> None:
        """Put off a trial whose workers a cause outside it takes or withholds.

        It counts as an attempt, and others come first.
        """
        self._forget_wait(request)
        request.tell(Retried(attempt=request.attempt, error=error), self.clock.wall())
        request.attempt += 1
        request.put_off = True

    def _asking(self) -> list[Request]:
        """Return the waiting trials that the cluster can hold, oldest first."""
        waiting = [self.requests[trial_id] for trial_id in self.waiting]
        return [
            Request(trial_id=request.trial_id, num_workers=request.num_workers)
            for request in waiting
            if request.num_workers <= self.room
        ]

    def _decide(self, nodes: Sequence[Node], asking: Sequence[Request]) -> list[Action]:
        """Return what to do on these nodes for the trials that ask; see `decide`."""
        return decide(nodes, self._views(), asking, exclusive=self.exclusive, placement=self.placement)

    def _wanted(self) -> Wanted | None:
        """Return the first trial that waits for others' work, for Ray to find its place, or for a larger cluster."""
        if first := self._asking()[:1]:
            size, withdrawn = first[0].num_workers, self._withdrawn.get(first[0].num_workers)
            possible = self._decide(self.nodes, first)
            if not possible and self._decide([replace(node, taken=0) for node in self.nodes], first):
                return self._wants(size, "others")
            starts = any(group.state == "starting" and group.num_workers == size for group in self.groups.values())
            if withdrawn and (possible or starts):
                return self._wants(size, "unplaced", withdrawn.nodes)
        waiting = (self.requests[trial_id].num_workers for trial_id in self.waiting)
        too_large = next((size for size in waiting if size > self.room), None)
        return None if too_large is None else self._wants(too_large, "growth" if self.grows else "shrunken")

    def _wants(self, size: int, why: Hindrance, nodes: Collection[str] = ()) -> Wanted:
        return Wanted(
            why=why,
            num_workers=size,
            one_node=self.placement == "pack" and any(node.slots >= size for node in self.nodes),
            room=sum(node.slots for node in self.nodes),
            largest_group=self.room,
            taken=sum(node.taken for node in self.nodes),
            machines=tuple(sorted({node.machine for node in self.nodes if node.node_id in nodes})),
        )

    def _note_withdrawn(self, group: Group) -> None:
        """Note that Ray has found no place for a group, and avoid its nodes for a while."""
        before = self._withdrawn.get(group.num_workers, Withdrawn(times=0, nodes=set(), until=None))
        seconds = min(AVOID_SECONDS * 2**before.times, MOST_AVOID_SECONDS)
        nodes = {*group.slots, *(before.nodes if before.until is not None else ())}
        self._withdrawn[group.num_workers] = Withdrawn(
            times=before.times + 1, nodes=nodes, until=self.clock() + seconds
        )

    def _not_avoided(self) -> list[Node]:
        """Return the nodes, where avoided ones have only the room that this study's groups hold there."""
        avoided = {node for each in self._withdrawn.values() if each.until is not None for node in each.nodes}

        def room(node: Node) -> Node:
            held = sum(group.slots.get(node.node_id, 0) for group in self.groups.values())
            return replace(node, taken=max(node.taken, node.slots - held)) if node.node_id in avoided else node

        return [room(node) for node in self.nodes]

    def _request_of(self, group: Group) -> TrialRequest | None:
        """Return the request whose attempt the group makes. None: it was released, or has another group by now."""
        request = self.requests.get(group.trial_id)
        return request if request and request.group_id == group.group_id else None

    def _forget_wait(self, request: TrialRequest) -> None:
        if request.trial_id in self.waiting:
            self.waiting.remove(request.trial_id)

    def _stop_training(self, request: TrialRequest) -> None:
        """Order the ranks that hold the trial, if any, to leave it soon."""
        group = self.groups.get(request.group_id or "")
        if group and group.assignment and group.trial_id == request.trial_id:
            group.assignment.stopping = True
            if group.assignment.loop:  # it can't be asked to leave
                self._give_up(group)

    def _judge(
        self, request: TrialRequest, cause: failures.Cause, assignment: Assignment | None = None, told: str = ""
    ) -> failures.Verdict:
        """Return what follows from the end of the request's attempt.

        assignment: whose ranks may have said why it broke.
        """
        return failures.judge(
            assignment.reports if assignment else {},
            cause=cause,
            attempt=request.attempt,
            earlier=request.record.counted_failures,
            failures_per_trial=self.limits.failures_per_trial,
            logs=self.logs,
            told=told,
        )

    def _go_on(self, request: TrialRequest, verdict: failures.Verdict) -> bool:
        """Note the end of an attempt; return whether the trial makes another."""
        now = self.clock.wall()
        if verdict.status == "retry":
            request.tell(Retried(attempt=request.attempt, error=verdict.error), now)
            request.attempt += 1
            return True
        if verdict.failure:
            request.record.failures.append(verdict.failure)
        request.end(verdict.status, verdict.error, now)
        return False

    def _break_attempt(self, group: Group, cause: failures.Cause, told: str = "") -> None:
        """Take a group's trial from it: another attempt follows, or the trial's end. told: see `judge`."""
        assignment, request = group.assignment, self._request_of(group)
        group.assignment = None
        group.served += 1
        if group.state == "busy":
            group.start_again(self.clock())
        if assignment and assignment.loop:
            group.stop(self.clock())  # Ray Train knows checkpoints of this trial: no other may get its workers
        if request is None or request.ended:
            return
        if self._go_on(request, self._judge(request, cause, assignment, told)):
            request.group_id = None
            request.put_off = request.record.failures[-1].kind in failures.OUTSIDE
            if not request.put_off:
                self.waiting.insert(0, request.trial_id)

    def _take_loop_report(self, group: Group, request: TrialRequest, loop: LoopProgress, post: LoopReport) -> None:
        """Take a report of a user's loop, and end the trial if it has reached its target."""
        order, now = request.order, self.clock.wall()
        record = loop.take(post)
        request.record.checkpoint = loop.checkpoint
        if post.resumed:
            request.record.flags.add(TimingFlag.RESUMED)
        if record is None:
            return
        done = EpochDone(record=record, flags=tuple(sorted(request.record.flags)), checkpoint=loop.checkpoint)
        if not request.record.is_news(done):  # this attempt repeats what an earlier one has told
            return
        request.tell(done, now)
        if order.reports is not None and record.epoch >= order.reports:
            self._leave(group, ends=True)
            request.end("finished", None, now)
        if order.stop_at is None or record.epoch == order.config.evaluations:
            return
        values = [each.test_metric for _, each in sorted(request.record.epochs.items())]
        if arrival(list(filter(math.isfinite, values)), order.stop_at, order.config.metric_mode) is not None:
            self._leave(group, ends=True)
            request.end("at_target", None, now)

    def _leave(self, group: Group, *, ends: bool) -> None:
        """Take its trial from a group that has served it. ends: whether it serves no other, as after a user's loop."""
        group.assignment = None
        group.served += 1
        if ends:
            group.stop(self.clock())
        elif group.state == "busy":
            group.rest(self.clock())
        self._lost_starts.pop(group.num_workers, None)

    def _end_loop(self, request: TrialRequest, assignment: Assignment) -> None:
        """End the trial of a loop that has returned: how depends on the metric of its last report."""
        now, config, epochs = self.clock.wall(), request.order.config, request.record.epochs
        if not epochs:
            keys = assignment.loop.keys if assignment.loop else ()
            request.end("failed", TrialError(kind="exception", message=no_metric(config, keys)), now)
            return
        last = epochs[max(epochs)].test_metric
        if math.isfinite(last):
            request.end("finished", None, now)
        else:
            message = f"{config.metric} is {last:g} at report {max(epochs)}, its last"
            request.end("diverged", TrialError(kind="diverged", message=message), now)

    # --- inside: groups -----------------------------------------------------------------------------------------

    def _views(self) -> list[GroupView]:
        return [group.view(self.limits) for group in self.groups.values()]

    def _drain(self) -> None:
        """End the groups that have workers on a node that drains, each as soon as it can.

        Such a node goes soon, like a spot machine that is taken back. Ray starts nothing new there, and leaves what
        runs alone until the node goes: minutes, or half a minute. An idle group is ordered to end. A group that starts
        is given up, for its workers may never come. A group that trains leaves its trial with a checkpoint. Without
        checkpoints it trains on: the trial may end before the node goes, and would have to start over otherwise.
        """
        draining = {node.node_id for node in self.nodes if node.draining}
        for group in [group for group in self.groups.values() if group.slots.keys() & draining]:
            if group.state == "starting":
                group.stop(self.clock())
                self._give_up(group)
            elif group.state == "idle":
                group.stop(self.clock())
            elif group.assignment:
                group.assignment.leaving = group.assignment.order.checkpoints is not None

    def _yield(self, now: float) -> bool:
        """Give back groups that have long been idle while others wait for room; return whether it did.

        Of two studies the one that began first keeps a group, so that they don't both give up theirs.
        """
        if self._demanded_since is None or now - self._demanded_since < YIELD_SECONDS:
            return False
        idle = [group for group in self.groups.values() if group.idle_for(now) >= YIELD_SECONDS]
        if self.demand == "younger study" and not any(group.assignment for group in self.groups.values()):
            idle = idle[1:]
        for group in idle:
            group.stop(now)
        return bool(idle)

    def _note_others(self, group: Group) -> None:
        """Flag the trial of a group if other work on the cluster holds room on its machines."""
        machines = {node.machine for node in self.nodes if node.taken}
        shared = any(node.machine in machines for node in self.nodes if node.node_id in group.slots)
        if shared and (request := self._request_of(group)):
            request.record.flags.add(TimingFlag.SHARED_NODE)

    def _order_start(self, start: Start) -> None:
        now = self.clock()
        self._ordered += 1
        group_id = f"group-{self._ordered}-of-{start.num_workers}"
        tag = secrets.randbelow(TAGS) + 1  # practically unique on the cluster, and small enough to fit any node
        self.groups[group_id] = Group(
            group_id, start.num_workers, dict(start.slots), ordered_at=now, tag=tag, start_began_at=now
        )
        self.sizes_ahead = [size for size in self.sizes_ahead if size != start.num_workers]
        if request := self.requests.get(start.trial_id):
            request.record.begin(self.clock.wall())
        nodes = tuple(node for node, count in start.slots.items() for _ in range(count))
        self.starts.append(GroupStart(group_id=group_id, num_workers=start.num_workers, nodes=nodes, tag=tag))

    def _grant(self, request: TrialRequest, group: Group) -> None:
        """Give a trial to an idle group, and flag all trials that disturb each other's timings on a host."""
        now = self.clock()
        self.waiting.remove(request.trial_id)
        request.group_id = group.group_id
        group.sequence += 1
        group.state = "busy"
        beats = Beats(group.num_workers, began_at=now)
        group.assignment = Assignment(group.sequence, request.order, request.attempt, began_at=now, beats=beats)
        if request.order.config.loop:
            past = [record for _, record in sorted(request.record.epochs.items())]
            group.assignment.loop = LoopProgress(request.order.config, past, request.record.checkpoint)
        members = [group.members[rank] for rank in sorted(group.members)]
        types = {node.accelerator for node in self.nodes if node.node_id in group.slots}
        world = World.of(members, accelerator="+".join(sorted(types)))
        request.tell(Running(attempt=request.attempt, world=world), self.clock.wall())
        request.record.flags |= worker_flags(members)
        beside = [other for other in self.groups.values() if other is not group and other.hosts & group.hosts]
        running = [other for other in beside if other.assignment]
        for each in [group, *running] if running else []:
            if disturbed := self._request_of(each):
                disturbed.record.flags.add(TimingFlag.SHARED_NODE)
        self._note_others(group)

    def _overrun(self, group: Group, now: float) -> tuple[failures.Cause, str] | None:
        """Return why to break off a group, as `judge` takes it: its trial, or its end, takes too long."""
        if group.stopping_since is not None:
            patience = CLOSING_SECONDS if self.closing and group.incarnation else self.limits.stalled_seconds
            if now - group.stopping_since > patience:
                return "stalled", f"the workers did not leave within {patience:g} s"
        if group.assignment is None:
            return None
        request, beats = self._request_of(group), group.assignment.beats
        if request and now - group.assignment.began_at > self.limits.trial_seconds:
            return "time_limit", failures.CAUSE_TEXT["time_limit"] + beats.at_last()
        wanted = request is not None and not request.ended
        told = beats.stall(now, self.limits.stalled_seconds, wanted=wanted)
        return ("stalled", told) if told else None

    def _give_up(self, group: Group, cause: failures.Cause = "worker_lost") -> None:
        """End a group at once, its workers and the controller that would start others.

        cause: of its trial's lost attempt. A group that starts has no trial.
        """
        del self.groups[group.group_id]
        self._given_up[group.group_id] = group.tag
        self.starts = [start for start in self.starts if start.group_id != group.group_id]
        if group.assignment:
            self._break_attempt(group, cause)
        self._end_fit(group)
        self._kill_workers(group)

    def _end_fit(self, group: Group) -> None:
        """End a group's `fit()`, which may wait for minutes for workers that don't come."""
        if group.controller is not None:
            self.hands.kill(group.controller)
        self.hands.remove_workers(group.tag)  # a placement group outlives the actor that made it

    def _kill_workers(self, group: Group) -> None:
        if not group.handles:  # none of them has registered
            self.hands.remove_workers(group.tag)
        for handle in group.handles.values():
            self.hands.kill(handle)
