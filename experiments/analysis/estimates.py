"""Stage 8, analysis: how an estimate of a law is written into `summary.json`."""

from experiments.analysis.laws.least_squares import Estimate
from experiments.analysis.parts import Part, finite


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
