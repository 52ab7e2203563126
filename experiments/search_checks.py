"""Stage 1, study spec: searches and schedulers that can't work."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from experiments.search_space import Space

if TYPE_CHECKING:
    from experiments.spec import StudySpec

Finding = tuple[str, Any, str, str]
"""Field, value, what is wrong, remedy."""


def search_findings(spec: "StudySpec") -> Iterator[Finding]:
    """What is wrong with a spec's search."""
    if spec.search.method in ("grid", "factorised"):
        yield from _grid_of_ranges(spec)
    if spec.search.method == "tpe":
        yield from _nothing_to_suggest(spec)
    yield from _objective(spec)
    if spec.search.scheduler == "asha":
        yield from _no_rungs(spec)


def _grid_of_ranges(spec: "StudySpec") -> Iterator[Finding]:
    for key, values in spec.sweep.ranges().items():
        grid = "a grid" if spec.search.method == "grid" else "a factorised grid"
        message = f"is a distribution, which {grid} can't run"
        yield f"sweep.{key}", values.model_dump(), message, "set search.method: random or tpe, or list the values"


def _nothing_to_suggest(spec: "StudySpec") -> Iterator[Finding]:
    if spec.sweep.points:
        remedy = "list the parameters or give them ranges, or set search.method: random"
        yield "sweep.points", list(spec.sweep.points), "are chosen points, between which tpe can't learn", remedy
    elif Space.of(spec.sweep).count < 2:
        remedy = "list more values, give a range such as learning_rate: {log_uniform: [0.01, 1]}, or use a grid"
        yield "search.method", "tpe", "has one possible point, so that there is nothing to search", remedy


def _objective(spec: "StudySpec") -> Iterator[Finding]:
    objective = spec.search.objective
    if objective == "metric":
        return
    if spec.search.method != "tpe":
        yield "search.objective", objective, "has no effect: only tpe looks for it", "set search.method: tpe"
    elif not spec.targets.accuracy:
        yield "search.objective", objective, "needs a target", "give one, such as targets: {accuracy: [0.9]}"


def _no_rungs(spec: "StudySpec") -> Iterator[Finding]:
    swept = spec.sweep.values_of("train.epochs")
    grace, epochs = spec.search.grace_epochs, (swept or [spec.train.epochs])[0]
    if len(swept) > 1:
        remedy = "set train.epochs to the longest, or scheduler: none"
        yield "search.scheduler", "asha", "decides how long a trial trains, and train.epochs is swept as well", remedy
    elif epochs == 1:
        remedy = "train for more epochs, or set scheduler: none"
        yield "search.scheduler", "asha", "can't stop trials of one epoch early", remedy
    elif grace >= epochs:
        message = f"leaves nothing to stop: trials have {epochs} epochs"
        yield "search.grace_epochs", grace, message, f"use less than {epochs}, or set scheduler: none"
