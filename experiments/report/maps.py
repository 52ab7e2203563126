"""The squares of a map: its columns and rows, which are ranges where there are too many values."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

MOST_COLUMNS, MOST_ROWS = 10, 12
"""Squares in each direction that still leave room for a number."""


def squares(
    x: Sequence[float], y: Sequence[float], *, x_label: str, y_label: str = "batch size, all workers"
) -> dict[str, Any]:
    """Return a map of cells by two values of each: labels of the axes, names of columns and rows, and places.

    places: column and row of each cell.
    """
    columns, rows = Bins.of(x, MOST_COLUMNS), Bins.of(y, MOST_ROWS)
    return {
        "x": columns.axis(x_label),
        "y": rows.axis(y_label),
        "columns": columns.names,
        "rows": rows.names,
        "places": [[columns.place(across), rows.place(up)] for across, up in zip(x, y, strict=True)],
    }


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
