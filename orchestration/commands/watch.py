"""`open --watch`: the page of a running study, which the watching process rewrites from the journal.

The study's process does nothing for it. The page is below `$SCALESTUDY_HOME/live`, since the study's folder belongs to
the process that runs the study.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.report.analysed import AnalysedStudy
from scalestudy.experiments.report.live_page import TrialNow, live_page
from scalestudy.orchestration.base.places import home
from scalestudy.orchestration.groups.events import Reopened, StudyBegan, StudyEvent, Suggested
from scalestudy.orchestration.progress.progress import StudyProgress, finite_metric
from scalestudy.orchestration.storage.lock import lock_of
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
            self._spec, self._plan = spec_of(self.folder), self.folder.read_plan()
        self.page = home() / "live" / f"{self.folder.study_id}.html"  # the live page
        self.history = History()
        self.progress = StudyProgress(
            self._plan.by_id(), StudyMetric.of(self._spec.workload), expected=self._plan.expected_trials
        )
        self._number = 0  # of the last entry
        self._read()

    @property
    def runs(self) -> bool:
        """Whether a process runs it now."""
        holder = lock_of(self.folder).holder()
        return holder is not None and holder.is_alive

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
        before = self._number
        for entry in StudyJournal(self.folder).entries(after=before):
            self._number = entry.number
            self.history.take(entry)
            if isinstance(entry.event, StudyBegan):
                self.progress.catch_up(())  # a run begins: what trained in the previous run rests
            if isinstance(entry.event, StudyEvent):
                continue
            if isinstance(entry.event, Suggested):
                self.progress.trials[entry.trial_id] = entry.event.trial
            if entry.trial_id in self.progress.trials:
                self.progress.take(entry.trial_id, entry.event)
            if isinstance(entry.event, Reopened):  # comes right after the beginning of a run
                self.progress.ended_before = len(self.progress.statuses)
        return self._number > before

    def write_page(self) -> None:
        """Write the live page. Raises RequestError for a broken file, OSError where the page can't be written."""
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
                self.folder, plan=self._plan.with_trials(suggested), trials=list(history.ended.values())
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
    it is when the process that runs the study dies. Raises as `WatchedStudy`.
    """
    written, cost, news, shown = float("-inf"), 0.0, True, False
    while True:
        runs = study.runs  # asked first, so that the last look reads all that it wrote before its end
        news = study.look() or news
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
