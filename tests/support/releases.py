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

PROJECT: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
OURS = ("PYTHON", "RAY_", "MLFLOW_", "SCALESTUDY_", "VIRTUAL_ENV")
"""How variables begin that could lead from an environment of its own back to this one."""


def outside(**variables: str) -> dict[str, str]:
    """An environment in which nothing of this project is known."""
    return {**{name: value for name, value in os.environ.items() if not name.startswith(OURS)}, **variables}


def done(*command: str | Path, cwd: Path, seconds: float = 120, **variables: str) -> str:
    """What a command printed that ended well, in an environment in which nothing of this project is known."""
    ran = subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env=outside(**variables),
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert ran.returncode == 0, f"{command}: {ran.returncode}\n{ran.stdout[-3000:]}\n{ran.stderr[-5000:]}"
    return ran.stdout


def pip(*arguments: str | Path, cwd: Path, python: str | Path = sys.executable, seconds: float = 120) -> None:
    """pip, as the Makefile calls it."""
    quiet = ("--quiet", "--disable-pip-version-check")
    done(python, "-m", "pip", arguments[0], *quiet, *arguments[1:], cwd=cwd, seconds=seconds)


def names_in(wheel: Path) -> set[str]:
    """The files of a wheel."""
    with ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if not name.endswith("/")}


def packaged_files() -> set[str]:
    """The files of the package, by their paths where it is installed."""
    linked = {f"scalestudy/{name}" for name in project_files("orchestration", "training", "experiments")}
    return linked | set(project_files("scalestudy"))


def beside_the_package(names: set[str]) -> set[str]:
    """The files that do not belong to the package. Fails where one of the package is missing, or one too many."""
    packaged = {name for name in names if name.startswith("scalestudy/")}
    assert packaged == packaged_files()
    return names - packaged


UPLOAD = """
import pathlib, sys
from ray._private.ray_constants import get_runtime_env_default_excludes
from ray._private.runtime_env.packaging import create_package
from scalestudy.orchestration.commands.submit import submission
asked = submission(sys.argv[2], [], [], pathlib.Path.cwd()).runtime_env
excludes = [*get_runtime_env_default_excludes(), *asked.get("excludes", ())]
for number, folder in enumerate([asked["working_dir"], *asked.get("py_modules", ())]):
    target = pathlib.Path(sys.argv[1], f"{number}.zip")
    create_package(folder, target, True, include_parent_dir=number > 0, excludes=excludes)
"""
"""Packs what `submit` sends of a study, as Ray's own client does: the current folder, then the package."""
