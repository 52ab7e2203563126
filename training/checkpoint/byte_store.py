"""Where checkpoints are kept – bytes under names, in a folder or in whatever else holds bytes.

No torch here: other stores of the same protocol need none either.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Protocol
from uuid import uuid4

ASIDE_CHARACTERS = 32  # of what sets apart the files of writers of one name
_WORD = r"[A-Za-z0-9_-][A-Za-z0-9._-]*"
_NAME = re.compile(rf"{_WORD}(?:/{_WORD})*")


class ByteStore(Protocol):
    """Bytes under names such as `00000007/part-0.pt`.

    A name is one or more words of letters, digits, `.`, `_` and `-`, with slashes between them; no word starts with a
    dot, so a name can't lead out of the store. Other names are a ValueError; OSError if the store itself fails.
    """

    def write(self, name: str, data: bytes) -> None:
        """Hold the data under this name from now on; a reader sees all of it or none, as far as the store can."""

    def read(self, name: str) -> bytes:
        """What is held under this name. Raises FileNotFoundError if nothing is."""

    def names(self, prefix: str = "") -> list[str]:
        """All names that start with this text, sorted."""

    def delete(self, name: str) -> None:
        """Hold nothing under this name; it need not have held anything."""

    def delete_folder(self, name: str) -> None:
        """Hold nothing under any name that starts with this one and a slash."""


def is_name(name: str) -> bool:
    """Whether a store may hold something under this name."""
    return _NAME.fullmatch(name) is not None


def checked_name(name: str) -> str:
    """The name itself. Raises ValueError if no store may hold anything under it."""
    if not is_name(name):
        raise ValueError(f"name: {name!r} is not a name in a store; use words of letters, digits, '.', '_' and '-', "
                         "none starting with a dot, joined by '/'")  # fmt: skip
    return name


def aside_prefix(path: str) -> str:
    """How the names of files start that are written aside for this one; ASIDE_CHARACTERS of the writer's follow."""
    return f".{path.rpartition('/')[2]}."


def sorted_names(found: list[str], prefix: str) -> list[str]:
    """Those of the relative paths found in a store that `names` gives: not files written aside, nor other people's."""
    return sorted(name for name in found if name.startswith(prefix) and is_name(name))


class LocalByteStore:
    """A folder of this machine, made when something is first written.

    A file is written aside, flushed to the disk and renamed, and so is the folder's entry: what `write` returned from
    survives a power cut, and no order of events shows a half file under its name. (Without the flush the file system
    may keep a later name and lose an earlier file's bytes.)
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder).expanduser().absolute()

    def write(self, name: str, data: bytes) -> None:
        """See ByteStore. Raises OSError, leaving what was there, if the disk is full or the folder can't be written."""
        path = self._path(name)
        _make_folder(path.parent)
        aside = path.with_name(aside_prefix(name) + uuid4().hex)
        try:
            with aside.open("xb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            aside.replace(path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        _flush_folder(path.parent)

    def read(self, name: str) -> bytes:
        """See ByteStore."""
        return self._path(name).read_bytes()

    def names(self, prefix: str = "") -> list[str]:
        """See ByteStore."""
        walk = os.walk(self._folder, onerror=_raise_unless_gone)  # rglob hides what it may not read
        found = [Path(folder, file).relative_to(self._folder) for folder, _, files in walk for file in files]
        return sorted_names([path.as_posix() for path in found], prefix)

    def delete(self, name: str) -> None:
        """See ByteStore. What killed writers of this name left aside goes too, and folders that are empty then."""
        path = self._path(name)
        path.unlink(missing_ok=True)
        for aside in path.parent.glob(aside_prefix(name) + "?" * ASIDE_CHARACTERS):
            aside.unlink(missing_ok=True)
        for folder in path.relative_to(self._folder).parents[:-1]:
            try:
                (self._folder / folder).rmdir()
            except OSError:  # not empty, or not there
                return

    def delete_folder(self, name: str) -> None:
        """See ByteStore. As `delete` for each."""
        for each in self.names(f"{checked_name(name)}/"):
            self.delete(each)

    def _path(self, name: str) -> Path:
        return self._folder / checked_name(name)


def _raise_unless_gone(error: OSError) -> None:
    """A folder that another rank deletes meanwhile holds nothing; any other that can't be listed is an error."""
    if not isinstance(error, FileNotFoundError):
        raise error


def _make_folder(folder: Path) -> None:
    """As mkdir(parents=True), each new entry flushed to the disk."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _flush_folder(folder.parent)


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
