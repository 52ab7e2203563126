"""Stages 3 to 9: how a run of a study ends – by itself or by a signal – and what it comes to."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.study_folder import StudyFolder
from orchestration.errors import ExitCode


@dataclass(frozen=True, kw_only=True)
class StudyResult:
    """How a run of a study ended.

    Attributes:
        folder: the study's folder, with `report.html`, `summary.json` and `trials.jsonl`; the copy on this machine
            where the study is kept under a URI.
        address: what commands take for the study: the folder, or the URI.
        summary: `summary.json`; None where the run was ended before it could be written.
        exit_code: the command's exit status.
        tracking_uri: where MLflow has the study, without a password.
        broken: why the sweep broke off before its end, or None.
        unsent: operations that MLflow did not get; `scalestudy sync` sends them.
        unsent_reason: why it did not, in one line; None where it got all.
        cold_starts: seconds from a group's order to its workers being ready, by group.
    """

    folder: Path
    address: str
    summary: dict[str, Any] | None
    exit_code: ExitCode
    tracking_uri: str
    broken: str | None
    unsent: int
    cold_starts: dict[str, float]
    unsent_reason: str | None = None

    @property
    def report(self) -> Path | None:
        """`report.html`; None where the run was ended before it could be written."""
        return None if self.summary is None else StudyFolder(self.folder).report_file


def exit_code(summary: dict[str, Any] | None, caught: Sequence[int], *, lost: bool) -> ExitCode:
    """The exit status that a study's end means: signals first, then a lost cluster or store, then failed trials."""
    if caught:
        return _status_of(caught[0])
    if lost or summary is None:
        return ExitCode.UNREACHABLE
    return ExitCode.SOME_FAILED if summary["trials"]["failed"] else ExitCode.DONE


def _status_of(signal_number: int) -> ExitCode:
    return ExitCode.INTERRUPTED if signal_number == signal.SIGINT else ExitCode.TERMINATED


@contextmanager
def stop_signals(stop: Callable[[], None]) -> Iterator[list[int]]:
    """Ctrl-C or SIGTERM once stops the study cleanly; twice gives up at once, with the exit status of the first.

    Yields the list of those caught.
    """
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return

    def handle(number: int, _frame: Any) -> None:
        if caught:
            raise SystemExit(int(_status_of(caught[0])))
        caught.append(number)
        stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            with suppress(TypeError):  # a handler that was not set from Python
                signal.signal(number, handler)
