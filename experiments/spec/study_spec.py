"""`StudySpec`: all sections as one model, and the values that a parameter takes in it."""

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
    TrainSection,
    Workload,
)
from scalestudy.experiments.spec.sweep import Sweep
from scalestudy.training.config import value_of


class StudySpec(Section):
    """One study with every default filled in: what is trained, which parameters vary, on which resources, and why."""

    name: FolderName
    """Names the study's folder and its MLflow experiment."""
    description: str = ""
    """The question that the study answers, for people."""
    workload: Workload = Workload()
    train: TrainSection = Train()
    sweep: Sweep = Field(default_factory=lambda: Sweep.model_validate({}))
    search: Search = Search()
    resources: Resources = Resources()
    targets: Targets = Targets()
    limits: Limits = Limits()
    storage: StorageFolder = "runs"
    """The folder, or the URI such as s3://bucket/runs, that holds the studies' folders."""
    tracking: Tracking = Tracking()

    def to_dict(self) -> dict[str, Any]:
        """Plain data with every default filled in. `StudySpec.model_validate` gives an equal spec.

        The tracking address loses its password, since everything stored or shown is made from this.
        """
        plain = self.model_dump(mode="json")
        plain["tracking"]["uri"] = self.tracking.uri and redacted(self.tracking.uri)
        plain["sweep"] = {key: values for key, values in plain["sweep"].items() if values is not None}
        return plain

    def to_yaml(self) -> str:
        """The resolved spec as YAML, with the sections in the order of this class."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)


def values_in(spec: StudySpec, key: str) -> list[Any]:
    """Every value that a parameter has in some trial, or the bounds of its range.

    Keys of `train` include their section, here and below: `train.lr_rule`.
    """
    return spec.sweep.values_of(key) or [value_of(spec, key)]


def combinations(spec: StudySpec, first: str, second: str) -> Iterable[tuple[Any, Any]]:
    """Every pair of values that two parameters have in the same trial. A range gives its bounds."""
    lists = {key: spec.sweep.values_of(key) for key in (*spec.sweep.lists(), *spec.sweep.ranges())}

    def values(key: str, point: dict[str, Any]) -> Sequence[Any]:
        return (point[key],) if key in point else lists.get(key) or (value_of(spec, key),)

    pairs = [
        pair
        for point in spec.sweep.points or ({},)
        for pair in itertools.product(values(first, point), values(second, point))
    ]
    return {repr(pair): pair for pair in pairs}.values()


def field_of(spec: StudySpec, key: str) -> str:
    """The field of the spec that sets a parameter."""
    if key in spec.sweep.lists() or key in spec.sweep.ranges():
        return f"sweep.{key}"
    return "sweep.points" if spec.sweep.values_of(key) else key
