"""Maps of squares, and the columns of a map where there are too many values.

The colour is the palette's blue over the page's ground, so that the map works in light and dark. Every square has a
number, so that nobody has to read a colour.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from scalestudy.experiments.report.drawing import INK, MUTED, PALETTE, PAPER

MOST_COLUMNS, MOST_ROWS = 10, 12
"""Squares in each direction that still leave room for a number."""
FAINT, STRONG = 0.10, 1.0
DARK_FROM = 0.8
"""From this strength of the colour on, the number is white. Below, it has the page's ink."""


@dataclass(frozen=True, kw_only=True)
class Square:
    """One square."""

    column: int
    row: int
    lines: Sequence[str]
    shade: float | None  # 0 (worst) to 1 (best), None without a number
    chosen: bool = False  # outlined


def draw_map(axes: Any, squares: Sequence[Square], columns: Sequence[str], rows: Sequence[str]) -> None:
    """Draw the map. The first row is at the bottom, as on an axis."""
    from matplotlib.colors import to_rgba
    from matplotlib.patches import Rectangle

    for square in squares:
        corner = (square.column - 0.47, square.row - 0.46)
        strength = 0.0 if square.shade is None else FAINT + (STRONG - FAINT) * square.shade
        looks: dict[str, Any] = {"facecolor": to_rgba(PALETTE[0], strength), "linewidth": 0}
        if square.shade is None:
            looks = {"facecolor": "none", "edgecolor": MUTED, "linewidth": 0.5, "hatch": "///"}
        axes.add_patch(Rectangle(corner, 0.94, 0.92, zorder=2, **looks))
        if square.chosen:
            axes.add_patch(
                Rectangle(corner, 0.94, 0.92, facecolor="none", edgecolor=PALETTE[1], linewidth=2.2, zorder=4)
            )
        _write(axes, square, strength, len(columns))
    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(-0.5, len(rows) - 0.5))
    tick_size = 9.0 if sum(len(name) + 2 for name in columns) <= 60 else 7.0  # names stand side by side
    axes.set_xticks(range(len(columns)), columns, fontsize=tick_size)
    axes.set_yticks(range(len(rows)), rows)
    axes.grid(visible=False)
    axes.spines[["left", "bottom"]].set_visible(False)


def _write(axes: Any, square: Square, strength: float, columns: int) -> None:
    size = 8.5 if columns <= 6 else 7.5 if columns <= 8 else 6.5
    for number, line in enumerate(square.lines):
        shift = 5.2 * (len(square.lines) - 1) - 10.4 * number
        text = axes.annotate(
            line,
            (square.column, square.row),
            xytext=(0, shift),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=size if number == 0 else size - 1,
            color="#ffffff" if strength > DARK_FROM else INK,
            zorder=5,
            fontweight="bold" if square.chosen and number == 0 else "normal",
        )
        if square.shade is None:
            text.set_bbox({"boxstyle": "round,pad=0.1", "facecolor": PAPER, "edgecolor": "none"})


def shades(values: Sequence[float]) -> list[float]:
    """Return the strength of each value: 0 for the least, 1 for the greatest. All are 1 if the values are equal."""
    least, most = min(values), max(values)
    return [(value - least) / (most - least) if most > least else 1.0 for value in values]


def height_of(rows: int, lines: int) -> float:
    """Return the height in inches of a map with so many rows of so many lines of text."""
    return 0.75 + rows * (0.26 + 0.16 * lines)


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
        return cls([f"{start:.2g}" for start in starts], starts, ranges=True)

    def axis(self, label: str) -> str:
        """Return the label of an axis."""
        return f"{label}, each a range from" if self.ranges else label

    def place(self, value: float) -> int:
        """Return the column of a value. Starts of ranges are rounded, so a value just below one belongs there too."""
        return max(0, bisect_right(self.starts, value * (1 + 1e-12) if self.ranges else value) - 1)
