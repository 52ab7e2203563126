"""Stage 7, tracking: what the study tells MLflow, and the thread that does the telling.

The study puts small plain operations into a queue; one thread of the driver takes all that wait, and writes them in
order and in batches. Training never waits for it. Operations that can't be written stay at the head of the queue and
are tried again; what is left when the study ends goes to `spool/` in the study's folder, from which `scalestudy sync`
replays it. Writing an operation twice changes nothing: runs are found by their tags, points carry the epoch's own time.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

logger = logging.getLogger(__name__)

Operation = dict[str, Any]

RETRY_SECONDS = (0.5, 1.0, 2.0, 5.0)
GATHER_SECONDS = 0.3  # how long the thread lets operations gather before it writes
CLOSE_SECONDS = 30.0
CLOSING_TRIES = 5  # failures in a row after which a study that has ended gives up on the store
GRACE_SECONDS = 90.0  # how much longer a write that has begun may take, such as a large model's
SPOOL_FILE = "operations.jsonl"


class Store(Protocol):
    """Where operations are carried out: MLflow, by `mlflow_store.MlflowStore`."""

    def apply(self, operations: Sequence[Operation]) -> None:
        """Writes operations in order; raises when the store is out of reach, having written none or some."""


class Tracker:
    """The queue and its thread."""

    def __init__(self, open_store: Callable[[], Store], spool: Path) -> None:
        """open_store: called once on the thread, where MLflow's import and its database's set-up cost no time."""
        self._open_store = open_store
        self._spool = spool
        self._queue: queue.SimpleQueue[Operation] = queue.SimpleQueue()
        self._left: list[Operation] = []
        self._closing = threading.Event()
        self._give_up_at = float("inf")
        self._thread = threading.Thread(target=self._run, name="tracking", daemon=True)
        self._thread.start()

    def tell(self, operation: str, **facts: Any) -> None:
        """Queues an operation; never waits."""
        self._queue.put({"op": operation, **facts})

    def close(self, seconds: float = CLOSE_SECONDS) -> int:
        """Writes what waits, for at most so many seconds; returns the number of operations left in the spool.

        A write that hangs is not waited for: its operations are spooled, and at worst written twice.
        """
        self._give_up_at = time.monotonic() + seconds
        self._closing.set()
        self._thread.join(seconds + GRACE_SECONDS)
        left = [*self._left, *self._drain()]
        if left:
            self._spool.mkdir(parents=True, exist_ok=True)
            with (self._spool / SPOOL_FILE).open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(operation) + "\n" for operation in left)
        return len(left)

    def _run(self) -> None:
        store: Store | None = None
        failures = 0
        while True:
            last_round = self._closing.is_set()
            self._left.extend(self._drain())
            try:
                store = store or self._open_store()
                if self._left:
                    store.apply(self._left)
                    self._left.clear()
                failures = 0
            except Exception as error:  # MLflow raises its own, SQLAlchemy's and the HTTP client's
                logger.warning("MLflow is out of reach, %d operations wait: %s", len(self._left), error)
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

    def _drain(self) -> list[Operation]:
        operations = []
        with suppress(queue.Empty):  # `close` may drain it too
            while True:
                operations.append(self._queue.get_nowait())
        return operations


def replay(store: Store, spool: Path) -> int:
    """Writes what a study has left in its spool, and removes it; returns how many operations there were.

    Raises whatever the store raises; the spool then stays as it is.
    """
    file = spool / SPOOL_FILE
    if not file.exists():
        return 0
    operations = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    store.apply(operations)
    file.unlink()
    return len(operations)
