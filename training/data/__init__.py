"""Stage 5, training loop: data sets as tensors (importing this package imports no torch).

Shapes: n examples, C channels, H × W pixels. Inputs (n, C, H, W) float32 in [0, 1], targets (n,) int64 in 0 … K - 1.
A data set is a callable(root, **data_args) -> Splits; `require` says, cheaply and before anything starts, whether its
files are there, and `fetch` puts them there.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from training.data.idx import SOURCES, DataError, fetch_source, require_source
from training.registry import DATASETS, check_name

if TYPE_CHECKING:
    import torch

__all__ = ["DataError", "Splits", "default_root", "fetch", "require"]


@dataclass(frozen=True)
class Splits:
    """A training and a test set, whole, on one device."""

    train_inputs: torch.Tensor  # (n, C, …) float
    train_targets: torch.Tensor  # (n,) int64
    test_inputs: torch.Tensor  # (m, C, …) float
    test_targets: torch.Tensor  # (m,) int64
    num_classes: int  # K

    def __post_init__(self) -> None:
        for split in ("train", "test"):
            inputs, targets = getattr(self, f"{split}_inputs"), getattr(self, f"{split}_targets")
            if not len(inputs) == len(targets) > 0 or inputs.dim() < 2 or targets.dim() != 1:
                raise DataError(
                    f"data: {split} inputs {tuple(inputs.shape)} and targets {tuple(targets.shape)} do not fit; "
                    "give (n, C, ...) inputs and n targets, n above 0"
                )

    @property
    def in_channels(self) -> int:
        """C, the second dimension of the inputs."""
        return self.train_inputs.shape[1]

    def to(self, device: torch.device) -> Splits:
        """The same data on the device."""
        names = ("train_inputs", "train_targets", "test_inputs", "test_targets")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})


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
        require_source(SOURCES[name], Path(root or default_root()))


def fetch(name: str, root: str | Path | None = None, source: str | Path | None = None) -> list[Path]:
    """Put a data set's files under root, from the folder `source` or, if that is None, from the internet.

    Checksums are verified before a file appears under its name. Returns the files that were new: none if all were
    there. Raises DataError if the data set needs no files, or a file can't be had, fails its checksum or can't be
    written.
    """
    check_name(name, DATASETS)
    if name not in SOURCES:
        raise DataError(f"data: {name!r} needs no files; nothing to fetch (choose one of {', '.join(SOURCES)})")
    return fetch_source(SOURCES[name], Path(root or default_root()), Path(source) if source else None)
