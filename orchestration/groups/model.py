"""The pool's entries: groups, the trials that they train, and the trials that ask for workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from scalestudy.orchestration.groups.beats import Beats
from scalestudy.orchestration.groups.events import Ended, EpochDone, JournalEvent, KillCount, Member, Status, TrialError
from scalestudy.orchestration.groups.failures import RankReport
from scalestudy.orchestration.groups.loop_progress import LoopProgress
from scalestudy.orchestration.groups.placement import GroupState, GroupView
from scalestudy.orchestration.groups.trial_record import TrialRecord
from scalestudy.training.config import TrainConfig

ExitMode = Literal["stop", "leave"]
"""How ranks leave a trial: at once, or with a checkpoint from which another attempt goes on."""


@dataclass(frozen=True, kw_only=True)
class GroupLimits:
    """The study's limits as the pool needs them."""

    trial_seconds: float  # longest time from a trial's start to its end
    stalled_seconds: float
    """Longest time without progress, without a rank's beat, and without room for a trial's workers."""
    failures_per_trial: int  # attempts that a trial may lose to each cause
    trials_per_group: int  # trials after which a group is replaced
    start_seconds: float = 240.0
    """Longest start of a group's workers. Slower workers are taken for frozen and started anew."""


# --- a trial ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class TrialOrder:
    """A trial as the pool receives it."""

    trial_id: str
    num_workers: int  # how many train it together
    config: TrainConfig  # what to train
    model_path: str | None = None  # where the model goes if it is the best so far; None: nowhere
    checkpoints: str | None = None  # the path or URI where its checkpoints go; None: it writes none
    stop_at: float | None = None  # the target at which the training ends; None: after its last epoch
    reports: int | None = None  # after which a user's loop is ended, for timing; None: it ends by itself
    so_far: TrialRecord = field(default_factory=TrialRecord)  # what earlier engines have left of the trial


@dataclass(frozen=True, kw_only=True)
class NextTrial:
    """A trial as each rank of a group takes it."""

    sequence: int
    attempt: int
    best_score: float | None  # of the study so far; more is better
    order: TrialOrder
    checkpoint: str | None = None  # address of the last one that an earlier attempt's loop has reported


@dataclass(frozen=True, kw_only=True)
class EndGroup:
    """The order to end, since nothing more comes for the rank's group."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One trial held by one incarnation of a group's workers."""

    group_id: str
    incarnation: str
    sequence: int  # the trial's number in the group, from 1


@dataclass
class TrialRequest:
    """A trial that wants workers or has them, from its Tune trial's request to its release."""

    order: TrialOrder
    lease: int
    """The number of the last request for it. If one Tune process replaces another, the later one has the lease; reports
    of the earlier one no longer count."""
    attempt: int = 1
    group_id: str | None = None
    put_off: bool = False  # whether it waits for another request, since a cause outside it hit it
    no_room_since: float | None = None  # since when the cluster's nodes can't hold its workers
    record: TrialRecord = field(default_factory=TrialRecord)
    events: list[JournalEvent] = field(default_factory=list)
    score: float | None = None  # of a finished trial; more is better

    @classmethod
    def of(cls, order: TrialOrder, lease: int) -> TrialRequest:
        """Return a new request, which continues where the order's `so_far` ends."""
        record = deepcopy(order.so_far)
        alone = replace(order, so_far=TrialRecord())  # the ranks need nothing of it
        return cls(alone, lease=lease, attempt=1 + record.attempts, record=record)

    @property
    def trial_id(self) -> str:
        """The trial's id."""
        return self.order.trial_id

    @property
    def num_workers(self) -> int:
        """Workers that train the trial together."""
        return self.order.num_workers

    @property
    def ended(self) -> Ended | None:
        """Its last event; None: the trial goes on."""
        return self.record.ended

    @property
    def last_epoch(self) -> int:
        """The highest number of a recorded epoch; 0 without one."""
        return max(self.record.epochs, default=0)

    def tell(self, event: JournalEvent, now: float) -> None:
        """Add an event for the followers of the trial, and take it into the record."""
        self.record.apply(event, now)
        self.events.append(event)

    def end(self, status: Status, error: TrialError | None, now: float) -> None:
        """Add the last event. A second end comes only after `stop_after` has dropped the first."""
        self.events.append(self.record.end(status, attempts=self.attempt, error=error, at=now))

    def stop_after(self, epoch: int, now: float) -> None:
        """Stop the trial after this epoch. Drops later events, even its own end."""
        self.record.forget_after(epoch)
        self.events = [
            event
            for event in self.events
            if not isinstance(event, Ended) and not (isinstance(event, EpochDone) and event.record.epoch > epoch)
        ]
        self.end("stopped", None, now)

    def seconds_without_room(self, room: int, now: float) -> float:
        """Return for how long the empty cluster has been too small for its workers.

        room: workers of one group that the empty cluster holds now.
        """
        if self.num_workers <= room:
            self.no_room_since = None
        elif self.no_room_since is None:
            self.no_room_since = now
        return 0.0 if self.no_room_since is None else now - self.no_room_since

    def events_after(self, number: int) -> list[JournalEvent]:
        """Return the events from that number on. For a trial that has ended, its end comes again and again."""
        return self.events[min(number, len(self.events) - 1) if self.ended else number :]


# --- a group ------------------------------------------------------------------------------------------------------
@dataclass
class Assignment:
    """A trial held by a group: what every rank receives, and what the ranks have reported."""

    sequence: int
    order: TrialOrder
    attempt: int
    began_at: float
    beats: Beats
    reports: dict[int, RankReport] = field(default_factory=dict)
    kernel_kills: dict[int, KillCount] = field(default_factory=dict)  # by rank, when the trial began
    loop: LoopProgress | None = None  # of a user's loop; None: ours trains it
    stopping: bool = False  # its ranks should leave it within a step
    leaving: bool = False  # its ranks should leave it at a step that they agree on, with a checkpoint

    @property
    def checkpoint(self) -> str | None:
        """The address of the last one that a user's loop has reported, in this attempt or an earlier one."""
        return self.loop.checkpoint.address if self.loop and self.loop.checkpoint else None


@dataclass
class Group:
    """Workers of one size, which serve trials one after another: one `fit()` of Ray Train.

    An *incarnation* is one life of its workers. Ray Train restarts all of them when one fails.
    """

    group_id: str
    num_workers: int
    slots: dict[str, int]  # how many of its workers each node holds
    ordered_at: float
    tag: int = 0  # bytes of memory that each of its workers requests, which identify its placement group
    start_began_at: float = 0.0  # when the latest start of its workers began
    state: GroupState = "starting"
    idle_since: float | None = None
    incarnation: str = ""
    past_incarnations: set[str] = field(default_factory=set)
    members: dict[int, Member] = field(default_factory=dict)  # by rank
    handles: dict[int, Any] = field(default_factory=dict)
    """By rank: actor handles, to kill a worker that no longer answers."""
    controller: Any = None  # actor handle of its Ray Train controller, to end `fit()` at once
    assignment: Assignment | None = None
    sequence: int = 0  # number of its last trial
    served: int = 0  # trials
    stopping_since: float | None = None  # when its ranks were ordered to end

    @property
    def trial_id(self) -> str:
        """The trial that it holds; empty without one."""
        return self.assignment.order.trial_id if self.assignment else ""

    @property
    def hosts(self) -> set[str]:
        """The machines that its workers are on."""
        return {member.host for member in self.members.values()}

    def rest(self, now: float) -> None:
        """Note that its ranks are ready for a trial."""
        self.state, self.idle_since = "idle", now

    def idle_for(self, now: float) -> float:
        """Return the seconds since its ranks were ready for a trial; 0 if they have one, or are not there."""
        return now - self.idle_since if self.state == "idle" and self.idle_since is not None else 0.0

    def stop(self, now: float) -> None:
        """Order it to end as soon as its ranks are free."""
        self.state = "stopping"
        self.stopping_since = now if self.stopping_since is None else self.stopping_since

    def start_again(self, now: float) -> None:
        """Note that its workers are gone, and that Ray Train starts others."""
        self.state, self.start_began_at = "starting", now

    def new_life(self, incarnation: str) -> None:
        """Note that Ray Train has started its workers anew."""
        self.past_incarnations.add(self.incarnation)
        self.incarnation, self.members, self.handles = incarnation, {}, {}
        self.state = "stopping" if self.state == "stopping" else "starting"

    def has_work(self, incarnation: str, after: int) -> bool:
        """Return whether a rank that has served up to a number has a trial to take."""
        return self.assignment is not None and self.incarnation == incarnation and self.assignment.sequence > after

    def holds(self, turn: Turn) -> bool:
        """Return whether its ranks still hold that trial."""
        if self.assignment is None or self.incarnation != turn.incarnation:
            return False
        return self.assignment.sequence == turn.sequence

    def still_trains(self, turn: Turn, mode: ExitMode) -> bool:
        """Return whether its ranks hold that trial and should not leave it in that mode."""
        if self.assignment is None or not self.holds(turn):
            return False
        return not (self.assignment.stopping if mode == "stop" else self.assignment.leaving)

    def view(self, limits: GroupLimits) -> GroupView:
        """Return what a decision needs to know of it."""
        return GroupView(
            group_id=self.group_id,
            num_workers=self.num_workers,
            state=self.state,
            slots=self.slots,
            exhausted=self.served >= limits.trials_per_group,
        )


@dataclass(frozen=True, kw_only=True)
class GroupStart:
    """A group that the driver is to start."""

    group_id: str
    num_workers: int
    nodes: tuple[str, ...]  # one a worker
    tag: int  # as in `Group`


@dataclass
class Withdrawn:
    """Starts of a group of one size for which Ray found no place, since a group of that size last had its workers."""

    times: int
    nodes: set[str]  # where the last start was planned
    until: float | None  # the nodes are avoided until then; None: no more


Hindrance = Literal["others", "growth", "shrunken", "unplaced"]
"""Why a group waits although none of our trials blocks it: other work holds its room; the cluster is too
small until its autoscaler adds nodes; the cluster is too small, and does not grow; Ray finds no place for it, although
there seems to be room."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A group that waits for room on the cluster."""

    why: Hindrance
    num_workers: int
    one_node: bool  # whether it must not span nodes
    room: int  # workers that the cluster has room for when it is empty
    largest_group: int  # of these, the most of one group, which are on GPUs of one type
    taken: int  # what other work holds of the room
    machines: tuple[str, ...] = ()  # for an unplaced group, those that seem to have room


@dataclass(frozen=True, kw_only=True)
class HostOrders:
    """What the driver should do and know."""

    start: Sequence[GroupStart] = ()
    ready: Mapping[str, float] = field(default_factory=dict)  # seconds that the starts of groups took, by group
