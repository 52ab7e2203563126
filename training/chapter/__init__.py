"""The execution experiments of Dive into Deep Learning's "Computational Performance", by name.

Each module has `run(device, *, quick=False) -> Experiment`. Nothing here imports torch, so that names can be listed.

Imports the ground floor and models; nothing in training imports it.
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
    """The `run` of that experiment. Raises ValueError if there is none of that name."""
    if name not in EXPERIMENTS:
        raise InputError(f"bench: {name!r} is not known", f"choose one of {', '.join(EXPERIMENTS)}")
    return importlib.import_module(EXPERIMENTS[name]).run
