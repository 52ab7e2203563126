"""Where these packages lie, and whether a folder has modules that would be imported in place of theirs."""

from pathlib import Path

from orchestration.environment import is_there
from orchestration.errors import RequestError

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
