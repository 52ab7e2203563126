"""The execution experiments of *Dive into Deep Learning*, chapter "Computational Performance", by name.

Each experiment's module has `run(device, *, quick=False) -> Experiment`. This file imports no torch, so the command
line can list the names quickly. The room imports the ground floor and models; nothing in training imports it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from scalestudy.training.exceptions import InputError

EXPERIMENTS: Mapping[str, str] = MappingProxyType(
    {
        "async": "scalestudy.training.chapter.asynchronous",
        "compile": "scalestudy.training.chapter.compilation",
        "export": "scalestudy.training.chapter.exporting",
        "parallel": "scalestudy.training.chapter.parallelism",
        "overlap": "scalestudy.training.chapter.overlapping",
        "allreduce": "scalestudy.training.chapter.summing",
    }
)
"""Name -> module with a `run`."""


def find_experiment(name: str) -> Callable[..., Any]:
    """Returns the `run` of an experiment. Raises ValueError for an unknown name."""
    if name not in EXPERIMENTS:
        raise InputError(f"bench: {name!r} is not known", f"choose one of {', '.join(EXPERIMENTS)}")
    return importlib.import_module(EXPERIMENTS[name]).run
