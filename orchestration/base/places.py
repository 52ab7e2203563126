"""The places this process reads: the home folder, the base of relative paths, the package's folder and version."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path

from scalestudy.orchestration.base.errors import RequestError

UI_HOST, UI_PORT = "127.0.0.1", 5000
"""Where `scalestudy ui` listens by default."""
JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""The variable in which Ray passes a job's metadata to it, as JSON."""


def inside_ray_job() -> bool:
    """Whether `ray job submit` started this process. Its current folder is then a temporary copy."""
    return JOB_CONFIG in os.environ


def home() -> Path:
    """Return `$SCALESTUDY_HOME`, by default `~/scalestudy`."""
    return Path(os.environ.get("SCALESTUDY_HOME") or Path.home() / "scalestudy").expanduser().absolute()


def base_folder() -> Path:
    """Return where a study's relative paths begin: the current folder, or `home()` inside a Ray job."""
    return home() if inside_ray_job() else Path.cwd()


@contextmanager
def outside_job_folder() -> Iterator[None]:
    """Leave the current folder during the block if this is a Ray job, since Ray may replace that folder under the job.

    A second raylet on the same machine unpacks the job's files into the same place again. The folder's modules can
    still be imported. Outside a Ray job nothing changes.
    """
    if not inside_ray_job():
        yield
        return
    before = None
    with suppress(FileNotFoundError):  # it may be gone already
        before = Path.cwd()
        sys.path[:] = [str(before / entry) for entry in sys.path]  # "" is the current folder
    os.chdir(nearest(home()))
    try:
        yield
    finally:
        with suppress(OSError):
            os.chdir(before or ".")


def is_there(path: Path) -> bool:
    """Whether a path exists. Nothing exists in a folder that we may not enter, where `Path.exists` would raise."""
    return os.path.exists(path)  # noqa: PTH110


def nearest(path: Path) -> Path:
    """Return an absolute path if it exists, else the nearest folder above it that does."""
    return next(each for each in (path, *path.parents) if is_there(each))


PACKAGE = Path(__file__).parents[2]
"""The folder of the package. A clone holds links in it, so it is never resolved: a resolved path leads out of it."""

ROOT = PACKAGE.parent
"""The repository, or an environment's site-packages."""


def check_not_hidden(folder: Path) -> None:
    """Raise RequestError if the current folder has a module of our name, since Ray's workers look there first.

    A folder without `__init__.py`, such as one of data, may have our name: Python prefers a package.
    """
    if folder.resolve() == ROOT.resolve():
        return
    for path in (folder / "scalestudy.py", folder / "scalestudy" / "__init__.py"):
        if is_there(path):
            raise RequestError(
                f"{path}: hides scalestudy's own module", "rename it, or run the command in another folder"
            )


FROM_A_FOLDER = "0+unknown"
"""The version of a package that is not installed but is imported from a folder, such as one that travels with a job."""


def version() -> str:
    """Return the version of the installed package, or FROM_A_FOLDER."""
    try:
        return metadata.version("scalestudy")
    except metadata.PackageNotFoundError:
        return FROM_A_FOLDER
