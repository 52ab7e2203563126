"""What broke an attempt, and what follows from it: decisions as pure functions, and the kernel's count of kills."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scalestudy.orchestration.base.environment import without_secrets
from scalestudy.orchestration.base.errors import UnreachableError
from scalestudy.orchestration.cluster.nodes import Node, largest_group, types_words
from scalestudy.orchestration.groups.events import Failure, FaultKind, KillCount, TrialError
from scalestudy.training.exceptions import (
    StoreError,
    is_device_lost,
    is_lost_peer,
    is_out_of_memory,
    readable,
    what_happened,
)

Cause = Literal[
    "worker_lost",
    "stalled",
    "controller_lost",
    "node_lost",
    "preempted",
    "used_workers",
    "tune_trial",
    "time_limit",
    "reported",
]
"""How the end of an attempt was noticed."""
ReportKind = FaultKind | Literal["left"]

INTERRUPTED = "interrupted"
"""Kind of an attempt that ended because the study was stopped or killed."""
OUTSIDE = {"no_room", "node_lost", "group_start", "storage"}
"""Kinds of causes outside the trial that may last. Such a trial is put off: it goes to the back of the queue."""
USED_WORKERS = "used_workers"
"""Kind of an attempt that its workers gave back untrained, since earlier trials have left something in them."""
UNCOUNTED = {INTERRUPTED, "preempted", USED_WORKERS, *OUTSIDE}
"""Kinds that no budget counts: the trial is not to blame, and what it has done is kept."""

CAUSE_TEXT: Mapping[str, str] = {
    "worker_lost": "a worker process died",
    "stalled": "no progress for limits.stalled_seconds",
    "controller_lost": "the Ray Train controller of the trial's workers died",
    "node_lost": "a node of the cluster was lost",
    "preempted": "a node is about to be removed, and the trial's workers have left it",
    "used_workers": "earlier trials have left something in the workers",
    "tune_trial": "the Tune process that follows the trial died",
    "storage": "the storage of the checkpoints failed",
    "device_lost": "the GPU of a worker failed",
    "time_limit": "the trial ran longer than limits.trial_minutes",
}
MESSAGE_LIMIT = 2_000
LONGEST_TRACEBACK = 20_000
"""Characters of a traceback that the journal gets: its end, which names the exception."""


@dataclass(frozen=True, kw_only=True)
class RankReport:
    """What one rank reported before it gave up."""

    rank: int
    kind: ReportKind
    message: str
    log: str = ""
    """The file with the rest of the report. "": there is none."""
    traceback: str = ""


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Ray Train's report of dead workers."""

    incarnation: str
    cause: Cause
    out_of_memory: Mapping[int, str]  # by rank, those that were killed for memory, in words


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What becomes of a broken attempt: another try, or the trial's final status."""

    status: Literal["retry", "failed", "out_of_memory"]
    error: TrialError
    failure: Failure | None = None
    """The attempt as a lost one; None: it was not lost, but ended the trial by what it did."""


def classify(error: BaseException) -> FaultKind:
    """Return the kind of fault that an exception in a trial is."""
    if is_out_of_memory(error):
        return "out_of_memory"
    if isinstance(error, StoreError | UnreachableError):  # the latter is what `open_byte_store` raises
        return "storage"
    if is_device_lost(error):  # before the next: NCCL reports a lost GPU of this rank too
        return "device_lost"
    if is_lost_peer(error):
        return "collective"
    return "exception"


def describe(error: BaseException) -> str:
    """Return the exception as one short line: type and message, without secrets; a traceback has the rest."""
    said = what_happened(str(readable(error)))
    text = without_secrets(f"{type(error).__name__}: {said}" if said else type(error).__name__)
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")  # bytes that were no text can't be written down
    return text if len(text) <= MESSAGE_LIMIT else text[: MESSAGE_LIMIT - 1] + "…"


def traceback_of(error: BaseException) -> str:
    """Return an exception's traceback without secrets, as text that can be written to a file."""
    text = without_secrets("".join(traceback.format_exception(error)))
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def judge(
    reports: Mapping[int, RankReport],
    *,
    cause: Cause,
    attempt: int,
    earlier: Sequence[Failure],
    failures_per_trial: int,
    logs: str = "",
    told: str = "",
) -> Verdict:
    """Decide what follows from a broken attempt.

    Out of memory, an exception of the user's code and a time limit are final: the other ranks then broke because of it.
    A lost attempt is tried again within its cause's budget. After a cause that no budget counts, another attempt always
    follows.

    Args:
        reports: what the ranks said, by rank; a rank that was killed said nothing.
        cause: how the end was noticed.
        attempt: number of this attempt, from 1.
        earlier: the trial's lost attempts before this one.
        failures_per_trial: how many attempts a trial may lose to each cause.
        logs: the folder of the workers' output, where a user can find what no rank could report; "": unknown.
        told: how the end was noticed, in more words than the cause has.
    """
    for kind in ("out_of_memory", "exception"):
        named = sorted((report for report in reports.values() if report.kind == kind), key=lambda report: report.rank)
        if named:
            first = named[0]
            same = [str(report.rank) for report in named if report.message == first.message]
            message = first.message if len(same) == 1 else f"{first.message} (ranks {', '.join(same)})"
            told = with_logs(message, first.log or logs)
            error = TrialError(kind=kind, message=told, rank=first.rank, traceback=first.traceback)
            return Verdict(status="failed" if kind == "exception" else "out_of_memory", error=error)
    reason: str = "worker_lost" if cause == "reported" else cause
    for kind in ("device_lost", "storage"):
        if any(report.kind == kind for report in reports.values()):
            reason = kind
    said = "; ".join(f"rank {rank}: {reports[rank].message}" for rank in sorted(reports))
    message = told or CAUSE_TEXT[reason]
    if reason != USED_WORKERS:  # which says it all
        message = with_logs(f"{message} (attempt {attempt})" + (f"; {said}" if said else ""), logs)
    error = TrialError(kind=reason, message=message)
    if reason == "time_limit":
        return Verdict(status="failed", error=error)
    failure = Failure(attempt=attempt, kind=reason, message=message)
    retry = reason in UNCOUNTED or sum(lost.kind == reason for lost in earlier) < failures_per_trial
    return Verdict(status="retry" if retry else "failed", error=error, failure=failure)


def over_budget(failures: Sequence[Failure], failures_per_trial: int) -> Failure | None:
    """Return the last failure of a cause that took more attempts of a trial than allowed; None: no cause did."""
    counts: dict[str, int] = {}
    for failure in failures:
        counts[failure.kind] = counts.get(failure.kind, 0) + (failure.kind not in UNCOUNTED)
    return next((each for each in reversed(failures) if counts[each.kind] > failures_per_trial), None)


def no_room(nodes: Sequence[Node], needed: int) -> str:
    """Return the message for a trial whose workers the cluster's nodes can't hold any more."""
    room = f"the cluster has room for {largest_group(nodes)} workers{types_words(nodes)}"
    return f"nodes were lost or are draining: {room}, and the trial needs {needed}; add nodes, or remove this num_gpus"


def with_logs(message: str, logs: str) -> str:
    """Return a message that ends with the place of the logs."""
    return f"{message}; logs: {logs}" if logs else message


# --- the kernel's kills -------------------------------------------------------------------------------------------
# A killed process says nothing. But Linux counts the kills of each control group, and lists the count in a file there.
CGROUPS = Path("/sys/fs/cgroup")
WHOLE_MACHINE = Path("/proc/vmstat")
ANSWER_SECONDS = 20.0
KERNEL_KILL = "the kernel killed the worker because memory ran out (its control group counted the kill)"


def kills_so_far(node: str) -> KillCount | None:
    """Return the count of this process's control group; None: the system keeps none. node: where the process runs."""
    for file in count_files(Path("/proc/self/cgroup")):
        if (kills := kills_in(file)) is not None:
            return KillCount(node=node, file=str(file), kills=kills)
    return None


def count_files(memberships: Path) -> list[Path]:
    """Return where the count may be, the closest first: of version 2, of version 1, of the container, of the machine.

    memberships: lines `number:controllers:path`.
    """
    try:
        lines = [line.split(":", 2) for line in memberships.read_text("utf-8").splitlines()]
    except OSError:
        return []
    files = [CGROUPS / path.strip("/") / "memory.events" for _, controllers, path in lines if not controllers]
    files += [
        CGROUPS / "memory" / path.strip("/") / "memory.oom_control"
        for _, controllers, path in lines
        if "memory" in controllers.split(",")
    ]
    return [*files, CGROUPS / "memory.events", CGROUPS / "memory" / "memory.oom_control", WHOLE_MACHINE]


def kills_in(file: Path) -> int | None:
    """Return the count in one of the system's files, which have a line `oom_kill 3`; None: it can't be read."""
    try:
        facts = dict(line.split(maxsplit=1) for line in file.read_text("utf-8").splitlines() if " " in line)
        return int(facts["oom_kill"])
    except (OSError, KeyError, ValueError):
        return None


def killed_by_kernel(counts: Mapping[int, KillCount], here: str) -> dict[int, str]:
    """Return the dead workers whose count has risen since, by rank, with the message.

    counts: by rank, as `kills_so_far` gave them when the trial began. here: this process's node. A task asks another
    node; one that does not answer gives no evidence.
    """
    return {rank: KERNEL_KILL for rank, count in counts.items() if (_kills_now(count, here) or 0) > count.kills}


def _kills_now(count: KillCount, here: str) -> int | None:
    if count.node == here:
        return kills_in(Path(count.file))
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(count.node, soft=False)
    ask = ray.remote(kills_in).options(num_cpus=0, max_retries=0, scheduling_strategy=there)
    try:
        kills: int | None = ray.get(ask.remote(Path(count.file)), timeout=ANSWER_SECONDS)
    except ray.exceptions.RayError:
        return None
    return kills
