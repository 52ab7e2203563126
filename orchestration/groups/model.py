"""The entries of the books — groups, the trials that they train, and who waits for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from scalestudy.orchestration.groups.failures import Cause, RankReport
from scalestudy.orchestration.groups.placement import GroupState, GroupView
from scalestudy.orchestration.groups.trial_record import Outcome

Way = Literal["stop", "leave"]
"""How ranks go from a trial: at once, or with a checkpoint from which another attempt goes on."""

CLOSING_SECONDS = 5.0
FOLLOWER_SECONDS = 300.0  # many long polls


@dataclass(frozen=True, kw_only=True)
class GroupLimits:
    """The study's limits as the engine needs them.

    Attributes:
        trial_seconds: longest time from a trial's start to its end.
        stalled_seconds: longest time without a finished step, and without room for a trial's workers.
        failures_per_trial: attempts that a trial may lose to each cause.
        trials_per_group: trials after which a group is replaced.
        start_seconds: longest start of a group's workers, before they are taken for frozen and started anew.
    """

    trial_seconds: float
    stalled_seconds: float
    failures_per_trial: int
    trials_per_group: int
    start_seconds: float = 240.0


@dataclass
class Assignment:
    """A trial in the hands of a group: what every rank receives, and what the ranks have said."""

    sequence: int
    trial: dict[str, Any]
    attempt: int
    last_progress: float
    reports: dict[int, RankReport] = field(default_factory=dict)
    kernel_kills: dict[int, dict[str, Any]] = field(default_factory=dict)  # rank → `kernel_kills.kills_so_far`
    stopping: bool = False  # its ranks are to leave it within a step
    leaving: bool = False  # its ranks are to leave it at a step that they agree on, with a checkpoint

    @property
    def trial_id(self) -> str:
        return str(self.trial["trial_id"])

    @property
    def checkpointed(self) -> bool:
        """Whether its ranks write checkpoints, from which another attempt can go on."""
        wanted = self.trial.get("checkpoints")
        return bool(wanted and wanted["every_epochs"])


@dataclass
class Group:
    group_id: str
    num_workers: int
    slots: dict[str, int]
    ordered_at: float
    state: GroupState = "starting"
    incarnation: str = ""
    past_incarnations: set[str] = field(default_factory=set)
    members: dict[int, dict[str, Any]] = field(default_factory=dict)  # rank → node, device, threads …
    handles: dict[int, Any] = field(default_factory=dict)  # rank → actor handle, to kill what no longer answers
    controller: Any = None  # actor handle of its Ray Train controller, to end `fit()` at once
    mark: int = 0  # bytes of memory that each of its workers asks for, by which its placement group is known
    starting_since: float = 0.0  # when the start of its workers began that has not come to its end
    assignment: Assignment | None = None
    sequence: int = 0
    served: int = 0
    stopping_since: float | None = None  # when its ranks were told to end

    @property
    def trial_id(self) -> str:
        """The trial in its hands; empty without one."""
        return self.assignment.trial_id if self.assignment else ""

    @property
    def hosts(self) -> set[str]:
        """The machines that its workers are on."""
        return {member["host"] for member in self.members.values()}

    def stop(self, now: float) -> None:
        """It ends as soon as its ranks are free."""
        self.state = "stopping"
        self.stopping_since = now if self.stopping_since is None else self.stopping_since

    def stop_trial(self) -> None:
        """The ranks are to leave the trial in their hands within a step."""
        if self.assignment:
            self.assignment.stopping = True

    def new_life(self, incarnation: str) -> None:
        """Ray Train has started its workers anew."""
        self.past_incarnations.add(self.incarnation)
        self.incarnation, self.members, self.handles = incarnation, {}, {}
        self.state = "stopping" if self.state == "stopping" else "starting"

    def start_again(self, now: float) -> None:
        """Its workers are gone, and Ray Train starts others."""
        self.state, self.starting_since = "starting", now

    def view(self, limits: GroupLimits) -> GroupView:
        """What a decision needs to know of it."""
        return GroupView(
            group_id=self.group_id,
            num_workers=self.num_workers,
            state=self.state,
            slots=self.slots,
            exhausted=self.served >= limits.trials_per_group,
        )

    def to_dict(self) -> dict[str, Any]:
        """For who looks at the books."""
        return {
            "group_id": self.group_id,
            "num_workers": self.num_workers,
            "state": self.state,
            "trial": self.trial_id or None,
            "served": self.served,
            "nodes": dict(self.slots),
        }


@dataclass
class Lease:
    """A trial that wants workers or has them, from its Tune trial's asking to its giving back."""

    trial: dict[str, Any]
    heard_at: float  # when its Tune trial last asked for something
    attempt: int = 1
    group_id: str | None = None
    started_at: float | None = None  # when the engine first did something for it
    no_room_since: float | None = None  # since when the cluster's nodes can't hold its workers
    outcome: Outcome = field(default_factory=Outcome)
    events: list[dict[str, Any]] = field(default_factory=list)
    status: str = ""  # how it ended; "": it has not
    score: float | None = None  # of a finished trial; more is better

    @classmethod
    def of(cls, trial: Mapping[str, Any], now: float) -> Lease:
        """A new one, which goes on where the `history` of earlier engines ends."""
        history = trial.get("history") or {}
        order = {key: value for key, value in trial.items() if key != "history"}
        attempt = 1 + history.get("attempts", 0)
        return cls(order, heard_at=now, attempt=attempt, outcome=Outcome.of_history(history))

    @property
    def trial_id(self) -> str:
        return str(self.trial["trial_id"])

    @property
    def num_workers(self) -> int:
        return int(self.trial["num_workers"])

    @property
    def done(self) -> bool:
        """Whether its last event is there."""
        return bool(self.status)

    def is_last(self, epoch: int) -> bool:
        """Whether the trial ends by itself after that epoch."""
        return bool(epoch >= self.trial.get("config", {}).get("epochs", epoch + 1))

    def last_epoch(self) -> int:
        """The highest number of a recorded epoch; 0 without one."""
        return max(self.outcome.epochs, default=0)

    def end(self, status: str, error: dict[str, Any] | None, now: float) -> None:
        """Adds the last event. A second one is only given when the first is taken back before."""
        self.status = status
        facts = self.outcome.to_dict(
            status=status, attempts=self.attempt, started_at=self.started_at, now=now, error=error
        )
        self.events.append({"type": "ended", **facts})

    def stop_at(self, epoch: int, now: float) -> None:
        """Ends it as stopped after an epoch: what came later, even an end of its own, is taken back."""
        self.outcome.forget_after(epoch)
        self.events = [event for event in self.events if not _is_later(event, epoch)]
        self.end("stopped", None, now)

    def lacks_room(self, room: int, now: float) -> float:
        """For how many seconds the empty cluster has been too small for its workers."""
        if self.num_workers <= room:
            self.no_room_since = None
        elif self.no_room_since is None:
            self.no_room_since = now
        return 0.0 if self.no_room_since is None else now - self.no_room_since

    def events_after(self, number: int) -> list[dict[str, Any]]:
        """The events from that number on; one that has ended gives its end again and again."""
        return self.events[min(number, len(self.events) - 1) if self.done else number :]

    def to_dict(self) -> dict[str, Any]:
        """For who looks at the books."""
        facts = {"trial": self.trial_id, "attempt": self.attempt, "since": self.started_at, "status": self.status}
        return {**facts, "group": self.group_id, "epoch": self.last_epoch()}


def _is_later(event: Mapping[str, Any], epoch: int) -> bool:
    return event["type"] == "ended" or (event["type"] == "epoch" and event["epoch"]["epoch"] > epoch)


def has_work(group: Group, incarnation: str, after: int) -> bool:
    """Whether a rank that has served up to a number has a trial to take."""
    assignment = group.assignment
    return assignment is not None and group.incarnation == incarnation and assignment.sequence > after


def holds(group: Group | None, incarnation: str, sequence: int) -> bool:
    """Whether the ranks of an incarnation still have the trial of that number in their hands."""
    if group is None or group.incarnation != incarnation or group.assignment is None:
        return False
    return group.assignment.sequence == sequence


def trains_on(group: Group | None, incarnation: str, sequence: int, but_for: Way) -> bool:
    """As `holds`, and they are not to leave it in that way."""
    if group is None or group.assignment is None or not holds(group, incarnation, sequence):
        return False
    return not (group.assignment.stopping if but_for == "stop" else group.assignment.leaving)


def overrun(group: Group, lease: Lease | None, limits: GroupLimits, now: float, *, closing: bool) -> Cause | None:
    """Why a group must be broken off: its trial, or its own end, takes longer than it may."""
    waited = 0.0 if group.stopping_since is None else now - group.stopping_since
    if waited > (CLOSING_SECONDS if closing and group.incarnation else limits.stalled_seconds):
        return "stalled"
    if group.assignment is None:
        return None
    if lease and lease.outcome.over_time(now, limits.trial_seconds):
        return "time_limit"
    return "stalled" if now - group.assignment.last_progress > limits.stalled_seconds else None


def start_hangs(group: Group, limits: GroupLimits, now: float) -> bool:
    """Whether a worker may be frozen which is not yet known to the books; Ray notices it after seven minutes."""
    return group.state == "starting" and now - group.starting_since > limits.start_seconds


def slots_of(members: Mapping[int, dict[str, Any]]) -> dict[str, int]:
    """How many workers each node holds."""
    nodes = [member["node"] for member in members.values()]
    return {node: nodes.count(node) for node in nodes}
