"""What it reads: home, base folder, the package's folder."""

from __future__ import annotations

import os
from pathlib import Path

from scalestudy.orchestration.base.errors import RequestError


def inside_ray_job() -> bool:
    """Whether this process is the entry point of `ray job submit`, whose current folder is a temporary copy."""
    return "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ


def home() -> Path:
    """`$SCALESTUDY_HOME`, by default `~/scalestudy`."""
    return Path(os.environ.get("SCALESTUDY_HOME") or Path.home() / "scalestudy").expanduser().absolute()


def base_folder() -> Path:
    """Where relative paths of a study begin: the current folder, or `home()` inside a Ray job."""
    return home() if inside_ray_job() else Path.cwd()


def is_there(path: Path) -> bool:
    """Whether a path exists; in a folder that may not be entered nothing does, where `Path.exists` would raise."""
    return os.path.exists(path)  # noqa: PTH110


def nearest(path: Path) -> Path:
    """The path itself, or the nearest folder above it that is there. path: absolute."""
    return next(each for each in (path, *path.parents) if is_there(each))


PACKAGES = ("orchestration", "training", "experiments")
ROOT = Path(__file__).resolve().parent.parent
"""The repository, or an environment's site-packages."""


def check_not_hidden(folder: Path) -> None:
    """Raises RequestError where modules of the current folder, in which Ray's workers look first, have our names.

    A folder without `__init__.py`, of data or results, may have any name: Python prefers a package.
    """
    if folder.resolve() == ROOT:
        return
    for path in (path for name in PACKAGES for path in (folder / f"{name}.py", folder / name / "__init__.py")):
        if is_there(path):
            problem = f"{path}: would be imported in place of scalestudy's own module"
            raise RequestError(problem, "rename it, or type the command in another folder")
