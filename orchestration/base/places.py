"""Where this process reads: the home folder, the folder of relative paths, the package's own folder and version."""

from __future__ import annotations

import os
from importlib import metadata
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


PACKAGE = Path(__file__).parents[2]
"""The folder of the package. In a clone it holds links, so it is never resolved: a resolved path leads out of it."""

ROOT = PACKAGE.parent
"""The repository, or an environment's site-packages."""


def check_not_hidden(folder: Path) -> None:
    """Raises RequestError where the current folder, in which Ray's workers look first, has a module of our name.

    A folder without `__init__.py`, of data or results, may have any name: Python prefers a package.
    """
    if folder.resolve() == ROOT.resolve():
        return
    for path in (folder / "scalestudy.py", folder / "scalestudy" / "__init__.py"):
        if is_there(path):
            raise RequestError(
                f"{path}: hides scalestudy's own module", "rename it, or run the command in another folder"
            )


FROM_A_FOLDER = "0+unknown"
"""The version where the package is not installed but lies in a folder, as on a cluster where a job took it."""


def version() -> str:
    """The version of the installed package, or FROM_A_FOLDER."""
    try:
        return metadata.version("scalestudy")
    except metadata.PackageNotFoundError:
        return FROM_A_FOLDER
