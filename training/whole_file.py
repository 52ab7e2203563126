"""The one atomic write: a file appears whole, or is replaced whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

ASIDE_CHARACTERS = 32  # that distinguish the temporary files of several writers of one name


@contextmanager
def written_aside(path: Path, data: bytes | memoryview, *, durable: bool = False) -> Iterator[Path]:
    """Yield a new file beside `path` with these bytes, for the caller to rename or to link; then remove it.

    durable: whether the bytes are flushed to the disk, so that a power cut keeps them. Raises OSError.
    """
    aside = path.with_name(aside_prefix(path.name) + uuid4().hex)
    try:
        with aside.open("xb") as stream:
            stream.write(data)
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        yield aside
    finally:
        aside.unlink(missing_ok=True)


def write_whole(path: Path, data: bytes | memoryview, *, durable: bool = False) -> None:
    """Give the file these bytes, all at once: a reader sees the old file or the new one, never a part.

    durable: whether file and folder are flushed to the disk, so that the file survives a power cut. Without it a file
    system may keep the name and lose the bytes. Raises OSError, and leaves what was there.
    """
    with written_aside(path, data, durable=durable) as aside:
        aside.replace(path)
    if durable:
        flush_folder(path.parent)


def aside_prefix(path: str) -> str:
    """Return how the names of a path's temporary files start; ASIDE_CHARACTERS that distinguish the writers follow."""
    return f".{path.rpartition('/')[2]}."


def flush_folder(folder: Path) -> None:
    """Flush the folder's entries to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
