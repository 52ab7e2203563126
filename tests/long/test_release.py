"""What is released, as far as it shows in seconds; tests/system/test_release.py installs it where nothing is."""

import sys
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

import pytest

from scalestudy.experiments.spec.reading import catalogue
from tests.support.project_files import copy_project, project_files
from tests.support.releases import (
    PACKAGES,
    PROJECT,
    beside_the_packages,
    done,
    names_in,
    pip,
)
from tests.support.studies import REPOSITORY, left_behind

INFO = f"scalestudy-{PROJECT['version']}.dist-info"
VALIDATE_ALL = """
import sys, scalestudy.orchestration.commands.cli
from scalestudy.experiments.spec.reading import catalogue
for name in catalogue():
    scalestudy.orchestration.commands.cli.app(["validate", name], standalone_mode=False)
print(orchestration.__file__)
"""
UPLOADED = """
import os, pathlib, shutil, sys
from scalestudy.orchestration.commands.submit import submission
from scalestudy.orchestration.commands.upload import check_upload, upload_of
asked = submission("digits-quick", [], [], pathlib.Path.cwd())
check_upload(asked.folders)
for folder in asked.folders[1:]:
    for file in upload_of(folder).files:
        target = pathlib.Path(sys.argv[1], folder.name, file)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / file, target)
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


def test_the_wheel_has_the_packages_and_nothing_else(wheel):
    names = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "top_level.txt"}
    assert beside_the_packages(names_in(wheel)) == {f"{INFO}/{name}" for name in names}


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
    assert Path(lines[-1]) == installed / "orchestration" / "__init__.py"
    assert [line.removeprefix("name: ") for line in lines if line.startswith("name: ")] == catalogue()
    command = [sys.executable, "-m", "scalestudy", "plan", "digits-quick"]
    assert "16 trials, 128 epochs" in done(*command, cwd=tmp_path, PYTHONPATH=str(installed))
    assert left_behind(tmp_path) == []


def test_a_job_takes_along_what_is_installed(installed, tmp_path):
    """What `submit` sends of an installation runs alone."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    done(sys.executable, "-c", UPLOADED, there, cwd=here, PYTHONPATH=str(installed))
    assert left_behind(here) == []
    sent = {name for name in left_behind(there) if (there / name).is_file()}
    assert sent == set(project_files(*PACKAGES))
    command = [sys.executable, "-m", "scalestudy", "plan", "digits-quick"]
    assert "16 trials, 128 epochs" in done(*command, cwd=there)
