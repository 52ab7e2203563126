"""Where checkpoints are kept: bytes under names, in a folder or in any other store.

No torch here: other stores of the same protocol need none either.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Protocol

from scalestudy.training.exceptions import InputError
from scalestudy.training.whole_file import ASIDE_CHARACTERS, aside_prefix, flush_folder, write_whole

_WORD = r"[A-Za-z0-9_-][A-Za-z0-9._-]*"
_NAME = re.compile(rf"{_WORD}(?:/{_WORD})*")


class ByteStore(Protocol):
    """Bytes under names such as `00000007/part-0.pt`.

    A name is one or more words of letters, digits, `.`, `_` and `-`, with slashes between them. No word starts with a
    dot, so a name can't lead out of the store. Other names are a ValueError. If the store itself fails: OSError.
    """

    def write(self, name: str, data: bytes) -> None:
        """Store the data under this name. A reader sees all of it or none, as far as the store can."""

    def read(self, name: str) -> bytes:
        """Return the data under this name. Raises FileNotFoundError if there is none."""

    def names(self, prefix: str = "") -> list[str]:
        """Return all names that start with this text, sorted."""

    def delete(self, name: str) -> None:
        """Delete the data under this name, if there is any."""

    def delete_folder(self, name: str) -> None:
        """Delete the data under all names that start with this one and a slash."""


def is_name(name: str) -> bool:
    """Return whether a store may hold something under this name."""
    return _NAME.fullmatch(name) is not None


def checked_name(name: str) -> str:
    """Return the name. Raises ValueError if no store may hold anything under it."""
    if not is_name(name):
        raise InputError(
            f"name: {name!r} is not a name in a store",
            "use words of letters, digits, '.', '_' and '-', none starting with a dot, joined by '/'",
        )
    return name


def sorted_names(found: list[str], prefix: str) -> list[str]:
    """Return the relative paths that `names` returns: without temporary files and foreign files."""
    return sorted(name for name in found if name.startswith(prefix) and is_name(name))


class LocalByteStore:
    """A folder of this machine, made by the first write.

    What `write` returned from survives a power cut: file and folder are flushed to the disk, around an atomic rename.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder).expanduser().absolute()

    def write(self, name: str, data: bytes) -> None:
        """See ByteStore. Raises OSError, and leaves what was there, if the disk is full or the folder read-only."""
        path = self._path(name)
        _make_folder(path.parent)
        write_whole(path, data, durable=True)

    def read(self, name: str) -> bytes:
        """See ByteStore."""
        return self._path(name).read_bytes()

    def names(self, prefix: str = "") -> list[str]:
        """See ByteStore."""

        def raise_unless_gone(error: OSError) -> None:
            """Raise, unless another rank has deleted the folder meanwhile, which then holds nothing."""
            if not isinstance(error, FileNotFoundError):
                raise error

        walk = os.walk(self._folder, onerror=raise_unless_gone)  # rglob hides folders that it may not read
        found = [Path(folder, file).relative_to(self._folder) for folder, _, files in walk for file in files]
        return sorted_names([path.as_posix() for path in found], prefix)

    def delete(self, name: str) -> None:
        """See ByteStore. Also delete temporary files of killed writers of this name, and folders that get empty."""
        path = self._path(name)
        path.unlink(missing_ok=True)
        for aside in path.parent.glob(aside_prefix(name) + "?" * ASIDE_CHARACTERS):
            aside.unlink(missing_ok=True)
        for folder in path.relative_to(self._folder).parents[:-1]:
            try:
                (self._folder / folder).rmdir()
            except OSError:  # not empty, or gone
                return

    def delete_folder(self, name: str) -> None:
        """See ByteStore. Delete each name as `delete` does."""
        for each in self.names(f"{checked_name(name)}/"):
            self.delete(each)

    def _path(self, name: str) -> Path:
        return self._folder / checked_name(name)


def _make_folder(folder: Path) -> None:
    """Make the folder and its parents, each flushed to the disk."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        flush_folder(folder.parent)
