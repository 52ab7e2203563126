"""Small studies for tests: written to a folder, run through the Python interface or the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from scalestudy.orchestration.cluster.ray_private import LOOPBACK_ONLY
from tests.support.project_files import REPOSITORY

SMALL: dict[str, Any] = {
    "name": "small",
    "description": "Two sizes, two rates",
    "workload": {"model": "lenet", "data": "digits", "model_args": {"init": "xavier"}},
    "train": {"epochs": 2},
    "sweep": {"num_gpus": [1, 2], "batch_size": [64], "learning_rate": [0.1, 0.2], "seed": [0]},
    "targets": {"accuracy": [0.5]},
}
ANSWERED: dict[str, Any] = {"train": {"epochs": 3}, "targets": {"accuracy": [0.6]}}
"""Sections with which the small study reaches its target, and not at its first evaluation: it names a cell."""


def write_spec(folder: Path, name: str = "study.yaml", **changes: Any) -> Path:
    """Writes the small study with some sections replaced."""
    file = folder / name
    file.write_text(yaml.safe_dump({**SMALL, **changes}), encoding="utf-8")
    return file


def scalestudy(
    *arguments: str | Path, cwd: Path, seconds: float = 240.0, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs the command line in a folder; variables are added to its environment."""
    return ran(command(*arguments), cwd=cwd, seconds=seconds, **variables)


def ran(
    words: Sequence[str | Path], *, cwd: Path = REPOSITORY, seconds: float = 240.0, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end; variables are added to its environment."""
    return subprocess.run(
        words, cwd=cwd, env=environment(**variables), capture_output=True, text=True, timeout=seconds, check=False
    )


def complaint(stderr: str) -> str:
    """What a command says on standard error beside what it waits for."""
    return "".join(line for line in stderr.splitlines(keepends=True) if not line.startswith("waiting for "))


def command(*arguments: str | Path) -> list[str]:
    """The command line in this Python."""
    return [sys.executable, "-m", "scalestudy", *map(str, arguments)]


def environment(**variables: str) -> dict[str, str]:
    """The session's environment with some variables added; no cluster of the session is found by it."""
    session = ("RAY_TMPDIR", "RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH", LOOPBACK_ONLY)
    kept = {name: value for name, value in os.environ.items() if name not in session}
    return {**kept, "PYTHONPATH": str(REPOSITORY), **variables}


def left_behind(folder: Path) -> list[str]:
    """What a command has written below a folder, hidden files included."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def tree(folder: Path) -> dict[Path, tuple[int, bytes | None]]:
    """Every file and folder from a folder on, with when it was changed and its content."""
    return {
        file.relative_to(folder): (file.stat().st_mtime_ns, file.read_bytes() if file.is_file() else None)
        for file in [folder, *folder.rglob("*")]
    }
