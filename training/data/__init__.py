"""Stage 5, training loop: data sets (importing this package imports no torch).

A data set is a callable(root, **data_args) -> Splits: inputs (n, C, …), images (n, C, H, W) float32 in [0, 1], with
targets. `require` says, cheaply and before anything starts, whether its files are there, and `fetch` puts them there.
"""

from __future__ import annotations

import os
from pathlib import Path

from training.data.files import DataError
from training.data.sources import SOURCES
from training.data.splits import DatasetSplits, Splits
from training.registry import DATASETS, check_name

__all__ = ["DataError", "DatasetSplits", "Splits", "default_root", "fetch", "require"]


def default_root() -> Path:
    """The folder of data sets: SCALESTUDY_DATA, else scalestudy/data in the user's cache folder."""
    named = os.environ.get("SCALESTUDY_DATA")
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(named) if named else Path(cache) / "scalestudy" / "data"


def require(name: str, root: str | Path | None = None) -> None:
    """Raise DataError, with the command that helps, if the data set's files are not under root. Loads nothing.

    A user's callable is only checked by the form of its name: what it needs, it alone knows.
    """
    check_name(name, DATASETS)
    if name in SOURCES:
        SOURCES[name].require(Path(root or default_root()))


def fetch(name: str, root: str | Path | None = None, source: str | Path | None = None) -> list[Path]:
    """Put a data set's files under root, from the folder `source` or, if that is None, from the internet.

    Checksums are verified before a file appears under its name. Returns the files that were new: none if all were
    there. Raises DataError if the data set needs no files, or a file can't be had, fails its checksum or can't be
    written.
    """
    check_name(name, DATASETS)
    if name not in SOURCES:
        raise DataError(f"data: {name!r} needs no files; nothing to fetch (choose one of {', '.join(SOURCES)})")
    return SOURCES[name].fetch(Path(root or default_root()), Path(source) if source else None)
