"""Stage 4, worker groups: the entries of the books — groups, the trials that they train, and who waits for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestration.failures import Cause, RankReport
from orchestration.leases import GroupState, GroupView
from orchestration.outcomes import Outcome


@dataclass(frozen=True, kw_only=True)
class GroupLimits:
    """The study's limits as the engine needs them.

    Attributes:
        trial_seconds: longest time from a trial's start to its end.
        stalled_seconds: longest time without a finished step.
        failures_per_trial: lost attempts a trial may have.
        trials_per_group: trials after which a group is replaced.
    """

    trial_seconds: float
    stalled_seconds: float
    failures_per_trial: int
    trials_per_group: int


@dataclass
class Assignment:
    """A trial in the hands of a group: what every rank receives, and what the ranks have said."""

    sequence: int
    trial: dict[str, Any]
    attempt: int
    last_progress: float
    reports: dict[int, RankReport] = field(default_factory=dict)


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
    assignment: Assignment | None = None
    sequence: int = 0
    served: int = 0
    stopping_since: float | None = None  # when its ranks were told to end

    @property
    def trial_id(self) -> str:
        """The trial in its hands; empty without one."""
        return str(self.assignment.trial["trial_id"]) if self.assignment else ""

    @property
    def hosts(self) -> set[str]:
        """The machines that its workers are on."""
        return {member["host"] for member in self.members.values()}

    def stop(self, now: float) -> None:
        self.state = "stopping"
        self.stopping_since = now if self.stopping_since is None else self.stopping_since

    def view(self, limits: GroupLimits) -> GroupView:
        return GroupView(
            group_id=self.group_id,
            num_workers=self.num_workers,
            state=self.state,
            slots=self.slots,
            exhausted=self.served >= limits.trials_per_group,
        )


@dataclass
class Lease:
    trial: dict[str, Any]
    attempt: int = 1
    group_id: str | None = None
    started_at: float | None = None  # when the engine first did something for it
    outcome: Outcome = field(default_factory=Outcome)
    events: list[dict[str, Any]] = field(default_factory=list)
    done: bool = False

    @property
    def trial_id(self) -> str:
        return str(self.trial["trial_id"])


def has_work(group: Group, incarnation: str, after: int) -> bool:
    assignment = group.assignment
    return assignment is not None and group.incarnation == incarnation and assignment.sequence > after


def overrun(group: Group, lease: Lease | None, limits: GroupLimits, now: float) -> Cause | None:
    """Why a group must be broken off: its trial, or its own end, takes longer than it may."""
    if group.assignment is None:
        waited = 0.0 if group.stopping_since is None else now - group.stopping_since
        return "stalled" if waited > limits.stalled_seconds else None
    if lease and lease.outcome.over_time(now, limits.trial_seconds):
        return "time_limit"
    return "stalled" if now - group.assignment.last_progress > limits.stalled_seconds else None


def slots_of(members: Mapping[int, dict[str, Any]]) -> dict[str, int]:
    nodes = [member["node"] for member in members.values()]
    return {node: nodes.count(node) for node in nodes}
