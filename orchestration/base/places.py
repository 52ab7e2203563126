"""The places this process reads: the home folder, the base of relative paths, the package's folder and version."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import metadata
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder, all_suffixes
from pathlib import Path

from scalestudy.orchestration.base.errors import RequestError, UnreachableError

UI_HOST, UI_PORT = "127.0.0.1", 5000
"""Where `scalestudy ui` listens by default."""
JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""The variable in which Ray passes a job's metadata to it, as JSON."""


def inside_ray_job() -> bool:
    """Whether `ray job submit` started this process. Its current folder is then a temporary copy."""
    return JOB_CONFIG in os.environ


def expanded(path: str | Path) -> Path:
    """Return a path with the home folder in place of `~`. As in a shell, `~name` stays where there is no such user."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - `Path.expanduser` raises there


def home() -> Path:
    """Return `$SCALESTUDY_HOME`, by default `~/scalestudy`."""
    return expanded(os.environ.get("SCALESTUDY_HOME") or "~/scalestudy").absolute()


def writable_home() -> Path:
    """Return `home()`. Raises UnreachableError if it can't be written, as where a container's user has no home."""
    folder = home()
    if not os.access(nearest(folder), os.W_OK | os.X_OK):
        problem = f"SCALESTUDY_HOME: {folder}: can't be written"
        raise UnreachableError(problem, "set it, or HOME, to a folder that you may write")
    return folder


def base_folder() -> Path:
    """Return where a study's relative paths begin: the current folder, or `home()` inside a Ray job."""
    return writable_home() if inside_ray_job() else Path.cwd()


def temporary_folder() -> Path:
    """Return the folder of this process's temporary files. Raises UnreachableError where none can be written."""
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:
        problem = "TMPDIR: no folder for temporary files can be written, nor /tmp"
        raise UnreachableError(problem, "set it to one that you may write and that has some space") from None


def current_folder() -> Path:
    """Return the current folder. Raises RequestError if it has been removed."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise RequestError("the current folder is gone", "change to another folder") from None


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


def check_machine() -> None:
    """Check what every study needs of this process. Raises RequestError or UnreachableError."""
    check_not_hidden(Path.cwd())
    script = Path(sys.argv[0]).resolve().parent
    if str(script) in sys.path:
        check_not_hidden(script)
    temporary_folder()


def check_not_hidden(folder: Path) -> None:
    """Raise RequestError if a file of a study's folder hides a module of Python, or one that we need.

    Ray's workers look there first, and so does Python. A folder without `__init__.py`, such as one of data, hides
    nothing: Python prefers a package.
    """
    if folder.resolve() == ROOT.resolve():
        return
    with suppress(OSError):  # a folder that we can't list
        files = [each.name for each in folder.iterdir() if "." not in each.name or each.name.endswith(MODULE_FILES)]
        for name in sorted({file.partition(".")[0] for file in files}):
            found = PathFinder.find_spec(name, [str(folder)])
            if found and found.origin and (hidden := _hidden(name, folder)):
                problem = f"{found.origin}: hides {hidden} module {name}"
                raise RequestError(problem, "rename it, or run the command in another folder")


def _hidden(name: str, folder: Path) -> str | None:
    """Return which module a file called `name` in a folder hides: Python's, or an installed one; None: none.

    Python looks for its built-in and frozen modules, such as `time` and `os`, before it looks into any folder.
    """
    if BuiltinImporter.find_spec(name) or FrozenImporter.find_spec(name):
        return None
    if name in sys.stdlib_module_names:
        return "Python's"
    elsewhere = [entry for entry in sys.path if Path(entry).resolve() != folder.resolve()]
    if name == "scalestudy" or (PathFinder.find_spec(name, elsewhere) and name in _needed()):
        return "the installed"
    return None


@cache
def _needed() -> frozenset[str]:
    """Return the modules of the packages that a study may import, with those that these require themselves."""
    packages, left = set[str](), ["scalestudy", "ray", "torch", "torchvision", "mlflow"]
    while left:
        name = _plain(left.pop())
        if name not in packages:
            packages.add(name)
            with suppress(metadata.PackageNotFoundError):
                requires = [each for each in metadata.requires(name) or () if "extra ==" not in each]
                left += [re.split(r"[^\w.-]", each, maxsplit=1)[0] for each in requires]
    modules = metadata.packages_distributions()
    return frozenset(name for name, owners in modules.items() if not packages.isdisjoint(map(_plain, owners)))


def _plain(package: str) -> str:
    """Return a package's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", package).lower()


MODULE_FILES = tuple(all_suffixes())
FROM_A_FOLDER = "0+unknown"
"""The version of a package that is not installed but is imported from a folder, such as one that travels with a job."""


def version() -> str:
    """Return the version of the installed package, or FROM_A_FOLDER."""
    try:
        return metadata.version("scalestudy")
    except metadata.PackageNotFoundError:
        return FROM_A_FOLDER
