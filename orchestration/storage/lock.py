"""The lock of a study: one process at a time runs it.

The lock is a file with a heartbeat. A killed process leaves it behind. On the same machine the next run sees at once
that the process is dead; elsewhere the lock is stale once the heartbeat has stopped for a while. So a crash never
blocks the next run for long.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.orchestration.base.errors import RequestError, UnreachableError
from scalestudy.training.checkpoint.byte_store import ByteStore
from scalestudy.training.whole_file import write_whole, written_aside

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 5.0
STALE_SECONDS = 30.0
SETTLE_SECONDS = 1.0
"""How long the writer of a lock in an object store waits before it reads it again; longer than a write takes."""
TEXT_CHARACTERS = 512
"""Length of every text of a lock, padded with spaces. pyarrow asks a store for an object's length and then for so many
bytes: it would cut a longer text that a heartbeat wrote in between."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who holds a lock."""

    token: str
    host: str
    pid: int
    born: str  # when the process began, as its machine counts; no later process has the same
    beat: float  # seconds since 1970 at its last heartbeat

    @property
    def silent_seconds(self) -> float:
        """The seconds since its last heartbeat."""
        return time.time() - self.beat

    @property
    def is_alive(self) -> bool:
        """Whether its heartbeat is recent, and its process is not known to be dead."""
        dead = self.host == socket.gethostname() and _birth(self.pid) != self.born
        return not dead and self.silent_seconds < STALE_SECONDS


def read_lock(file: Path) -> Holder | None:
    """Return who holds a lock, or held it last; None: nobody. A torn file is nobody's."""
    return StudyLock(file).holder()


def lock_of(folder: StudyFolder) -> StudyLock:
    """Return the lock of a study, in its folder or its object store."""
    from scalestudy.orchestration.storage.mirror import store_of

    name = folder.lock_file.name
    return StoreLock(store_of(folder), name, folder.address) if folder.mirror else StudyLock(folder.lock_file)


class StudyLock:
    """A lock held while a study runs: `with StudyLock(file): …`."""

    def __init__(self, file: Path) -> None:
        self.lost: Callable[[], None] = lambda: None  # called when another process took the lock: this one was silent
        self._file, self._where = file, str(file.parent)
        self._token = uuid.uuid4().hex
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lock", daemon=True)

    def __enter__(self) -> StudyLock:
        """Take the lock. Raises RequestError if another living process holds it."""
        try:
            self._refuse_if_held(self.read_holder())  # if the lock can't be read, nobody may take it
            self._take()
        except FileExistsError:
            raise RequestError(f"DIR: {self._where}: another process has just taken it", "wait for it") from None
        except OSError as error:
            problem = f"storage: {self._where}: can't be locked ({error.strerror or error})"
            raise UnreachableError(problem, "free some space, or make the folder writable") from error
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._released.set()
        self._thread.join()
        if self._is_ours():
            self._remove()

    def holder(self) -> Holder | None:
        """Return what `read_holder` does; None also if the lock can't be read."""
        try:
            return self.read_holder()
        except OSError:
            return None

    def read_holder(self) -> Holder | None:
        """Return who holds it, or held it last; None: nobody. A torn text is nobody's. Raises OSError."""
        try:
            return Holder(**json.loads(self._read()))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def check(self) -> bool:
        """Whether the lock is still held; calls `lost` if another process has taken it.

        Ask before writing what only the holder may write. The heartbeat asks only every few seconds, and a short study
        may end in between.
        """
        if self._is_ours():
            return True
        logger.error("the lock of %s was taken by another process", self._where)
        self.lost()
        return False

    def _refuse_if_held(self, holder: Holder | None) -> None:
        if holder and holder.is_alive:
            who = f"process {holder.pid} on {holder.host} (seen {holder.silent_seconds:.0f} s ago)"
            raise RequestError(f"DIR: {self._where}: is being run by {who}", "wait for its end, or stop it")

    def _read(self) -> str:
        return self._file.read_text(encoding="utf-8")

    def _take(self) -> None:
        """Take the free lock. Raises FileExistsError if another process has just taken it."""
        self._take_stale_away()
        with written_aside(self._file, self._text().encode("utf-8")) as aside:
            os.link(aside, self._file)  # whole from the start, and never replaces another's

    def _renew(self) -> None:
        write_whole(self._file, self._text().encode("utf-8"))

    def _remove(self) -> None:
        self._file.unlink(missing_ok=True)

    def _take_stale_away(self) -> None:
        """Remove a stale lock; of several processes that see it, one does. Put back a fresh one taken by mistake."""
        aside = self._file.with_name(f".{self._file.name}.{self._token}")
        with suppress(FileNotFoundError):
            self._file.rename(aside)
            taken = read_lock(aside)
            if taken and taken.is_alive:
                with suppress(FileExistsError):
                    os.link(aside, self._file)
            aside.unlink()
            self._refuse_if_held(taken)

    def _beat(self) -> None:
        while not self._released.wait(HEARTBEAT_SECONDS):
            if not self.check():
                return
            try:
                self._renew()
            except OSError as error:  # a full disk: the study has other ways to notice
                logger.warning("%s: no heartbeat: %s", self._where, error)

    def _is_ours(self) -> bool:
        """Whether the file names this holder. A file that can't be read for the moment counts as ours."""
        try:
            return str(json.loads(self._read())["token"]) == self._token
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return False
        except OSError:
            return True

    def _text(self) -> str:
        pid = os.getpid()
        holder = Holder(token=self._token, host=socket.gethostname(), pid=pid, born=_birth(pid), beat=time.time())
        return json.dumps(asdict(holder)).ljust(TEXT_CHARACTERS)


class StoreLock(StudyLock):
    """The lock of a study in an object store, as an object with a heartbeat.

    A write there never fails because another came first. So a process writes its name, waits, and holds the lock if its
    name is still there. If two processes see it free, the later writer holds it.
    """

    def __init__(self, store: ByteStore, name: str, where: str) -> None:
        """Make the lock of a study; messages call the study `where`."""
        super().__init__(Path(name))
        self._store, self._name, self._where = store, name, where

    def _read(self) -> str:
        return self._store.read(self._name).decode("utf-8")

    def _take(self) -> None:
        self._renew()
        time.sleep(SETTLE_SECONDS)
        if not self._is_ours():
            raise FileExistsError(self._name)

    def _renew(self) -> None:
        self._store.write(self._name, self._text().encode("utf-8"))

    def _remove(self) -> None:
        with suppress(OSError):  # the store is gone; the lock becomes stale
            self._store.delete(self._name)


def _birth(pid: int) -> str:
    """Return when a process of this machine began, as the kernel counts; empty if it does not live."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return "" if stat[0] == "Z" else stat[19]
    except OSError:
        pass
    if Path("/proc/self/stat").exists():
        return ""
    try:  # a system without /proc
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except OSError:
        return "alive"
    return "alive"
