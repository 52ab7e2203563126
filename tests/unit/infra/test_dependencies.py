"""docs/dependencies.md against pyproject.toml, and pyproject.toml against what the packages import."""

import re
import sys
import tomllib
from itertools import chain

from packaging.requirements import Requirement

from tests.support.studies import REPOSITORY
from tests.unit.infra.manifests import pinned

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
FOLDERS = ("orchestration", "training", "experiments")
MODULES = {"pyyaml": "yaml"}
PARTS = {"pydantic_core": "pydantic"}
"""Modules that come with a package and are its own in all but name."""


def named(requirements):
    """Names of packages, extras included as they are written, without this project's own extras."""
    parsed = [Requirement(text) for text in requirements]
    return {
        f"{each.name}[{','.join(sorted(each.extras))}]" if each.extras else each.name
        for each in parsed
        if each.name != PROJECT["name"]
    }


def sections():
    """The rows of each table of the page, by its heading: the cells of every row."""
    text = (REPOSITORY / "docs" / "dependencies.md").read_text("utf-8")
    found = {}
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        rows = [line.strip("|").split("|") for line in part.splitlines() if line.startswith("| `")]
        found[part.splitlines()[0]] = [[cell.strip() for cell in row] for row in rows]
    return found


def listed(word):
    """The packages of the section whose heading has a word in it."""
    ((_, rows),) = [(heading, rows) for heading, rows in sections().items() if word in heading]
    names = [row[0].strip("`") for row in rows]
    assert len(set(names)) == len(names)
    return set(names)


IMPORT = re.compile(r"^ *(?:from (\w+)[\w.]* import |import (\w+)[\w.]*(?: as \w+)?$)", re.MULTILINE)
"""The linter lets a statement import one module."""


def imported():
    """The packages that the code imports, at the top of a module or later."""
    texts = [file.read_text("utf-8") for folder in FOLDERS for file in (REPOSITORY / folder).rglob("*.py")]
    found = {one or other for text in texts for one, other in IMPORT.findall(text)}
    return {PARTS.get(name, name) for name in found - sys.stdlib_module_names - {PROJECT["name"]}}


def test_the_page_lists_what_the_project_names():
    extras = PROJECT["optional-dependencies"]
    assert listed("To run studies") == named(PROJECT["dependencies"])
    assert listed("[server]") == named(extras["server"])
    assert listed("[gpu]") == named(extras["gpu"])
    assert listed("[docs]") == named(extras["docs"])
    assert listed("[test]") == named(extras["test"])
    assert listed("[dev]") == named(extras["dev"])
    assert set(extras) == {"server", "gpu", "docs", "test", "dev"}


def test_what_is_named_is_imported_and_what_is_imported_is_named():
    names = {Requirement(text).name.lower() for text in PROJECT["dependencies"]}
    assert imported() == {MODULES.get(name, name) for name in names}


def test_every_package_is_pinned():
    wanted = named([*PROJECT["dependencies"], *chain(*PROJECT["optional-dependencies"].values())])
    assert not [name for name in wanted if not pinned(name.partition("[")[0])]
