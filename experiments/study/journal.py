"""The journal of a study: every event in a small numbered file, written before it counts.

The journal holds all that a study knows. After its driver was killed, a study continues from the journal, and MLflow
gets what it missed.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalestudy.training.whole_file import written_aside

logger = logging.getLogger(__name__)

DURABLE = frozenset({"study", "suggested", "ended"})
"""Types of entries that are synced to the disk. After a power cut the trials report the others again."""
DIGITS = 8
"""Digits of a file's name. Names sort in the order of the entries."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One event."""

    number: int  # from 1, in the order of the events
    at: float  # seconds since 1970, by the driver's clock
    trial_id: str  # whose event it is; empty for the study's own
    event: dict[str, Any]  # plain data with a `type`

    @property
    def type(self) -> str:
        """What kind of event it is."""
        return str(self.event["type"])


class Journal:
    """The journal in a folder. One process writes it (the study's lock sees to that), any may read it."""

    def __init__(
        self,
        folder: Path,
        clock: Callable[[], float] = time.time,
        share: Callable[[Path, bytes], None] = lambda file, content: None,
    ) -> None:
        """Open the journal. share: puts an entry into the study's object store before it counts here; raises as
        `append`.
        """
        self._folder, self._clock, self._share = folder, clock, share
        self._last = max(self._numbers(), default=0)

    @property
    def last_number(self) -> int:
        """Number of the newest entry; 0: there is none."""
        return self._last

    def append(self, trial_id: str, event: dict[str, Any]) -> Entry:
        """Write an event, whole or not at all.

        Raises ValueError for NaN, and OSError: FileExistsError if another process has written the entry.
        """
        entry = Entry(number=self._last + 1, at=self._clock(), trial_id=trial_id, event=event)
        text = json.dumps({"at": entry.at, "trial_id": trial_id, "event": event}, allow_nan=False)
        file = self._folder / f"{entry.number:0{DIGITS}}.json"
        self._folder.mkdir(parents=True, exist_ok=True)
        content = text.encode("utf-8")
        with written_aside(file, content, durable=entry.type in DURABLE) as aside:
            self._share(file, content)
            os.link(aside, file)  # never over an entry of another process, which would have taken the study's lock
        self._last = entry.number
        return entry

    def entries(self, after: int = 0) -> Iterator[Entry]:
        """Yield the entries with a greater number than `after`, in order.

        Skip a file that a lost machine left torn: its trial resumes before the event, and reports it again.
        """
        for number in sorted(number for number in self._numbers() if number > after):
            file = self._folder / f"{number:0{DIGITS}}.json"
            try:
                plain = json.loads(file.read_text(encoding="utf-8"))
                yield Entry(number=number, at=plain["at"], trial_id=plain["trial_id"], event=plain["event"])
            except (ValueError, KeyError, TypeError):
                logger.warning("skipping unreadable %s", file)

    def _numbers(self) -> list[int]:
        if not self._folder.is_dir():
            return []
        return [int(file.stem) for file in self._folder.glob("*.json") if file.stem.isdigit()]
