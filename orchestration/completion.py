"""What a shell offers when Tab is pressed after `scalestudy …`. Where nothing is offered, the shell names files itself.

It runs anew at every press, so nothing here imports Ray, torch or MLflow, and no more than a folder or two is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from glob import escape, glob
from pathlib import Path

from experiments.catalogue import catalogue

Completion = Callable[[str], list[str]]

STUDY_MARK = "plan.json"
"""The file by which a study's folder is known."""


def specs(incomplete: str) -> list[str]:
    """Studies of the catalogue, and the YAML files that begin so."""
    names = [name for name in catalogue() if name.startswith(incomplete)]
    return [*names, *_files(incomplete, "*.yaml", "*.yml")]


def folders(incomplete: str) -> list[str]:
    """Studies' folders that begin so, or that lie in a folder which does."""
    return [str(Path(mark).parent) for mark in _files(incomplete, f"*/{STUDY_MARK}", f"*/*/{STUDY_MARK}")]


def experiments(incomplete: str) -> list[str]:
    """What `bench` can run."""
    from training.execution import EXPERIMENTS

    return _begun(incomplete, [*EXPERIMENTS, "max-batch"])


def data_sets(incomplete: str) -> list[str]:
    """What `data fetch` can fetch."""
    from training.data.sources import SOURCES

    return _begun(incomplete, SOURCES)


def words(*choices: str) -> Completion:
    """A completion by fixed words."""

    def choose(incomplete: str) -> list[str]:
        return _begun(incomplete, choices)

    return choose


def _files(incomplete: str, *endings: str) -> list[str]:
    begun = escape(incomplete)
    return sorted(file for ending in endings for file in glob(begun + ending))  # noqa: PTH207 - it may be absolute


def _begun(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
