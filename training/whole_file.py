"""The atomic write of `training` and of stores: a file is replaced whole.

`experiments`, which may import no more of training than its configuration, writes a study's files by its own.
"""

from __future__ import annotations

import os
from pathlib import Path
from uuid import uuid4

ASIDE_CHARACTERS = 32  # of what tells apart the temporary files of several writers of one name


def write_whole(path: Path, data: bytes | memoryview, durable: bool = False) -> None:
    """Give the file these bytes, all at once: a reader sees the old file or the new one, never a part.

    The bytes go to a file beside it, which is then renamed. `durable`: also flush file and folder to the disk, so that
    the file survives a power cut. Without it a file system may keep the name and lose the bytes. Raises OSError, and
    leaves what was there.
    """
    aside = path.with_name(aside_prefix(path.name) + uuid4().hex)
    try:
        with aside.open("xb") as stream:
            stream.write(data)
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    if durable:
        flush_folder(path.parent)


def aside_prefix(path: str) -> str:
    """How the names of a path's temporary files start; ASIDE_CHARACTERS of the writer's own follow."""
    return f".{path.rpartition('/')[2]}."


def flush_folder(folder: Path) -> None:
    """Flush the folder's entries to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
