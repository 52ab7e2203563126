"""A number, or why it is missing, in the summary.

An estimate is `{value, low, high}`; low and high are null where no interval can be had. Where the data do not identify
it, `identified` is false and `why` names the measurement that would.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from scalestudy.experiments.analysis.laws.least_squares import Estimate

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


NOTHING = "–"


def part_of(summary: Mapping[str, Any], key: str) -> Part:
    """A part of the summary; missing where an older version wrote none."""
    part = summary.get(key)
    return dict(part) if part is not None else missing(f"this summary has no {key.replace('_', ' ')}")


def why_of(part: Mapping[str, Any] | None) -> str:
    """Why a part or an estimate can't be had, as a clause without a full stop."""
    return str((part or {}).get("why") or "it was not measured").rstrip(". ")


def identified(estimate: Mapping[str, Any] | None) -> bool:
    """Whether an estimate has a value that the data identify."""
    return bool(estimate) and present(estimate) and (estimate or {}).get("identified", True) is not False


def number_of(estimate: Mapping[str, Any] | None) -> float | None:
    """The value of an estimate that the data identify; None of any other."""
    return float(estimate["value"]) if estimate is not None and identified(estimate) else None


def interval_of(estimate: Mapping[str, Any] | None) -> tuple[float, float] | None:
    """low and high of an estimate that the data identify; None where there are none."""
    if estimate is None or not identified(estimate) or estimate.get("low") is None or estimate.get("high") is None:
        return None
    return float(estimate["low"]), float(estimate["high"])


def estimate_text(estimate: Mapping[str, Any] | None, text: Callable[[float], str]) -> str:
    """`0.71 (0.48 to 0.93)`, or in words why there is no such number."""
    if estimate is None:
        return NOTHING
    if not identified(estimate):
        known = "identified" if estimate.get("identified") is False else "known"
        return f"not {known}: {why_of(estimate)}"
    interval = interval_of(estimate)
    value = text(float(estimate["value"]))
    return value if interval is None else f"{value} ({text(interval[0])} to {text(interval[1])})"


def estimate_part(estimate: Estimate, advice: str = "") -> Part:
    """`{value, low, high}`, null for what is infinite; where it is not identified also that, and why.

    advice: what would identify it, added to the why.
    """
    part: Part = {"value": finite(estimate.value), "low": _end(estimate.low), "high": _end(estimate.high)}
    if estimate.identified:
        return part
    return {**part, "identified": False, "why": "; ".join(text for text in (estimate.why, advice) if text)}


def bound_part(value: float, why: str) -> Part:
    """An estimate from figures that are bounds: its value, no interval, and why it is not identified."""
    return {"value": finite(value), "low": None, "high": None, "identified": False, "why": why}


def _end(value: float | None) -> float | None:
    return None if value is None else finite(value)
