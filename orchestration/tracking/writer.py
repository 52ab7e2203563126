"""The thread that brings the journal to MLflow.

The study hands over each journal entry. One thread of the driver takes all that wait, and writes them in order and in
batches. Training never waits for it. Entries that can't be written stay at the head of the queue and are tried again.
The cursor, a number in the study's folder, says how far MLflow has come. Whatever becomes of this process, `scalestudy
ui DIR --sync` or the study's next run sends the rest from the journal. Writing an entry twice changes nothing: runs are
found by their tags, and points carry the epoch's time. So only this file tries again. MLflow's client must not: it
would repeat a request to make a run whose answer was lost, and so make two.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path
from typing import Protocol

from scalestudy.orchestration.tracking.entries import Recorded
from scalestudy.training.whole_file import write_whole

logger = logging.getLogger(__name__)

RETRY_SECONDS = (0.5, 1.0, 2.0, 5.0)
GATHER_SECONDS = 0.3  # how long the thread lets entries gather before it writes
CLOSE_SECONDS = 30.0
CLOSING_TRIES = 5  # failures in a row after which a study that has ended gives up on the store
GRACE_SECONDS = 90.0  # how much longer a write that has begun may take, such as a large model's
A_BATCH = 500  # entries that are written at a time

Wrote = Callable[[int], None]
"""A function that takes the number of the last entry that a store has."""


class Store(Protocol):
    """The receiver of entries: MLflow, by `mlflow_store.MlflowStore`."""

    @property
    def has_begun(self) -> bool:
        """Whether it has anything of the study. Raises if the store is out of reach."""

    def write(self, entries: Sequence[Recorded], wrote: Wrote) -> None:
        """Write entries in order. Raises if the store is out of reach; by then, `wrote` knows how far it came."""


class Entries(Protocol):
    """A study's journal: `StudyJournal`."""

    def entries(self, after: int = 0) -> Iterator[Recorded]:
        """Yield the entries with a greater number than `after`, in order."""


def ignore(number: int) -> None:
    """Do nothing: a `Wrote` for callers that need no number."""


@dataclass(frozen=True)
class Cursor:
    """The number of the last journal entry that MLflow has, in a file."""

    file: Path

    def read(self) -> int:
        """Return the number. 0: MLflow has nothing, or the file can't be read; then everything is written again."""
        try:
            return int(self.file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return 0

    def write(self, number: int) -> None:
        """Keep the number. Raises OSError."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.file, str(number).encode("ascii"))


def lost(store: Store, journal: Entries, cursor: Cursor) -> list[Recorded]:
    """Return the entries that the cursor counts but the store has not: a database that is new, or was emptied.

    The cursor goes back before them, so that they are sent whatever happens. Raises what the store raises.
    """
    last = cursor.read()
    if not last or store.has_begun:
        return []
    logger.warning("MLflow has nothing of the study there, and gets all of it again")
    with suppress(OSError):  # a full disk, as in `send`
        cursor.write(0)
    return list(takewhile(lambda entry: entry.number <= last, journal.entries()))


def send(store: Store, waiting: deque[Recorded], cursor: Cursor, keeps: Callable[[], bool] = lambda: True) -> None:
    """Write the first entries that wait, and remove those that the store has; after an error, the others wait.

    cursor: is moved in any case, unless `keeps` says by then that another process owns it. Raises what the store
    raises.
    """
    last = 0

    def wrote(number: int) -> None:
        nonlocal last
        last = number
        while waiting and waiting[0].number <= number:
            waiting.popleft()

    try:
        store.write(list(islice(waiting, A_BATCH)), wrote)
    finally:
        if last and keeps():
            with suppress(OSError):  # a full disk: the entries are written once more, later
                cursor.write(last)


class TrackingWriter:
    """The queue and its thread."""

    def __init__(self, open_store: Callable[[], Store], cursor: Cursor, journal: Entries) -> None:
        """Start the thread. It calls `open_store`, since MLflow's import and a new database take seconds.

        journal: the study's; of what is in it and before the cursor, nothing needs to be told.
        """
        self.error: Exception | None = None  # of the last try; None: it went well
        self._open_store = open_store
        self._cursor, self._journal = cursor, journal
        self._queue: queue.SimpleQueue[Recorded] = queue.SimpleQueue()
        self._left: deque[Recorded] = deque()
        self._closing = threading.Event()
        self._abandoned = threading.Event()
        self._give_up_at = float("inf")
        self._thread = threading.Thread(target=self._run, name="tracking", daemon=True)
        self._thread.start()

    def tell(self, entry: Recorded) -> None:
        """Queue an entry of the journal, without waiting."""
        self._queue.put(entry)

    def abandon(self) -> None:
        """Stop writing, and leave the cursor as it is: the study now belongs to another process."""
        self._abandoned.set()

    def close(self, seconds: float = CLOSE_SECONDS, grace: float | None = None) -> int:
        """Write what waits, for at most so many seconds; return how many entries MLflow lacks.

        grace: how much longer a write that has begun may take; None: GRACE_SECONDS. A write that still hangs then is
        abandoned; at worst its entries are written twice.
        """
        self._give_up_at = time.monotonic() + seconds
        self._closing.set()
        self._thread.join(seconds + (GRACE_SECONDS if grace is None else grace))
        return len(self._left) + len(self._drain())

    def _run(self) -> None:
        store: Store | None = None
        failures = 0
        while not self._abandoned.is_set():
            last_round = self._closing.is_set()
            self._left.extend(self._drain())
            try:
                if store is None:
                    opened = self._open_store()
                    self._left.extendleft(reversed(lost(opened, self._journal, self._cursor)))
                    store = opened
                self._write(store)
                failures, self.error = 0, None
            except Exception as error:  # MLflow raises its own, SQLAlchemy's and the HTTP client's
                self.error = error
                logger.warning("MLflow is out of reach, %d journal entries wait: %s", len(self._left), error)
                pause = RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)]
                failures += 1
                given_up = last_round and failures > CLOSING_TRIES
                if given_up or time.monotonic() + pause > self._give_up_at:
                    return
                self._closing.wait(pause) if not last_round else time.sleep(pause)
                continue
            if last_round and self._queue.empty():
                return
            self._closing.wait(GATHER_SECONDS)

    def _write(self, store: Store) -> None:
        while self._left and not self._abandoned.is_set():
            send(store, self._left, self._cursor, lambda: not self._abandoned.is_set())

    def _drain(self) -> list[Recorded]:
        entries = []
        with suppress(queue.Empty):  # `close` may drain it too
            while True:
                entries.append(self._queue.get_nowait())
        return entries


def catch_up(store: Store, journal: Entries, cursor: Cursor) -> int:
    """Write the entries that MLflow has missed, in order; return how many there were.

    Raises what the store raises at several tries in a row; the next call continues where this one stopped.
    """
    lost(store, journal, cursor)
    coming, waiting = journal.entries(after=cursor.read()), deque[Recorded]()
    count = failures = 0
    while True:
        waiting.extend(islice(coming, A_BATCH - len(waiting)))
        if not waiting:
            return count
        before = len(waiting)
        try:
            send(store, waiting, cursor)
        except Exception as error:  # MLflow raises its own, SQLAlchemy's and the HTTP client's
            failures = 0 if len(waiting) < before else failures
            if failures == len(RETRY_SECONDS):
                raise
            logger.info("MLflow is out of reach: %s", error)
            time.sleep(RETRY_SECONDS[failures])
            failures += 1
        else:
            failures = 0
        count += before - len(waiting)
