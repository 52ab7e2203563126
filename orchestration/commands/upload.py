"""Stage 3, on a cluster: what a job takes along – the current folder, and these packages where it has none."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scalestudy.orchestration.base.errors import RequestError

MOST_MEGABYTES = 100.0
"""What a submission takes along without being asked; Ray itself stops at 500 MiB."""
NAMED = 3
"""How many of the largest files and folders are named when it is too much."""


@dataclass(frozen=True, kw_only=True)
class Upload:
    """What of one folder travels: sizes in bytes, by path in it."""

    folder: Path
    files: dict[Path, int]

    @property
    def megabytes(self) -> float:
        """Millions of bytes; Ray packs files without compressing them."""
        return sum(self.files.values()) / 1e6

    def largest(self) -> list[str]:
        """The largest of what lies at the folder's top, with their sizes."""
        sizes: dict[str, int] = {}
        for file, size in self.files.items():
            name = f"{file.parts[0]}/" if len(file.parts) > 1 else file.name
            sizes[name] = sizes.get(name, 0) + size
        first = sorted(sizes, key=lambda name: -sizes[name])[:NAMED]
        return [f"{name} {sizes[name] / 1e6:.1f} MB" for name in first]


def upload_of(folder: Path) -> Upload:
    """What Ray would send of a folder: all but what .rayignore and .gitignore name, there or in folders below.

    Ray's own walk is asked, for it knows its own rules best; it is not public, and the version of Ray is fixed.
    """
    from ray._private import ray_constants
    from ray._private.runtime_env.packaging import _dir_travel, _get_excludes

    quiet = logging.getLogger("scalestudy.upload")
    quiet.setLevel(logging.CRITICAL)  # it would name each ignore file that it reads
    found: dict[Path, int] = {}

    def take(path: Path) -> None:
        if path.is_file():
            found[path.relative_to(folder)] = path.stat().st_size

    excludes = [_get_excludes(folder, ray_constants.get_runtime_env_default_excludes())]
    with_gitignore = os.environ.get(ray_constants.RAY_RUNTIME_ENV_IGNORE_GITIGNORE, "0") != "1"
    _dir_travel(folder, excludes, take, include_gitignore=with_gitignore, logger=quiet)
    return Upload(folder=folder, files=found)


def check_upload(folders: Sequence[Path], most_megabytes: float = MOST_MEGABYTES) -> float:
    """The megabytes that a job takes along. Raises RequestError where they are too many, before anything is sent."""
    uploads = [upload_of(folder) for folder in folders]
    total = sum(upload.megabytes for upload in uploads)
    if total > most_megabytes:
        largest = max(uploads, key=lambda upload: upload.megabytes)
        raise RequestError(
            f"{largest.folder}: {total:.1f} MB would travel with the job, more than {most_megabytes:g} MB "
            f"({', '.join(largest.largest())})",
            f"name what the job does not need in {largest.folder / '.rayignore'}, a pattern a line as in .gitignore, "
            "or allow more with --max-upload",
        )
    return total
