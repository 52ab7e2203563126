"""How that state is shown: table, lines, JSON log."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.orchestration.progress.progress import Board, RunningTrial, clock, sparkline


class View(Protocol):
    """What the study tells whoever watches it."""

    def stage(self, text: str) -> None:
        """The study has come to a stage: connecting, starting, writing the report."""

    def event(self, trial_id: str, event: dict[str, Any]) -> None:
        """A trial's event, after the board has taken it."""

    def close(self) -> None:
        """Nothing more is shown."""


class Silent:
    """For --json and the Python interface."""

    def stage(self, text: str) -> None:
        """Shows nothing."""

    def event(self, trial_id: str, event: dict[str, Any]) -> None:
        """Shows nothing."""

    def close(self) -> None:
        """Shows nothing."""


class Lines:
    """One line an event: for a job's log, a pipe, a dumb terminal."""

    def __init__(self, board: Board, screen: TextIO) -> None:
        self._board = board
        self._screen = screen

    def stage(self, text: str) -> None:
        """A line with the time since the start."""
        self._print(text)

    def event(self, trial_id: str, event: dict[str, Any]) -> None:
        """Trials' starts, retries and ends; epochs are in the trial's last line."""
        name = self._board.trials[trial_id].run_name
        text = event_text(event, self._board)
        if text:
            self._print(f"{name}: {text}")

    def close(self) -> None:
        """Every line is out already."""

    def _print(self, text: str) -> None:
        print(f"[{clock(self._board.elapsed_seconds):>6}] {text}", file=self._screen, flush=True)


def event_text(event: dict[str, Any], board: Board) -> str | None:
    """An event in words; None for one that gets no line."""
    done = f"({len(board.statuses)}/{board.total})"
    if event["type"] == "running":
        return "training" if event["attempt"] == 1 else f"training, attempt {event['attempt']}"
    if event["type"] == "retry":
        return f"attempt {event['attempt']} lost: {event['error']['message']}"
    if event["type"] == "ended":
        error = f": {event['error']['message']}" if event["error"] else ""
        last = _last_value(event, board.metric)
        return f"{event['status'].replace('_', ' ')} in {event['wall_seconds']:.1f} s{last}{error} {done}"
    return None


def _last_value(event: dict[str, Any], metric: StudyMetric) -> str:
    value = event["epochs"][-1].get(metric.key) if event["epochs"] else None
    return "" if value is None else f", {metric.title} {metric.text(value, 4)}"


class LiveTable:
    """The running trials, redrawn four times a second."""

    def __init__(self, board: Board, console: Console, waiting: Callable[[], Mapping[str, float]]) -> None:
        """waiting: what is being started, and for how many seconds."""
        self._board = board
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
        """A line above the table, which stays."""
        self._stage = text
        self._live.console.print(Text(text), soft_wrap=True)

    def event(self, trial_id: str, event: dict[str, Any]) -> None:
        """Ended trials that did not finish, and retries, stay above the table as lines."""
        odd = event["type"] == "retry" or (event["type"] == "ended" and event["status"] != "finished")
        if odd:
            name = self._board.trials[trial_id].run_name
            self._live.console.print(Text(f"{name}: {event_text(event, self._board)}", style="yellow"))

    def close(self) -> None:
        """Takes the table off the screen."""
        self._live.stop()

    def _draw(self) -> RenderableType:
        waits = [f"{what} ({seconds:.0f} s)" for what, seconds in self._waiting().items()]
        foot = Text(" · ".join([self._board.progress(), *waits]) if self._board.statuses or waits else self._stage)
        if not self._board.running:
            return foot
        header = ("trial", "epoch", self._board.metric.title, "", "samples/s")
        table = Table(*header, box=None, header_style="bold", pad_edge=False)
        for running in list(self._board.running.values()):
            table.add_row(*_row(running))
        return Group(table, foot)


def _row(running: RunningTrial) -> tuple[str, str, str, str, str]:
    values, metric = running.values, running.metric
    last = values[-1] if values else None
    rate = running.samples_per_second
    return (
        running.trial.run_name,
        f"{len(values)}/{running.trial.train['epochs']}",
        sparkline(values, share=metric.share),
        "" if last is None else metric.text(last, 4),
        "" if rate is None else f"{rate:,.0f}",
    )


OURS = ("scalestudy",)
logger = logging.getLogger(__name__)


class _Lines(logging.Handler):
    def __init__(self, file: Path, study_id: str) -> None:
        super().__init__(logging.INFO)
        self._file, self._study_id = file, study_id

    def emit(self, record: logging.LogRecord) -> None:
        """Appends a line; what the storage does not take is lost, as any log line is."""
        try:
            with self._file.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(self._line(record), ensure_ascii=False) + "\n")
        except OSError:
            pass

    def _line(self, record: logging.LogRecord) -> dict[str, Any]:
        known = {name: getattr(record, name, None) for name in ("trial_id", "event")}
        return {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "study_id": self._study_id,
            **{name: value for name, value in known.items() if value},
            "message": record.getMessage(),
            **({"traceback": logging.Formatter().formatException(record.exc_info)} if record.exc_info else {}),
        }


class StudyLog:
    """While it is open, everything that these packages log is a line of the file: `with StudyLog(…): …`."""

    def __init__(self, file: Path, study_id: str) -> None:
        self._handler = _Lines(file, study_id)
        self._levels: dict[str, int] = {}

    def __enter__(self) -> StudyLog:
        for name in OURS:
            ours = logging.getLogger(name)
            self._levels[name] = ours.level
            ours.setLevel(logging.INFO)
            ours.addHandler(self._handler)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, level in self._levels.items():
            logging.getLogger(name).removeHandler(self._handler)
            logging.getLogger(name).setLevel(level)


class Logged:
    """A view that also logs what it is told, each event with its trial's id."""

    def __init__(self, view: View, board: Board) -> None:
        self._view, self._board = view, board

    def stage(self, text: str) -> None:
        """See View."""
        logger.info("%s", text)
        self._view.stage(text)

    def event(self, trial_id: str, event: dict[str, Any]) -> None:
        """See View."""
        text = event_text(event, self._board)
        if text:
            told = f"{self._board.trials[trial_id].run_name}: {text}"
            logger.info("%s", told, extra={"trial_id": trial_id, "event": event["type"]})
        self._view.event(trial_id, event)

    def close(self) -> None:
        """See View."""
        self._view.close()
