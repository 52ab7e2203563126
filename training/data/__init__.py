"""Data sets: where their files lie, and how their examples reach the device. Imports the ground floor.

A data set is a callable(root, **data_args) -> Splits: inputs (n, C, …), images (n, C, H, W) float32 in [0, 1] or bytes,
with targets; or, for a task, tensors or torch data sets of any form.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from scalestudy.training.data.cifar import CIFAR10
from scalestudy.training.data.downloads import DataError, FileSource, default_root
from scalestudy.training.data.mnist import FASHION_MNIST, MNIST
from scalestudy.training.data.splits import DatasetSplits, Splits
from scalestudy.training.registry import DATASETS, check_name

SOURCES: Mapping[str, FileSource] = MappingProxyType(
    {source.name: source for source in (MNIST, FASHION_MNIST, CIFAR10)}
)
"""Name -> where its files live and what they must be."""


__all__ = ["DataError", "DatasetSplits", "Splits", "default_root", "fetch", "require"]


def require(name: str, root: str | Path | None = None) -> None:
    """Raise DataError, with the command that helps, if the data set's files are not under root. Load nothing.

    Of a user's callable it checks only the form of the name.
    """
    check_name(name, DATASETS)
    if name in SOURCES:
        SOURCES[name].require(Path(root or default_root()))


def fetch(name: str, root: str | Path | None = None, source: str | Path | None = None) -> list[Path]:
    """Put a data set's files under root, from the folder `source` or, if that is None, from the internet.

    A file appears under its name after its checksum is verified. Return the new files, which may be none. Raises
    DataError if the data set needs no files, or if a file is unreachable, fails its checksum or can't be written.
    """
    check_name(name, DATASETS)
    if name not in SOURCES:
        raise DataError(
            f"data: {name!r} needs no files, so there is nothing to fetch", f"choose one of {', '.join(SOURCES)}"
        )
    return SOURCES[name].fetch(Path(root or default_root()), Path(source) if source else None)
