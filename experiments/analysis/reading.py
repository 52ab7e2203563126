"""Stage 8, analysis: how the parts of a summary are read – those that are missing, and estimates with their intervals.

An estimate is `{value, low, high}`; low and high are null where no interval can be had. Where the data do not identify
it, `identified` is false and `why` names the measurement that would.
"""

from collections.abc import Callable, Mapping
from typing import Any

from experiments.analysis.parts import Part, missing, present

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
