"""The display of a running study: a live table on a terminal, else a line an event; and `log.jsonl`.

`log.jsonl` in the study's folder logs what the driver did and met, a line of JSON each.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from scalestudy.experiments.analysis.measures.parts import NOTHING
from scalestudy.experiments.analysis.measures.units import seconds_text
from scalestudy.orchestration.groups.events import WITH_MODEL, Ended, Retried, Running, TrialEvent
from scalestudy.orchestration.groups.failures import OUTSIDE, USED_WORKERS
from scalestudy.orchestration.progress.progress import StudyProgress, clock, finite_metric, sparkline
from scalestudy.training.records import utc_text

logger = logging.getLogger(__name__)


class View(Protocol):
    """The receiver of a study's progress."""

    def stage(self, text: str) -> None:
        """Show that the study has reached a stage: connecting, starting, writing the report."""

    def event(self, trial_id: str, event: TrialEvent) -> None:
        """Show a trial's event, after the progress has taken it."""

    def close(self) -> None:
        """Show nothing more."""


class Silent:
    """A view that shows nothing: for --json and the Python interface."""

    def stage(self, text: str) -> None:
        """See View."""

    def event(self, trial_id: str, event: TrialEvent) -> None:
        """See View."""

    def close(self) -> None:
        """See View."""


class Lines:
    """A view with one line an event: for a job's log, a pipe, a dumb terminal."""

    def __init__(self, progress: StudyProgress, screen: TextIO) -> None:
        self._progress = progress
        self._screen = screen

    def stage(self, text: str) -> None:
        """Print a line with the time since the start."""
        self._print(text)

    def event(self, trial_id: str, event: TrialEvent) -> None:
        """Print a trial's starts, retries and end; evaluations are in its last line."""
        if text := event_text(event, self._progress):
            self._print(f"{self._progress.trials[trial_id].name}: {text}")

    def close(self) -> None:
        """Do nothing: every line is out already."""

    def _print(self, text: str) -> None:
        print(f"[{clock(self._progress.elapsed_seconds):>6}] {text}", file=self._screen, flush=True)


class LiveTable:
    """The running trials, redrawn four times a second."""

    def __init__(self, progress: StudyProgress, console: Console, waiting: Callable[[], Mapping[str, float]]) -> None:
        """Show the table. waiting: returns what is being started, and for how many seconds."""
        self._progress = progress
        self._waiting = waiting
        self._stage = "starting"
        self._live = Live(
            get_renderable=self._draw,
            console=console,
            refresh_per_second=4,
            transient=True,
            redirect_stdout=False,  # what libraries print belongs in driver.log, not above the table
            redirect_stderr=False,
        )
        self._live.start()

    def stage(self, text: str) -> None:
        """Print a line above the table, which stays."""
        self._stage = text
        self._live.console.print(Text(text), soft_wrap=True)

    def event(self, trial_id: str, event: TrialEvent) -> None:
        """Print retries, and trials that did not finish, above the table."""
        if isinstance(event, Retried) or (isinstance(event, Ended) and event.status not in WITH_MODEL):
            name = self._progress.trials[trial_id].name
            self._live.console.print(Text(f"{name}: {event_text(event, self._progress)}", style="yellow"))

    def close(self) -> None:
        """Take the table off the screen."""
        self._live.stop()

    def _draw(self) -> RenderableType:
        progress, metric = self._progress, self._progress.metric
        waits = [f"{what} ({seconds:.0f} s)" for what, seconds in self._waiting().items()]
        told = progress.statuses or progress.stopping or waits
        foot = Text(" · ".join([progress.line(), *waits]) if told else self._stage)
        all_running = list(progress.running.values())
        if not all_running:
            return foot
        counts_tokens = any(running.tokens_per_second for running in all_running)
        unit = "tokens/s" if counts_tokens else "samples/s"
        header = ("trial", all_running[0].trial.period_word, metric.title, "", unit)
        table = Table(*header, box=None, header_style="bold", pad_edge=False)
        for running in all_running:
            values = running.values
            rate = running.tokens_per_second if counts_tokens else running.samples_per_second
            last = values[-1] if values else None
            table.add_row(
                running.trial.name,
                f"{len(values)}/{running.trial.evaluations}",
                sparkline(values, share=metric.share),
                metric.text(last, 4) if last is not None else NOTHING if values else "",
                "cut off" if progress.stopping else "" if rate is None else f"{rate:,.0f}",
            )
        return Group(table, foot)


class Logged:
    """A view that also logs what it shows, each event with its trial's id."""

    def __init__(self, view: View, progress: StudyProgress) -> None:
        self._view, self._progress = view, progress

    def stage(self, text: str) -> None:
        """See View."""
        logger.info("%s", text)
        self._view.stage(text)

    def event(self, trial_id: str, event: TrialEvent) -> None:
        """See View."""
        if text := event_text(event, self._progress):
            line = f"{self._progress.trials[trial_id].name}: {text}"
            logger.info("%s", line, extra={"trial_id": trial_id, "event": EVENT_NAMES[type(event)]})
        self._view.event(trial_id, event)

    def close(self) -> None:
        """See View."""
        self._view.close()


EVENT_NAMES: Mapping[type, str] = {Running: "running", Retried: "retry", Ended: "ended"}
"""Events that get a line, by their names in `log.jsonl`."""


def event_text(event: TrialEvent, progress: StudyProgress) -> str | None:
    """Return an event in words; None for one that gets no line."""
    match event:
        case Running():
            return "training" if event.attempt == 1 else f"training, attempt {event.attempt}"
        case Retried() if event.error.kind == USED_WORKERS:
            return f"attempt {event.attempt} goes to fresh workers"
        case Retried():
            put_off = ", and others come first" if event.error.kind in OUTSIDE else ""
            return f"attempt {event.attempt} lost{put_off}: {event.error.message}"
        case Ended():
            value = finite_metric(event.epochs[-1]) if event.epochs else None
            last = "" if value is None else f", {progress.metric.title} {progress.metric.text(value, 4)}"
            error = f": {event.error.message}" if event.error else ""
            done = f"({progress.count})"
            trained = f"{event.status.replace('_', ' ')} after {seconds_text(event.train_seconds)} of training"
            return f"{trained}{last}{error} {done}"
    return None


@contextmanager
def study_log(file: Path, study_id: str) -> Iterator[None]:
    """Make everything that this package logs a line of `log.jsonl` while it is open."""
    handler = _LogFile(file, study_id)
    ours = logging.getLogger("scalestudy")
    level = ours.level
    ours.setLevel(logging.INFO)
    ours.addHandler(handler)
    try:
        yield
    finally:
        ours.removeHandler(handler)
        ours.setLevel(level)


class _LogFile(logging.Handler):
    def __init__(self, file: Path, study_id: str) -> None:
        super().__init__(logging.INFO)
        self._file = file
        self.setFormatter(JsonLines(study_id))

    def emit(self, record: logging.LogRecord) -> None:
        """Append a line. A line that the storage refuses is lost; a study does not end because its log fails."""
        with suppress(OSError), self._file.open("a", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(self.format(record) + "\n")


class JsonLines(logging.Formatter):
    """The format of a log record as a line of `log.jsonl`."""

    def __init__(self, study_id: str) -> None:
        super().__init__()
        self._study_id = study_id

    def format(self, record: logging.LogRecord) -> str:
        """Return one JSON object: time, level, logger, message, and a traceback if there is one."""
        known = {name: getattr(record, name, None) for name in ("trial_id", "event")}
        line: dict[str, Any] = {
            "at": utc_text(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "study_id": self._study_id,
            **{name: value for name, value in known.items() if value},
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
