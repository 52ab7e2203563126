"""A study as its journal shows it so far: for `status`, and for the page that `open --watch` rewrites.

The study's process does nothing for it. The page is below `$SCALESTUDY_HOME/live`, since the study's folder belongs to
the process that runs the study.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.orchestration.base.errors import UnreachableError
from scalestudy.orchestration.base.places import writable_home
from scalestudy.orchestration.groups.events import Reopened, StudyBegan, StudyEvent, Suggested
from scalestudy.orchestration.progress.progress import StudyProgress, finite_metric
from scalestudy.orchestration.storage.lock import Holder, lock_of
from scalestudy.orchestration.storage.mirror import answering
from scalestudy.orchestration.study.folders import open_folder, readable, spec_of
from scalestudy.orchestration.tracking.entries import StudyJournal
from scalestudy.orchestration.tracking.recorder import History
from scalestudy.training.whole_file import write_whole

EVERY_SECONDS = 10.0
"""Time between two looks at the journal."""
SILENT_SECONDS = 60.0
"""After so long the page is rewritten without news too, for its times."""
SHARE = 0.05
"""Largest share of the time that goes into writing pages."""
MOVED = """<!DOCTYPE html>
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url={}">
<title>The study has ended</title>
"""
"""The live page after the study's end: a link to its report."""


class WatchedStudy:
    """A study as its journal shows it so far; watching does not disturb it."""

    def __init__(self, address: str | Path) -> None:
        """Open the study at a folder or URI. Raises as `open_folder`, and RequestError for a broken file."""
        self._address = address
        self.folder = open_folder(address)
        with readable(self.folder):
            spec, self._plan = spec_of(self.folder), self.folder.read_plan()
        self._metric = StudyMetric.of(spec.workload)
        self.page = writable_home() / "live" / f"{self.folder.study_id}.html"  # the live page
        self.journal = StudyJournal(self.folder)
        self.history = History()
        self.progress: StudyProgress
        self._number = 0  # of the last entry; 0: none was read
        self._read()

    def holder(self) -> Holder | None:
        """Return the process that runs it now; None: none does. Raises UnreachableError where that can't be read."""
        with answering(self.folder.address, "read"):
            holder = lock_of(self.folder).read_holder()
        return holder if holder and holder.is_alive else None

    @property
    def ended(self) -> bool:
        """Whether its last run came to its end and wrote a report."""
        report = self.folder.report_file
        has_report = report.exists() and report.stat().st_mtime >= self.history.began  # not of an earlier run
        return self.history.state in ("finished", "stopped") and has_report

    def look(self) -> bool:
        """Read what is new in the journal; return whether there is anything. Raises as `open_folder`."""
        if self.folder.mirror:
            open_folder(self._address)  # brings the copy up to date
        return self._read()

    def _read(self) -> bool:
        with readable(self.folder):
            entries = list(self.journal.entries(after=self._number))
        begins = [number for number, entry in enumerate(entries, 1) if isinstance(entry.event, StudyBegan | Reopened)]
        before_run = begins[-1] if begins else 0
        for entry in entries[:before_run]:
            self.history.take(entry)
        if before_run or not self._number:
            self.progress = self._progress_of_past()
        for entry in entries[before_run:]:
            self.history.take(entry)
            if isinstance(entry.event, Suggested):
                self.progress.trials[entry.trial_id] = entry.event.trial
            if not isinstance(entry.event, StudyEvent) and entry.trial_id in self.progress.trials:
                self.progress.take(entry.trial_id, entry.event)
        self._number = entries[-1].number if entries else self._number
        return bool(entries)

    def _progress_of_past(self) -> StudyProgress:
        """Return the state in which a run begins, as the process that runs it folds it: what has trained rests."""
        trials = self._plan.with_trials(self.history.suggested.values()).by_id()
        progress = StudyProgress(
            trials, self._metric, expected=self._plan.expected_trials, grows=self._plan.is_adaptive
        )
        progress.catch_up(self.history.past)
        return progress

    def write_page(self) -> None:
        """Write the live page. Raises RequestError for a broken file, OSError where the page can't be written."""
        from scalestudy.experiments.report.analysed import AnalysedStudy  # loads SciPy
        from scalestudy.experiments.report.live_page import TrialNow, live_page

        progress, history = self.progress, self.history
        progress.started = time.monotonic() - (time.time() - history.began if history.began else 0.0)
        suggested = [trial for trial in history.suggested.values() if trial.kind == "training"]
        running = [
            TrialNow(
                name=each.trial.name,
                cell=each.trial.cell,
                attempt=each.attempt,
                period=each.trial.period_word,
                last=each.trial.evaluations,
                evaluations=[(epoch.epoch, epoch.train_seconds, finite_metric(epoch)) for epoch in each.epochs],
            )
            for each in progress.running.values()
        ]
        with readable(self.folder):
            study = AnalysedStudy.of(
                self.folder,
                fresh_workers=history.fresh_workers,
                plan=self._plan.with_trials(suggested),
                trials=list(history.ended.values()),
            )
        text = live_page(study, running, ended=len(progress.statuses), planned=progress.total, progress=progress.line())
        self._write(text)

    def point_to_report(self) -> None:
        """Make the live page lead to the report."""
        self._write(MOVED.format(escape(self.folder.report_file.absolute().as_uri())))

    def _write(self, text: str) -> None:
        self.page.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.page, text.encode("utf-8"))


def watch(study: WatchedStudy, show: Callable[[Path], Any], sleep: Callable[[float], None] = time.sleep) -> None:
    """Rewrite a running study's live page until no process runs the study.

    show: called with the page once it is there. The page leads to the report at the end, if there is one; it stays as
    it is when the process that runs the study dies. A bucket out of reach is asked again, since the study may go on.
    Raises as `WatchedStudy`.
    """
    written, cost, news, shown, lost = float("-inf"), 0.0, True, False, False
    while True:
        try:
            runs = study.holder() is not None  # asked first, so that the last look reads all that it wrote at its end
            news = study.look() or news
        except UnreachableError as error:
            if not lost:
                print(f"{error.problem}; asked again every {EVERY_SECONDS:.0f} s", file=sys.stderr)
            lost = True
            sleep(EVERY_SECONDS)
            continue
        lost = False
        now = time.monotonic()
        if not runs and study.ended:
            study.point_to_report()
        elif not runs or ((news or now - written >= SILENT_SECONDS) and now - written >= cost / SHARE):
            study.write_page()
            written, news = time.monotonic(), False
            cost = written - now
        if not shown:
            show(study.page)
            shown = True
        if not runs:
            return
        sleep(EVERY_SECONDS)
