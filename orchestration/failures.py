"""Stage 4, worker groups: what the reports of a broken attempt mean, as pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from training.exceptions import is_lost_peer, is_out_of_memory

ReportKind = Literal["exception", "out_of_memory", "collective"]
Cause = Literal["worker_lost", "stalled", "time_limit", "reported"]

_MESSAGE_LIMIT = 2_000

CAUSE_TEXT: Mapping[str, str] = {
    "worker_lost": "a worker process died or its node was lost",
    "stalled": "no step was finished for limits.stalled_seconds",
    "time_limit": "the trial ran longer than limits.trial_minutes",
}


@dataclass(frozen=True, kw_only=True)
class RankReport:
    """What one rank said before it gave up."""

    rank: int
    kind: ReportKind
    message: str


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What becomes of a broken attempt: another try, or the trial's final status with its error."""

    status: Literal["retry", "failed", "out_of_memory"]
    error: dict[str, Any]


def classify(error: BaseException) -> ReportKind:
    """Sorts an exception met in a trial: the user's own, out of memory, or a collective that lost a peer."""
    if is_out_of_memory(error):
        return "out_of_memory"
    if is_lost_peer(error):
        return "collective"
    return "exception"


def describe(error: BaseException) -> str:
    """The exception as one short text: type and message."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return text if len(text) <= _MESSAGE_LIMIT else text[: _MESSAGE_LIMIT - 1] + "…"


def judge(reports: Mapping[int, RankReport], *, cause: Cause, attempt: int, failures_per_trial: int) -> Verdict:
    """Decides a broken attempt.

    Args:
        reports: what the ranks said, by rank; a rank that was killed said nothing.
        cause: how the end was noticed.
        attempt: number of this attempt, from 1.
        failures_per_trial: how many lost attempts a trial may have before it is failed.

    Returns:
        Out of memory and the user's exceptions are final at once, wherever else the attempt broke because of them;
        a time limit is final; a lost worker or a stall is tried again within the budget.
    """
    for kind in ("out_of_memory", "exception"):
        named = [report for report in reports.values() if report.kind == kind]
        if named:
            return Verdict(status="failed" if kind == "exception" else "out_of_memory", error=_grouped(kind, named))
    error = {"kind": _lost_kind(cause), "message": _lost_message(reports, cause, attempt), "rank": None}
    retry = cause != "time_limit" and attempt <= failures_per_trial
    return Verdict(status="retry" if retry else "failed", error=error)


def _grouped(kind: str, reports: list[RankReport]) -> dict[str, Any]:
    """One error for several ranks: the first rank's text, with every rank that said the same."""
    first = min(reports, key=lambda report: report.rank)
    same = sorted(report.rank for report in reports if report.message == first.message)
    message = first.message if len(same) == 1 else f"{first.message} (ranks {', '.join(map(str, same))})"
    return {"kind": kind, "message": message, "rank": first.rank}


def _lost_kind(cause: Cause) -> str:
    return "worker_lost" if cause == "reported" else cause


def _lost_message(reports: Mapping[int, RankReport], cause: Cause, attempt: int) -> str:
    said = "; ".join(f"rank {rank}: {reports[rank].message}" for rank in sorted(reports))
    text = f"{CAUSE_TEXT[_lost_kind(cause)]} (attempt {attempt})"
    return f"{text}; {said}" if said else text
