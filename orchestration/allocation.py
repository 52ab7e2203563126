"""Stage 4, worker groups: carries out what `leases` decides — grants, starts and evictions of groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestration.books import Assignment, Group, Lease
from orchestration.leases import Action, Grant, Request, Start, ahead, decide
from orchestration.outcomes import worker_flags

if TYPE_CHECKING:
    from orchestration.ledger import Ledger


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
