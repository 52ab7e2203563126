"""A number of the summary, or why it is missing.

An estimate is `{value, low, high}`; low and high are null if there is no interval. If the data do not identify it,
`identified` is false and `why` names the measurement that would.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from scalestudy.experiments.analysis.laws.estimate import Estimate

Figure = dict[str, Any]
"""A part of the summary: a figure, or `{"value": null, "why": "…"}` where there is none."""
Summary = Mapping[str, Any]
"""The content of `summary.json`."""
SUMMARY_VERSION = 2
"""Version of the summaries that are written now. `report` makes a summary of another version anew."""
Row = Mapping[str, Any]
"""A row of one of the summary's tables."""
NOTHING = "–"
"""The text for a figure that is missing."""
UNBROKEN = "\u00a0"
"""A space at which no line is broken."""
NO_INTERVAL: Figure = {"low": None, "high": None}
"""The ends of an interval that is not known."""
BEYOND_MEASURE = 1e18
"""Larger than anything a study measures. A larger value is damage, and sums of it would overflow."""


def missing(why: str) -> Figure:
    """Return a figure that the study can't support, with the reason."""
    return {"value": None, "why": why}


def present(figure: Mapping[str, Any] | None) -> bool:
    """Whether a figure is there."""
    return figure is not None and not ("value" in figure and figure["value"] is None)


def finite(value: Any) -> float | None:
    """Return the value as a finite float. None if it is absent, infinite, NaN or no number."""
    if type(value) is not float:  # asked for millions of times in a large study
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < BEYOND_MEASURE:
            return None
        value = float(value)
    return value if -BEYOND_MEASURE < value < BEYOND_MEASURE else None


def positive(value: Any) -> float | None:
    """Return a finite float above zero, else None: a duration of zero or less was not measured."""
    if type(value) is float or type(value) is int:
        return float(value) if 0 < value < BEYOND_MEASURE else None
    number = finite(value)
    return number if number is not None and number > 0 else None


def spread(values: Iterable[float | None], why: str) -> Figure:
    """Return median and range over seeds: value, low, high, n. Missing with this why if there is no value.

    Below five seeds only the range may be claimed (docs/formulas.md §6).
    """
    known = [value for value in values if value is not None]
    if not known:
        return missing(why)
    return {"value": statistics.median(known), "low": min(known), "high": max(known), "n": len(known)}


def median(values: Sequence[float]) -> float | None:
    """Return the median, infinities included. None if there are no values."""
    return statistics.median(values) if values else None


@dataclass(frozen=True)
class Missing:
    """A number that is not there."""

    lack: Literal["not known", "not identified"]  # what is wrong with it
    why: str  # a clause without a full stop

    def __str__(self) -> str:
        return f"{self.lack}: {self.why}"


def part_of(summary: Mapping[str, Any], key: str) -> Figure:
    """Return a part of the summary. Missing if an older version wrote none."""
    part = summary.get(key)
    return dict(part) if part is not None else missing(f"this summary has no {key.replace('_', ' ')}")


def why_of(figure: Mapping[str, Any] | None) -> str:
    """Return why a figure is missing, as a clause without a full stop."""
    return str((figure or {}).get("why") or "it was not measured").rstrip(". ")


def identified(estimate: Mapping[str, Any] | None) -> bool:
    """Whether an estimate has a value that the data identify."""
    return bool(estimate) and present(estimate) and (estimate or {}).get("identified", True) is not False


def number_of(estimate: Mapping[str, Any] | None) -> float | None:
    """Return the value of an estimate, or None if the data do not identify it."""
    return float(estimate["value"]) if estimate is not None and identified(estimate) else None


def interval_of(estimate: Mapping[str, Any] | None) -> tuple[float, float] | None:
    """Return low and high of an estimate, or None if it has none or the data do not identify it."""
    if estimate is None or not identified(estimate) or estimate.get("low") is None or estimate.get("high") is None:
        return None
    return float(estimate["low"]), float(estimate["high"])


def estimate_text(
    estimate: Mapping[str, Any] | None, text: Callable[[float], str], *, space: str = " "
) -> str | Missing:
    """Return `0.71 (0.48 to 0.93)`, or why there is no such number; `–` for an estimate that does not apply.

    space: between the words of the interval; `UNBROKEN` keeps it on one line.
    """
    if estimate is None:
        return NOTHING
    if not identified(estimate):
        return Missing("not identified" if estimate.get("identified") is False else "not known", why_of(estimate))
    value, interval = text(float(estimate["value"])), interval_of(estimate)
    if interval is None:
        return value
    ends = f"{text(interval[0])} to {text(interval[1])}".replace(" ", space)
    return f"{value} ({ends})"


def estimate_part(estimate: Estimate, advice: str = "") -> Figure:
    """Return `{value, low, high}`, null for infinity. If it is not identified, also `identified` false and `why`.

    advice: what would identify it, added to the why.
    """
    figure: Figure = {
        "value": finite(estimate.value),
        "low": None if estimate.low is None else finite(estimate.low),
        "high": None if estimate.high is None else finite(estimate.high),
    }
    if estimate.identified:
        return figure
    return {**figure, "identified": False, "why": "; ".join(text for text in (estimate.why, advice) if text)}


def bound_part(value: float, why: str) -> Figure:
    """Return an estimate made from bounds: it has a value, no interval, and is not identified for this reason."""
    return {"value": finite(value), "low": None, "high": None, "identified": False, "why": why}
