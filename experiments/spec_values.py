"""Stage 1, study spec: which values a parameter has in a study's trials, and where the spec says them."""

import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from experiments.spec import StudySpec

INEXACT_SYNCS = ("bf16", "powersgd", "local_sgd")
"""Strategies of train.gradient_sync whose sum is not the gradient of the whole batch."""


def combinations(spec: "StudySpec", first: str, second: str) -> Iterable[tuple[Any, Any]]:
    """Every pair of values of two parameters (`train.*` by their dotted names) that some trial has; of a range, the
    bounds."""
    lists = {key: spec.sweep.values_of(key) for key in (*spec.sweep.lists(), *spec.sweep.ranges())}

    def values(key: str, point: dict[str, Any]) -> Sequence[Any]:
        return (point[key],) if key in point else lists.get(key) or (fixed(spec, key),)

    pairs = [
        pair
        for point in spec.sweep.points or ({},)
        for pair in itertools.product(values(first, point), values(second, point))
    ]
    return {repr(pair): pair for pair in pairs}.values()


def fixed(spec: "StudySpec", key: str) -> Any:
    """The value of a `train.*` key that is not swept."""
    value: Any = spec
    for part in key.split("."):
        value = getattr(value, part)
    return value


def field_of(spec: "StudySpec", key: str) -> str:
    """Where the spec says a parameter's value."""
    if key in spec.sweep.lists() or key in spec.sweep.ranges():
        return f"sweep.{key}"
    return "sweep.points" if spec.sweep.values_of(key) else key


def values_in(spec: "StudySpec", key: str) -> list[Any]:
    """Every value that a parameter has in some trial; of a range, the bounds."""
    return spec.sweep.values_of(key) or [fixed(spec, key)]
