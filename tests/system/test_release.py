"""The wheel and the sdist, built as they are released.

The wheel is installed into an empty environment and used from any folder; the sdist beside what the wheel has brought.

Needs a package index, and minutes. The Makefile's TORCH_INDEX counts here too.
"""

import json
import os
import shutil
import sys
import tarfile
from zipfile import ZipFile

import pytest

from scalestudy.experiments.study.folder import StudyFolder
from tests.support.project_files import copy_project
from tests.support.releases import PROJECT, UPLOAD, beside_the_package, done, names_in, packaged_files, pip
from tests.support.studies import REPOSITORY, left_behind

pytestmark = pytest.mark.timeout(1800)

NAME = f"scalestudy-{PROJECT['version']}"
SMALL = (
    "train.epochs=2",
    "sweep.num_gpus=[2]",
    "sweep.batch_size=[128]",
    "sweep.learning_rate=[0.2]",
    "sweep.seed=[0]",
)
WHERE = """
import json, scalestudy, sys
from scalestudy import experiments, orchestration, training
print(json.dumps([[module.__file__ for module in (scalestudy, orchestration, training, experiments)], sys.path]))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of a wheel that was built from the sdist beside it."""
    place = tmp_path_factory.mktemp("built")
    done(sys.executable, "-m", "build", "--outdir", place, copy_project(place / "copy"), cwd=place, seconds=300)
    return place


@pytest.fixture(scope="module")
def user(built, tmp_path_factory):
    """A user's folder with an environment in it that holds what the wheel brings, and nothing else."""
    folder = tmp_path_factory.mktemp("user")
    done(sys.executable, "-m", "venv", ".venv", cwd=folder)
    index = os.environ.get("TORCH_INDEX")
    pip(
        *("install", "--no-compile"),  # Python compiles what the tests import
        *(["--extra-index-url", index] if index else []),
        *("-c", REPOSITORY / "constraints.txt"),
        built / f"{NAME}-py3-none-any.whl",
        cwd=folder,
        python=folder / ".venv/bin/python",
        seconds=1200,
    )
    (folder / "home").mkdir()
    yield folder
    shutil.rmtree(folder / ".venv")  # 2 GB, which pytest would keep for three sessions


@pytest.fixture
def scalestudy(user):
    """The command of that environment, beside Debian's own programs: Ray's workers are started by bash."""

    def run(*arguments, cwd=user, seconds=120):
        places = {"PATH": f"{user / '.venv' / 'bin'}:/usr/bin:/bin", "HOME": str(user / "home")}
        return done("scalestudy", *arguments, cwd=cwd, seconds=seconds, **places)

    return run


def test_what_is_in_the_sdist(built):
    with tarfile.open(built / f"{NAME}.tar.gz") as archive:
        names = {member.name.removeprefix(f"{NAME}/") for member in archive if member.isfile()}
    beside = {name for name in beside_the_package(names) if not name.startswith("scalestudy.egg-info/")}
    wanted = {"CHANGELOG.md", "LICENSE", "MANIFEST.in", "README.md", "constraints.txt", "pyproject.toml"}
    assert beside == wanted | {"PKG-INFO", "setup.cfg"}


def test_what_is_in_the_wheel(built):
    beside = beside_the_package(names_in(built / f"{NAME}-py3-none-any.whl"))
    assert {name.partition("/")[0] for name in beside} == {f"{NAME}.dist-info"}


def test_nothing_of_the_working_copy_is_found(user, scalestudy):
    python = user / ".venv" / "bin" / "python"
    files, path = json.loads(done(python, "-c", WHERE, cwd=user))
    assert all(file.startswith(f"{user}/.venv/lib/") for file in files)
    assert not [entry for entry in path if entry.startswith(str(REPOSITORY))]
    done(python, "-m", "pip", "check", cwd=user)
    assert scalestudy("--version") == f"scalestudy {PROJECT['version']}\n"


def test_a_study_of_the_catalogue_runs(user, scalestudy):
    folder = user / "elsewhere"
    (folder / "scalestudy").mkdir(parents=True)  # a folder of data may have any name
    settings = [part for setting in SMALL for part in ("--set", setting)]
    printed = scalestudy("run", "digits-quick", *settings, cwd=folder, seconds=400)
    (study,) = (folder / "runs").iterdir()
    assert [trial["status"] for trial in StudyFolder(study).read_trials()] == ["finished"]
    assert f"report: {study / 'report.html'}" in printed
    assert (study / "report.html").stat().st_size > 10_000
    assert (folder / "mlflow.db").exists()
    assert scalestudy("report", study, cwd=folder).strip() == str(study / "report.html")


def test_a_new_study_is_written_checked_and_sent(user, scalestudy, tmp_path):
    scalestudy("new", "x")
    assert "name: x\n" in scalestudy("validate", "x.yaml")
    done(user / ".venv/bin/python", "-c", UPLOAD, tmp_path, "x.yaml", cwd=user)
    with ZipFile(tmp_path / "0.zip") as own, ZipFile(tmp_path / "1.zip") as package:
        assert "x.yaml" in own.namelist()
        assert not [name for name in own.namelist() if name.startswith(".venv")]
        assert {name for name in package.namelist() if not name.endswith("/")} == packaged_files()


def test_the_sdist_installs_and_answers(built, user, tmp_path):
    python, target = user / ".venv" / "bin" / "python", tmp_path / "target"
    pip("install", "--no-deps", "--target", target, built / f"{NAME}.tar.gz", cwd=user, python=python, seconds=300)
    places = {"PYTHONPATH": str(target), "HOME": str(user / "home")}
    files, _ = json.loads(done(python, "-c", WHERE, cwd=tmp_path, **places))
    assert all(file.startswith(f"{target}/") for file in files)
    assert done(python, target / "bin" / "scalestudy", "--version", cwd=tmp_path, **places) == (
        f"scalestudy {PROJECT['version']}\n"
    )
    assert "name: digits-quick\n" in done(
        python, target / "bin" / "scalestudy", "validate", "digits-quick", cwd=tmp_path, **places
    )


def test_nothing_is_left_in_the_users_home(user):
    left = left_behind(user / "home")
    assert {name.partition("/")[0] for name in left} <= {".ray", ".cache", ".config"}, left
