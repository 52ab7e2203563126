"""The callables of a spec by their names `package.module:name`, also of a spec given in Python as plain data."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from scalestudy.experiments.spec.spec_error import SpecError
from scalestudy.experiments.spec.study_spec import StudySpec, values_in
from scalestudy.training.own_code import named_modules
from scalestudy.training.registry import (
    DATASETS,
    GRADIENT_SYNCS,
    LOSSES,
    METRICS,
    MODEL_FAMILIES,
    MODELS,
    OPTIMIZERS,
    SCHEDULES,
    TASKS,
    TORCH_SCHEDULERS,
)
from scalestudy.training.section import Problem, name_of

SOURCE = "spec"
"""How errors name a spec that is no file."""
BUILT_IN: Mapping[str, Mapping[str, str]] = {
    "model": MODELS,
    "data": DATASETS,
    "loss": LOSSES,
    "metric": METRICS,
    "task": TASKS,
    "gradient_sync": GRADIENT_SYNCS,
    "schedule": SCHEDULES,
}
"""The built-in names by the last part of a field."""


def plain_spec(value: Any, field: str = "") -> Any:
    """Return a spec's value as plain data. field: its dotted name, for errors.

    Raises SpecError for a callable that workers can't import.
    """
    if isinstance(value, Mapping):
        return {str(key): plain_spec(inner, f"{field}.{key}".lstrip(".")) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain_spec(inner, field) for inner in value]
    if isinstance(value, PurePath):
        return str(value)
    if hasattr(value, "tolist"):  # a NumPy array or number
        return value.tolist()
    return import_path(value, field) if callable(value) else value


def import_path(function: Any, field: str) -> str:
    """Return the name `package.module:name` of a callable, or its short name if it is a built-in one.

    Workers are other processes and import it. Raises SpecError for one that can't be imported by its name.
    """
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    shown = f"{module}:{name}" if name else repr(function)

    def refused(why: str) -> SpecError:
        remedy = "write it to a file (in a notebook: %%writefile my_model.py), import my_model, and give my_model.NAME"
        problem = f"{why}, so workers can't import it"
        return SpecError([Problem(field=field, value=shown, line=None, message=problem, remedy=remedy)], SOURCE)

    if not name or not module:
        raise refused("has no name")
    if module == "__main__":
        raise refused("is defined in this session or script")
    if "<" in name:
        raise refused("is a lambda" if "<lambda>" in name else "is defined inside a function")
    if "." in name or getattr(sys.modules.get(module), name, None) is not function:
        raise refused("is not what its module has under that name")
    for short, path in BUILT_IN.get(field.rpartition(".")[2], {}).items():
        home, _, attribute = path.partition(":")
        if getattr(sys.modules.get(home), attribute, None) is function:
            return short
    return f"{module}:{name}"


def named_callables(spec: StudySpec) -> list[tuple[str, str, Mapping[str, str]]]:
    """Return every callable that some trial uses and that isn't built in: field, name, and the table of built-in ones.

    A task has its own metrics, and so has a loop.
    """
    workload = spec.workload
    if workload.loop is not None:
        functions = [(f"workload.datasets.{name}", path) for name, path in workload.datasets.items()]
        return [(field, name, {}) for field, name in [("workload.loop", workload.loop), *functions]]
    judged = ("workload.metric", workload.metric, METRICS)
    named: list[tuple[str, str, Mapping[str, str]]] = [
        ("workload.model", workload.model, MODELS),
        ("workload.data", workload.data, DATASETS),
        ("workload.loss", workload.loss, LOSSES),
        judged if workload.task is None else ("workload.task", workload.task, TASKS),
    ]
    schedules = {**SCHEDULES, **TORCH_SCHEDULERS}
    for key, table in {"gradient_sync": GRADIENT_SYNCS, "optimizer.name": OPTIMIZERS, "schedule": schedules}.items():
        named += [(f"train.{key}", name_of(value), table) for value in values_in(spec, f"train.{key}")]
    return [(field, name, table) for field, name, table in named if name not in table]


def modules_of(spec: StudySpec) -> tuple[str, ...]:
    """Return the user's modules that the spec names, in its order: as callables, and among their arguments."""
    plain = spec.to_dict()
    named = named_modules(plain["workload"], plain["train"], plain["sweep"])
    return tuple(module for module in named if module not in MODEL_FAMILIES)
