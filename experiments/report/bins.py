"""Stage 9, report: the columns or rows of a map – each value by itself, or of many values ranges of them."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Bins:
    """names: of the columns; of a range where it starts. starts: the least value of each. ranges: whether a column
    stands for several values.
    """

    names: Sequence[str]
    starts: Sequence[float]
    ranges: bool

    @classmethod
    def of(cls, values: Iterable[float], most: int) -> "Bins":
        """A column a value; of more than `most` positive values, so many ranges of equal ratio."""
        distinct = sorted(set(values))
        if len(distinct) <= most or distinct[0] <= 0:
            chosen = distinct[:most]
            return cls([f"{value:g}" for value in chosen], chosen, ranges=False)
        ratio = (distinct[-1] / distinct[0]) ** (1 / most)
        starts = [distinct[0] * ratio**number for number in range(most)]
        return cls([f"{start:.2g}" for start in starts], starts, ranges=True)

    def axis(self, label: str) -> str:
        """The label of an axis."""
        return f"{label}, each a range from" if self.ranges else label

    def said(self, place: int) -> str:
        """A column in a sentence."""
        return f"from {self.names[place]}" if self.ranges else self.names[place]

    def place(self, value: float) -> int:
        """The column of a value; starts of ranges are rounded, so a value that is one but for that belongs there."""
        return max(0, bisect_right(self.starts, value * (1 + 1e-12) if self.ranges else value) - 1)
