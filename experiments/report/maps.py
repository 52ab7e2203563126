"""The squares of a map: its columns and rows, which are ranges where there are too many values."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

MOST_COLUMNS, MOST_ROWS = 10, 12
"""Squares in each direction that still leave room for a number."""


def map_axis(label: str, values: Iterable[float], most: int) -> dict[str, Any]:
    """Return one axis of a map: its label, the names of at most so many columns, the values, and the column of each."""
    distinct = sorted(set(values))
    bins = Bins.of(distinct, most)
    places = [bins.place(value) for value in distinct]
    return {"label": bins.axis(label), "names": bins.names, "values": distinct, "places": places}


@dataclass(frozen=True)
class Bins:
    """Columns of a map."""

    names: Sequence[str]  # the value, or the start of a range
    starts: Sequence[float]  # the least value
    ranges: bool  # whether they are ranges

    @classmethod
    def of(cls, values: Iterable[float], most: int) -> "Bins":
        """Make a column for each value; for more than `most`, if all are positive, ranges of equal ratio."""
        distinct = sorted(set(values))
        if len(distinct) <= most or distinct[0] <= 0:
            chosen = distinct[:most]
            return cls([f"{value:g}" for value in chosen], chosen, ranges=False)
        ratio = (distinct[-1] / distinct[0]) ** (1 / most)
        starts = [distinct[0] * ratio**number for number in range(most)]
        return cls([f"{float(f'{start:.2g}'):g}" for start in starts], starts, ranges=True)

    def axis(self, label: str) -> str:
        """Return the label of an axis."""
        return f"{label}, each a range from" if self.ranges else label

    def place(self, value: float) -> int:
        """Return the column of a value. Starts of ranges are rounded, so a value just below one belongs there too."""
        return max(0, bisect_right(self.starts, value * (1 + 1e-12) if self.ranges else value) - 1)
