"""What `make demo` and its like run: by make itself, which tells it and runs nothing. All of it would take an hour."""

import importlib.util
import os
import re
import subprocess

import pytest

from scalestudy.experiments.spec.reading import catalogue
from tests.support.snippet_words import command_problems, commands
from tests.support.studies import REPOSITORY

TARGETS = {
    "demo": "scalestudy run digits-quick --address local",
    "test": "python -m pytest",
    "test-parts": "python -m pytest --numprocesses auto --dist loadfile --ignore=",
    "test-studies": "python -m pytest tests/orchestration tests/docs",
    "check": "mypy",
    "test-system": "python -m pytest tests/system",
    "dist": "python -m build",
    "docs": "mkdocs build --strict",
    "bench": "python -m tests.bench",
    "bench-peers": "python -m tests.bench_peers",
    "chaos": "python -m tests.chaos",
}


def recipe(*arguments):
    """The commands of a target, the environment's programs by their bare names; also where make runs these tests."""
    told = ["make", "--dry-run", "--always-make", *arguments]
    outside_make = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(told, cwd=REPOSITORY, env=outside_make, capture_output=True, text=True, check=True)
    return commands(done.stdout.replace(".venv/bin/", ""))


@pytest.mark.parametrize("target", TARGETS)
def test_what_the_targets_of_the_makefile_run(target):
    found = recipe(target)
    assert TARGETS[target] in [" ".join(words)[: len(TARGETS[target])] for words in found]
    assert not [problem for words in found for problem in command_problems(words)]
    modules = [words[2] for words in found if words[:2] == ["python", "-m"]]
    assert "pip" in modules  # the environment is made first
    assert all(importlib.util.find_spec(module) for module in modules)


def test_the_demo_is_a_study_of_the_catalogue():
    assert "digits-quick" in catalogue()


def test_what_is_checked_is_what_ci_asks():
    """`make check` is the linter, the format, the types and the tests; CI adds the system tests alone."""
    programs = [words[0] for words in recipe("check")]
    assert programs[-5:] == ["ruff", "ruff", "mypy", "python", "python"]  # test-parts, test-studies
    ci = (REPOSITORY / ".ci" / "run").read_text("utf-8")
    assert re.findall(r"^make (?:--keep-going )?(\S+)$", ci, re.MULTILINE) == ["test", "test-system", "lint"]


def test_an_index_for_torch_reaches_pip():
    (install,) = [words for words in recipe("demo", "TORCH_INDEX=https://x.example") if "install" in words]
    assert install[install.index("--extra-index-url") + 1] == "https://x.example"
