"""Versions, as the changelog, the command line and the package tell them; tests/long builds the wheel."""

import re
import shutil
import sys

import scalestudy as package
from scalestudy.orchestration.base.places import FROM_A_FOLDER
from tests.support.in_process import scalestudy
from tests.support.releases import PROJECT, done
from tests.support.studies import REPOSITORY


def test_the_changelogs_newest_version_is_the_projects():
    text = (REPOSITORY / "CHANGELOG.md").read_text("utf-8")
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ - \d{4}-\d\d-\d\d", heading) for heading in headings[1:])
    released = [heading.split(" - ") for heading in headings[1:]]
    assert released[0][0] == PROJECT["version"]
    numbers = [([int(part) for part in version.split(".")], day) for version, day in released]
    assert numbers == sorted(numbers, reverse=True)


def test_the_command_line_tells_its_version(tmp_path):
    told = scalestudy("--version", cwd=tmp_path)
    assert (told.returncode, told.stdout) == (0, f"scalestudy {PROJECT['version']}\n")
    assert package.__version__ == PROJECT["version"]


def test_a_folder_that_is_not_installed_has_no_version(tmp_path):
    shutil.copytree(REPOSITORY / "scalestudy", tmp_path / "scalestudy", ignore=shutil.ignore_patterns("__pycache__"))
    code = "import scalestudy; print(scalestudy.__version__)"
    assert done(sys.executable, "-S", "-c", code, cwd=tmp_path) == f"{FROM_A_FOLDER}\n"
