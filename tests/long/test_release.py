"""What is released, as far as it shows in seconds; tests/system/test_release.py installs it where nothing is."""

import sys
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

import pytest

from scalestudy.experiments.spec.reading import catalogue
from tests.support.project_files import copy_project
from tests.support.releases import PROJECT, UPLOAD, beside_the_package, done, names_in, packaged_files, pip
from tests.support.studies import REPOSITORY, left_behind

INFO = f"scalestudy-{PROJECT['version']}.dist-info"
VALIDATE_ALL = """
import sys, scalestudy.orchestration.commands.cli
from scalestudy.experiments.spec.reading import catalogue
for name in catalogue():
    scalestudy.orchestration.commands.cli.app(["validate", name], standalone_mode=False)
print(scalestudy.__file__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    place = tmp_path_factory.mktemp("wheel")
    copy = copy_project(place / "copy")
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", place, copy, cwd=place)
    (built,) = place.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel):
    """A folder with what the wheel installs, and nothing else."""
    folder = wheel.parent / "installed"
    pip("install", "--no-deps", "--target", folder, wheel, cwd=wheel.parent)
    return folder


def test_the_wheel_has_the_package_and_nothing_else(wheel):
    names = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "top_level.txt"}
    assert beside_the_package(names_in(wheel)) == {f"{INFO}/{name}" for name in names}


def test_the_wheel_says_what_the_project_says(wheel):
    with ZipFile(wheel) as archive:
        facts = message_from_bytes(archive.read(f"{INFO}/METADATA"))
        scripts = archive.read(f"{INFO}/entry_points.txt").decode()
        assert archive.read(f"{INFO}/licenses/LICENSE") == (REPOSITORY / "LICENSE").read_bytes()
    assert wheel.name == f"scalestudy-{PROJECT['version']}-py3-none-any.whl"
    assert (facts["Version"], facts["License-Expression"]) == (PROJECT["version"], "Apache-2.0")
    assert facts["Description-Content-Type"] == "text/markdown"
    assert facts.get_payload().startswith("# scalestudy\n")
    assert "scalestudy = scalestudy.orchestration.commands.cli:main" in scripts


def test_the_catalogue_is_found_from_any_folder(installed, tmp_path):
    lines = done(sys.executable, "-c", VALIDATE_ALL, cwd=tmp_path, PYTHONPATH=str(installed)).splitlines()
    assert Path(lines[-1]) == installed / "scalestudy" / "__init__.py"
    assert [line.removeprefix("name: ") for line in lines if line.startswith("name: ")] == catalogue()
    command = [sys.executable, "-m", "scalestudy", "plan", "digits-quick"]
    assert "16 trials, 96 epochs" in done(*command, cwd=tmp_path, PYTHONPATH=str(installed))
    assert left_behind(tmp_path) == []


def test_a_job_takes_along_what_is_installed(installed, tmp_path):
    """What `submit` sends of an installation runs alone."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    done(sys.executable, "-c", UPLOAD, tmp_path, "digits-quick", cwd=here, PYTHONPATH=str(installed))
    assert left_behind(here) == []
    with ZipFile(tmp_path / "1.zip") as sent:
        assert {name for name in sent.namelist() if not name.endswith("/")} == packaged_files()
        sent.extractall(there)
    command = [sys.executable, "-m", "scalestudy", "plan", "digits-quick"]
    assert "16 trials, 96 epochs" in done(*command, cwd=there)


def test_a_clone_sends_the_package_once(tmp_path):
    """`ray job submit --working-dir .` from the repository: the packer follows the links, and leaves the rest out."""
    clone = copy_project(tmp_path / "clone")
    done(sys.executable, "-c", UPLOAD, tmp_path, "digits-quick", cwd=clone, PYTHONPATH=str(clone))
    there = tmp_path / "there"
    with ZipFile(tmp_path / "0.zip") as sent:
        names = {name for name in sent.namelist() if not name.endswith("/")}
        sent.extractall(there)
    assert {name for name in names if name.startswith("scalestudy/")} == packaged_files()
    assert not [name for name in names if name.startswith(("orchestration/", "training/", "experiments/", "tests/"))]
    assert "16 trials, 96 epochs" in done(sys.executable, "-m", "scalestudy", "plan", "digits-quick", cwd=there)
