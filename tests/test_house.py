"""What holds the suite and the house to their size: one proof a promise, bounds on lines and on what tests cost."""

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.support.costs import above, read_bounds
from tests.support.pages import anchors, page_names, page_text
from tests.support.project_files import REPOSITORY as ROOT
from tests.support.project_files import project_files

PACKAGES = ("orchestration", "training", "experiments", "scalestudy")
MOST_LONG = 40
PROMISES = [
    [part.strip() for part in line.split("|")]
    for line in (ROOT / "tests" / "promises.txt").read_text("utf-8").splitlines()
    if line and not line.startswith("#")
]


def lines_of(*folders: str) -> int:
    files = {ROOT / name for folder in folders for name in project_files(f"{folder}/*.py")}
    return sum(len(file.read_text("utf-8").splitlines()) for file in files)


@cache
def names_in(file: Path) -> frozenset[str]:
    """The names of a module's tests."""
    tree = ast.parse(file.read_text("utf-8")) if file.is_file() else ast.Module([], [])
    return frozenset(
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


def is_there(test: str) -> bool:
    """Whether a test is there. test: path::name, from the repository's root on."""
    path, _, name = test.partition("::")
    return name in names_in(ROOT / path)


@pytest.mark.parametrize(("name", "folders"), [("product", PACKAGES), ("tests", ("tests",))])
def test_the_house_does_not_grow_unseen(name, folders):
    found, bound = lines_of(*folders), read_bounds()["lines"][name]
    assert found <= bound, f"{found} lines of {name}, at most {bound} (tests/bounds.toml): see CONTRIBUTING.md"


def test_what_a_run_did_too_often_is_told():
    assert above({"posteriors": 3, "reports": 2}, {"posteriors": 3, "reports": 2}) == []
    assert above({"posteriors": 4, "stores": 1}, {"posteriors": 3}) == [
        "posteriors: 4, at most 3 (tests/bounds.toml)",
        "stores: 1, at most 0 (tests/bounds.toml)",
    ]


def test_long_tests_are_few_and_there():
    listed = read_bounds()["long"]["tests"]
    assert len(listed) <= MOST_LONG
    assert not [test for test in listed if not is_there(test)]


def test_each_heading_of_the_docs_has_its_proofs():
    """An exact test, and one on the real thing; or the word that it explains and promises nothing."""
    headings = {
        f"{page}#{heading}"
        for page in page_names()
        if page == "README.md" or (page.startswith("docs/") and page.count("/") == 1)
        for heading in anchors(page_text(page), depth=2)
    }
    listed = [place for place, *_ in PROMISES]
    assert sorted(listed) == sorted(headings)


def test_the_proofs_of_promises_are_there():
    missing = [test for _, *tests in PROMISES for test in tests if tests != ["explains"] and not is_there(test)]
    assert not missing
    alone = [place for place, *tests in PROMISES if tests != ["explains"] and len(set(tests)) != 2]
    assert not alone
