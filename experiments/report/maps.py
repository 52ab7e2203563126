"""The squares of a map: its columns and rows, which are ranges where there are too many values."""

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any

MOST_COLUMNS, MOST_ROWS = 10, 12
"""Squares in each direction that still leave room for a number."""


def map_axis(label: str, values: Iterable[float], most: int) -> dict[str, Any]:
    """Return one axis of a map: its label, the names of at most so many columns, the values, and the column of each.

    Values have a column each. If there are more than `most`, and all are positive, columns are ranges of equal ratio.
    """
    distinct = sorted(set(values))
    if len(distinct) <= most or distinct[0] <= 0:
        names = [f"{value:g}" for value in distinct[:most]]
        places = [min(place, most - 1) for place in range(len(distinct))]
    else:
        ratio = (distinct[-1] / distinct[0]) ** (1 / most)
        starts = [distinct[0] * ratio**number for number in range(most)]
        names = [f"{float(f'{start:.2g}'):g}" for start in starts]
        # starts are rounded, so a value just below one belongs there too
        places = [bisect_right(starts, value * (1 + 1e-12)) - 1 for value in distinct]
        label = f"{label}, each a range from"
    return {"label": label, "names": names, "values": distinct, "places": places}
