"""A figure with its interval, and what makes one unidentified."""

from dataclasses import dataclass

LEVEL = 0.90
"""Nominal coverage of the intervals."""
ENDS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
"""Quantiles of draws that are the ends of an interval."""
ENDS_AND_MEDIAN = (ENDS[0], 0.5, ENDS[1])
WIDEST_RATIO = 10.0
"""Upper over lower limit. From this ratio on, a figure is not identified: its order of magnitude is unknown."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A figure with its interval."""

    value: float
    low: float | None  # None if the data give none, as for high
    high: float | None
    identified: bool = True
    why: str = ""  # what makes it unidentified


def unknown(value: float, why: str) -> Estimate:
    """Return a figure without an interval."""
    return Estimate(value=value, low=None, high=None, identified=False, why=why)
