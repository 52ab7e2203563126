"""Stage 7, tracking: `log.jsonl` in a study's folder – what the driver did and met, a line of JSON each."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from orchestration.board import Board
from orchestration.live import View, event_text

OURS = ("orchestration", "training", "experiments")
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
