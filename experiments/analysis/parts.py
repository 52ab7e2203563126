"""Stage 8, analysis: how a number, or the lack of one, is written into `summary.json`."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Part = dict[str, Any]
"""A part of the summary; where it can't be had, `{"value": null, "why": "…"}`."""


def missing(why: str) -> Part:
    """A part that the study can't support, and why."""
    return {"value": None, "why": why}


def present(part: Mapping[str, Any] | None) -> bool:
    """Whether a part is there."""
    return part is not None and not ("value" in part and part["value"] is None)


BEYOND_MEASURE = 1e18
"""Nothing a study measures is as large; what is, is damage, and its sums would overflow."""


NUMBERS = (int, float)


def finite(value: Any) -> float | None:
    """A finite float, or None for what is absent, infinite, not a number, or no number at all."""
    if isinstance(value, bool) or not isinstance(value, NUMBERS) or not abs(value) < BEYOND_MEASURE:
        return None
    return float(value)


def positive(value: Any) -> float | None:
    """A finite float above zero, or None: a duration that is zero or negative was not measured."""
    number = finite(value)
    return number if number is not None and number > 0 else None


def spread(values: Iterable[float | None], why: str) -> Part:
    """Median and range over seeds: value, low, high, n. Without any value, missing with this why.

    Below five seeds the range is all that may be claimed (docs/formulas.md §6).
    """
    known = [value for value in values if value is not None]
    if not known:
        return missing(why)
    return {"value": statistics.median(known), "low": min(known), "high": max(known), "n": len(known)}


def median(values: Sequence[float]) -> float | None:
    """The median, or None of nothing; infinities take part."""
    return statistics.median(values) if values else None
