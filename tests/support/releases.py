"""What is released: built from a clean copy of the project, and run by people who have no copy of it."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from tests.support.project_files import project_files
from tests.support.studies import REPOSITORY

PACKAGES = ("orchestration", "training", "experiments")
PROJECT: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
OURS = ("PYTHON", "RAY_", "MLFLOW_", "SCALESTUDY_", "VIRTUAL_ENV")
"""How variables begin that could lead from an environment of its own back to this one."""


def outside(**variables: str) -> dict[str, str]:
    """An environment in which nothing of this project is known."""
    return {**{name: value for name, value in os.environ.items() if not name.startswith(OURS)}, **variables}


def done(*command: str | Path, cwd: Path, seconds: float = 120, **variables: str) -> str:
    """What a command printed that ended well, in an environment in which nothing of this project is known."""
    ran = subprocess.run(
        [*map(str, command)], cwd=cwd, env=outside(**variables), capture_output=True, text=True, timeout=seconds,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 0, f"{command}: {ran.returncode}\n{ran.stdout[-3000:]}\n{ran.stderr[-5000:]}"
    return ran.stdout


def pip(*arguments: str | Path, cwd: Path, python: str | Path = sys.executable, seconds: float = 120) -> None:
    """pip, as the Makefile calls it."""
    done(python, "-m", "pip", arguments[0], "--quiet", "--disable-pip-version-check", *arguments[1:],
         cwd=cwd, seconds=seconds)  # fmt: skip


def names_in(wheel: Path) -> set[str]:
    """The files of a wheel."""
    with ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if not name.endswith("/")}


def beside_the_packages(names: set[str]) -> set[str]:
    """The files that stand in no package of ours. Fails where one of a package is missing, or one too many."""
    packaged = {name for name in names if name.partition("/")[0] in PACKAGES}
    assert packaged == set(project_files(*PACKAGES))
    return names - packaged
