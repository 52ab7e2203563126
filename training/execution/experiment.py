"""Stage 5, training loop: what an execution experiment found, as plain data.

No torch here: whoever prints or stores a result needs none.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Cell = str | int | float | None
"""None: not measured here."""

UNITS = ("seconds", "bytes", "bytes_per_second", "ratio", "count", "difference")
"""How a metric's name ends. `ratio`: a plain quotient; `difference`: largest absolute difference of two results."""


@dataclass(frozen=True)
class Table:
    """Rows under a header; a column of numbers has its unit in its heading."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def __post_init__(self) -> None:
        lengths = {len(row) for row in self.rows} - {len(self.header)}
        if lengths:
            raise ValueError(f"rows: of {sorted(lengths)} cells under {len(self.header)} headings; make them equal")

    def column(self, heading: str) -> list[Cell]:
        """The cells under that heading, from top to bottom."""
        position = self.header.index(heading)
        return [row[position] for row in self.rows]


@dataclass(frozen=True)
class Experiment:
    """One experiment, run on one machine."""

    name: str  # as on the command line
    question: str
    tables: tuple[Table, ...]
    notes: tuple[str, ...]  # what holds on this machine, a sentence or two each
    metrics: Mapping[str, float]  # names end in one of UNITS

    def __post_init__(self) -> None:
        wrong = [name for name in self.metrics if not name.endswith(tuple(f"_{unit}" for unit in UNITS))]
        if wrong:
            raise ValueError(f"metrics: {', '.join(wrong)} without a unit; end names in one of {', '.join(UNITS)}")

    def to_dict(self) -> dict[str, Any]:
        """Data that JSON can hold: NaN and infinities are None."""
        return _plain(dataclasses.asdict(self))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
