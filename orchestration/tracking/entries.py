"""A study's journal with its events typed: each is encoded once, as it is written, and decoded once, as it is read."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.experiments.study.journal import Entry, Journal
from scalestudy.orchestration.groups.events import (
    Ended,
    JournalEvent,
    StudyBegan,
    StudyEvent,
    UnknownEventError,
    from_plain,
    study_event_from_plain,
    study_event_to_plain,
    to_plain,
)
from scalestudy.training.fingerprint import Fingerprint

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """An event that the journal has."""

    number: int  # from 1, in the order of the events
    at: float  # seconds since 1970, by the driver's clock
    trial_id: str  # the event's trial; empty for an event of the study itself
    event: JournalEvent | StudyEvent
    line: Mapping[str, Any] | None = None  # the trial's line of trials.jsonl; None: the event is no `Ended`

    @classmethod
    def of(cls, entry: Entry) -> Recorded:
        """Return the event of an entry. Raises UnknownEventError for one that this version does not know."""
        plain, line = entry.event, None
        event = study_event_from_plain(plain) if entry.type == "study" else from_plain(plain)
        if isinstance(event, Ended):
            line = {key: value for key, value in plain.items() if key != "type"}
        return cls(number=entry.number, at=entry.at, trial_id=entry.trial_id, event=event, line=line)


def fingerprint_after(entries: Iterable[Recorded], before: Fingerprint) -> Fingerprint:
    """Return the fingerprint of the study's run in progress after these entries: of the last beginning that has one.

    before: the same before them.
    """
    for entry in entries:
        if isinstance(entry.event, StudyBegan):
            before = entry.event.fingerprint or before
    return before


class StudyJournal:
    """The journal in a study's folder. The process that runs the study writes it; any process may read it."""

    def __init__(self, folder: StudyFolder) -> None:
        self._journal = Journal(folder.journal_folder, share=folder.share_new)

    @property
    def last_number(self) -> int:
        """The number of the newest entry; 0: there is none."""
        return self._journal.last_number

    def append_study(self, event: StudyEvent) -> Recorded:
        """Write an event of the study itself. Raises as `Journal.append`."""
        entry = self._journal.append("", study_event_to_plain(event))
        return Recorded(number=entry.number, at=entry.at, trial_id="", event=event)

    def append(self, trial_id: str, event: JournalEvent, line: Mapping[str, Any] | None = None) -> Recorded:
        """Write a trial's event. Raises as `Journal.append`.

        line: of an `Ended`, its line of trials.jsonl, which the journal holds in place of the bare event.
        """
        plain = to_plain(event) if line is None else {"type": "ended", **line}
        entry = self._journal.append(trial_id, plain)
        return Recorded(number=entry.number, at=entry.at, trial_id=trial_id, event=event, line=line)

    def entries(self, after: int = 0) -> Iterator[Recorded]:
        """Yield the events with a greater number than `after`, in order. Skip those that this version does not know."""
        for entry in self._journal.entries(after):
            try:
                yield Recorded.of(entry)
            except UnknownEventError as error:
                logger.warning("skipping entry %d of the journal: %s", entry.number, error)
