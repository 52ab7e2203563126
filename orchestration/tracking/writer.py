"""The thread that tells MLflow what the journal says.

The study hands over the operations of each journal entry; one thread of the driver takes all that wait, and writes them
in order and in batches. Training never waits for it. Operations that can't be written stay at the head of the queue and
are tried again. How far MLflow has come is kept as one number in the study's folder: what lies behind it is in the
journal, whatever becomes of this process, and `scalestudy sync` or the next run of the study sends it. Writing an
operation twice changes nothing: runs are found by their tags, points carry the epoch's own time.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

logger = logging.getLogger(__name__)

Operation = dict[str, Any]

RETRY_SECONDS = (0.5, 1.0, 2.0, 5.0)
GATHER_SECONDS = 0.3  # how long the thread lets operations gather before it writes
CLOSE_SECONDS = 30.0
CLOSING_TRIES = 5  # failures in a row after which a study that has ended gives up on the store
GRACE_SECONDS = 90.0  # how much longer a write that has begun may take, such as a large model's
A_BATCH = 500  # entries that a replay writes at a time


class Store(Protocol):
    """Where operations are carried out: MLflow, by `mlflow_store.MlflowStore`."""

    def apply(self, operations: Sequence[Operation]) -> None:
        """Writes operations in order; raises when the store is out of reach, having written none or some."""


@dataclass(frozen=True)
class Numbered:
    """The operations of one journal entry."""

    number: int
    operations: Sequence[Operation]


@dataclass(frozen=True)
class Cursor:
    """How far MLflow has come: the number of the last journal entry that it has, in a file."""

    file: Path

    def read(self) -> int:
        """The number; 0: it has none, or the file can't be read, which costs some writing and loses nothing."""
        try:
            return int(self.file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return 0

    def write(self, number: int) -> None:
        """Keeps it. Raises OSError."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        aside = self.file.with_suffix(".part")
        aside.write_text(str(number), encoding="utf-8")
        aside.replace(self.file)


class Tracker:
    """The queue and its thread."""

    def __init__(self, open_store: Callable[[], Store], cursor: Cursor) -> None:
        """open_store: called once on the thread, where MLflow's import and its database's set-up cost no time."""
        self._open_store = open_store
        self._cursor = cursor
        self._queue: queue.SimpleQueue[Numbered] = queue.SimpleQueue()
        self._left: list[Numbered] = []
        self.error: Exception | None = None  # of the last try, where it failed
        self._closing = threading.Event()
        self._abandoned = threading.Event()
        self._give_up_at = float("inf")
        self._thread = threading.Thread(target=self._run, name="tracking", daemon=True)
        self._thread.start()

    def tell(self, number: int, operations: Sequence[Operation]) -> None:
        """Queues the operations of a journal entry; never waits."""
        self._queue.put(Numbered(number, operations))

    @property
    def backlog(self) -> int:
        """Journal entries that wait."""
        return len(self._left) + self._queue.qsize()

    def abandon(self) -> None:
        """From now on nothing is written, and the cursor stays: the study is another process's."""
        self._abandoned.set()

    def close(self, seconds: float = CLOSE_SECONDS, grace: float | None = None) -> int:
        """Writes what waits, for at most so many seconds; returns the number of operations that MLflow has not got.

        grace: how much longer a write that has begun may take, None: GRACE_SECONDS; one that hangs is not waited for,
        at worst it is written twice.
        """
        self._give_up_at = time.monotonic() + seconds
        self._closing.set()
        self._thread.join(seconds + (GRACE_SECONDS if grace is None else grace))
        return sum(len(each.operations) for each in [*self._left, *self._drain()])

    def _run(self) -> None:
        store: Store | None = None
        failures = 0
        while not self._abandoned.is_set():
            last_round = self._closing.is_set()
            self._left.extend(self._drain())
            try:
                store = store or self._open_store()
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
        if self._left:
            store.apply([operation for each in self._left for operation in each.operations])
            last = self._left[-1].number
            self._left.clear()
            if self._abandoned.is_set():
                return
            with suppress(OSError):  # a full disk: the same is written once more, later
                self._cursor.write(last)

    def _drain(self) -> list[Numbered]:
        entries = []
        with suppress(queue.Empty):  # `close` may drain it too
            while True:
                entries.append(self._queue.get_nowait())
        return entries


def replay(store: Store, entries: Iterable[Numbered], cursor: Cursor) -> int:
    """Writes what MLflow has missed, in order; returns how many operations there were.

    Raises whatever the store raises; what was written until then is not written again.
    """
    count, batch = 0, list[Numbered]()
    for entry in entries:
        batch.append(entry)
        if len(batch) == A_BATCH:
            count += _send(store, batch, cursor)
            batch = []
    return count + (_send(store, batch, cursor) if batch else 0)


def _send(store: Store, batch: Sequence[Numbered], cursor: Cursor) -> int:
    operations = [operation for entry in batch for operation in entry.operations]
    store.apply(operations)
    cursor.write(batch[-1].number)
    return len(operations)
