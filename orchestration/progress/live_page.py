"""The report of a study while it runs: when it is rewritten, and the process that does it.

A page takes some tenths of a second of one core. It must not disturb what is timed, so it takes at most a hundredth of
the study's time, in a process of low priority; and where trials have the machine to themselves, it is written between
two of them, while the next one waits.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from scalestudy.orchestration.groups.events import Ended, Running, TrialEvent
from scalestudy.orchestration.progress.progress import StudyProgress, finite_metric

logger = logging.getLogger(__name__)

EVERY_SECONDS = 30.0
SHARE = 0.01
"""Of the study's time, for all of its pages."""
FIRST_SECONDS = 0.3
"""What the first page is taken to cost, since nobody knows yet."""
LONGEST_WAIT_SECONDS = 5.0
"""A page that takes longer is stopped while the next trial runs, and goes on after it."""
PROGRAM = """
import ctypes, os, sys
os.nice(19)
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
from scalestudy.experiments.report.live import main
main()
"""
"""Gives way to everything else, before it loads its libraries; ends with its parent, even where it is stopped."""


@dataclass(frozen=True, kw_only=True)
class Pages:
    """The pages of a study so far. last: seconds from its start to the last one. cost: seconds that all took."""

    last: float = float("-inf")
    cost: float = 0.0
    count: int = 0

    def and_one(self, now: float, took: float) -> Pages:
        """With another page, which took so many seconds."""
        return Pages(last=now, cost=self.cost + took, count=self.count + 1)


def is_due(pages: Pages, now: float, *, alone: bool, running: int, ended: bool) -> bool:
    """Whether to write a page now. Pure.

    Args:
        pages: those so far.
        now: seconds since the study's start.
        alone: whether trials have a machine to themselves, this one among them.
        running: trials that run on this machine now.
        ended: whether a trial has just ended.
    """
    if alone and (running or not ended):
        return False
    expected = pages.cost / pages.count if pages.count else FIRST_SECONDS
    return now - pages.last >= EVERY_SECONDS and pages.cost + expected <= SHARE * now


class LivePage:
    """Rewrites a study's report while it runs. Whatever fails here is logged, and the study goes on."""

    def __init__(self, folder: Path, progress: StudyProgress) -> None:
        """folder: the study's. Starts the process, whose libraries then load beside the start of the first workers."""
        self._progress = progress
        self._pages, self._start = Pages(), time.monotonic()
        self._asked = self._held = False
        self._nodes: dict[str, set[str]] = {}  # of the workers of each trial that runs
        self._process: subprocess.Popen[str] | None = None
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
                start_new_session=True,  # a Ctrl-C is for the study alone
            )
        except OSError as error:
            logger.warning("no report while the study runs: %s", error)

    def event(self, trial_id: str, event: TrialEvent, *, kept_free: Set[str]) -> None:
        """A trial's event, after the progress has taken it. Waits for a page that must not be written beside a trial.

        kept_free: ids of nodes on this machine, where trials have a machine to themselves; else empty.
        """
        if isinstance(event, Running):
            self._nodes[trial_id] = {worker.node for worker in event.world.workers}
        elif isinstance(event, Ended):
            self._nodes.pop(trial_id, None)
        try:
            self._consider(sum(bool(nodes & kept_free) for nodes in self._nodes.values()), event, alone=bool(kept_free))
        except (OSError, ValueError) as error:
            self._give_up(error)

    def _consider(self, running: int, event: TrialEvent, *, alone: bool) -> None:
        if alone and running:
            self._hold(held=True)
            return
        self._hold(held=False)
        self._collect(LONGEST_WAIT_SECONDS if alone else 0.0)
        now, ended = time.monotonic() - self._start, isinstance(event, Ended)
        if not self._asked and is_due(self._pages, now, alone=alone, running=running, ended=ended):
            self._ask()
            if alone:
                self._collect(LONGEST_WAIT_SECONDS)

    def close(self) -> None:
        """Ends the process. The study's own report follows."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    with suppress(OSError):  # what is left in a pipe that nobody reads
                        stream.close()
            self._process = None

    def _ask(self) -> None:
        if self._process is None or self._process.stdin is None:
            return
        progress = self._progress
        running = [
            {
                "name": each.trial.name,
                "cell": each.trial.cell,
                "period": each.trial.period_word,
                "last": each.trial.evaluations,
                "epochs": [[epoch.epoch, epoch.train_seconds, finite_metric(epoch)] for epoch in list(each.epochs)],
            }
            for each in list(progress.running.values())
        ]
        told = {
            "ended": len(progress.statuses),
            "planned": progress.total,
            "progress": progress.line(),
            "running": running,
        }
        self._process.stdin.write(json.dumps(told) + "\n")
        self._process.stdin.flush()
        self._asked = True

    def _hold(self, *, held: bool) -> None:
        """Stops the process for as long as a trial runs that has this machine to itself."""
        if self._process is not None and held != self._held:
            self._process.send_signal(signal.SIGSTOP if held else signal.SIGCONT)
            self._held = held

    def _collect(self, seconds: float) -> None:
        """Takes the process's answer, waiting for it so long."""
        if not self._asked or self._process is None or self._process.stdout is None:
            return
        ready, _, _ = select.select([self._process.stdout], [], [], seconds)
        if not ready:
            return
        took, _, problem = self._process.stdout.readline().strip().partition(" ")
        if not took:
            self._give_up("its process ended")
            return
        if problem:
            logger.warning("no report while the study runs, this time: %s", problem)
        self._pages = self._pages.and_one(time.monotonic() - self._start, float(took))
        self._asked = False

    def _give_up(self, reason: object) -> None:
        logger.warning("no more reports while the study runs: %s", reason)
        self.close()
        self._asked = False
