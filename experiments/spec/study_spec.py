"""`StudySpec`: all sections as one model.

What is wrong is told all at once, each problem with its file, line, field, value and remedy (`SpecError`), before
anything is started or written.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import yaml
from pydantic import Field

from scalestudy.experiments.spec.addresses import redacted
from scalestudy.experiments.spec.sections import (
    FolderName,
    Limits,
    Resources,
    Search,
    Section,
    StorageFolder,
    Targets,
    Tracking,
    Train,
    Workload,
)
from scalestudy.experiments.spec.sweep import Sweep


class StudySpec(Section):
    """One study, resolved: what is trained, what is swept, with what, and what is asked of it."""

    name: FolderName
    """Names the study's folder and its MLflow experiment."""
    description: str = ""
    """The question it answers, for people."""
    workload: Workload = Workload()
    train: Train = Train()
    sweep: Sweep = Field(default_factory=lambda: Sweep.model_validate({}))
    search: Search = Search()
    resources: Resources = Resources()
    targets: Targets = Targets()
    limits: Limits = Limits()
    storage: StorageFolder = "runs"
    """The folder, or the URI such as s3://bucket/runs, that holds the studies' folders."""
    tracking: Tracking = Tracking()

    def to_dict(self) -> dict[str, Any]:
        """Plain data, every default filled in; `StudySpec.model_validate` gives an equal spec, but that the tracking
        address has no password: what is written down or shown is made from this."""
        plain = self.model_dump(mode="json")
        plain["tracking"]["uri"] = self.tracking.uri and redacted(self.tracking.uri)
        plain["sweep"] = {key: values for key, values in plain["sweep"].items() if values is not None}
        return plain

    def to_yaml(self) -> str:
        """The resolved spec as YAML, keys in the order of the design."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)


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
