"""What is released: built from a clean copy of the project, and run by people who have no copy of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from tests.support.studies import REPOSITORY

PACKAGES = ("orchestration", "training", "experiments")
PROJECT: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
OURS = ("PYTHON", "RAY_", "MLFLOW_", "SCALESTUDY_", "VIRTUAL_ENV")
"""How variables begin that could lead from an environment of its own back to this one."""


def project_files(*places: str) -> list[str]:
    """The project's own files below some places: tracked, or new and not ignored."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *places]
    listed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    return sorted({name for name in listed.splitlines() if (REPOSITORY / name).exists()})


def clean_copy(folder: Path) -> Path:
    """The project in a folder of its own, without what lies about in a working tree."""
    for name in project_files("."):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, folder / name)
    return folder


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
