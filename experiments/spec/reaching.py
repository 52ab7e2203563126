"""When a target is reached: one definition for stopping, search and report. Pure, and light enough for every worker."""

from collections.abc import Sequence
from typing import Literal

Mode = Literal["max", "min"]


def meets(value: float, target: float, mode: Mode) -> bool:
    """Whether a value of the metric is as good as a target. mode: whether more or less of it is better."""
    return value >= target if mode == "max" else value <= target


IN_A_ROW = 2
"""Consecutive evaluations that have to meet a target. A single one that meets it may be chance."""


def arrival(values: Sequence[float], target: float, mode: Mode) -> int | None:
    """Return the position of the first of two consecutive values that meet a target, or None.

    values: one for each evaluation, in order.
    """
    met = 0
    for place, value in enumerate(values):
        met = met + 1 if meets(value, target, mode) else 0
        if met == IN_A_ROW:
            return place - IN_A_ROW + 1
    return None
