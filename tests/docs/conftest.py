"""What pages' folders begin with: one small study, run once, and the repository."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.ports import free_ports
from tests.support.snippet_runs import copy_repository, user_environment
from tests.support.snippets import REPOSITORY_FOLDER, STUDY_FOLDER

MY_STUDY = Path(__file__).parent / "my_study"


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    """Of the user who reads the pages."""
    return tmp_path_factory.mktemp("reader")


@pytest.fixture(scope="session")
def my_study(tmp_path_factory, home):
    """A folder with a spec, its model, MLflow's file and two studies: `runs/my-study-…` and, the same, `runs/other-…`;
    and what the study printed.

    Copies of it go on with MLflow's file of the first one, whose address the study has kept.
    """
    folder = tmp_path_factory.mktemp("my-study")
    for file in MY_STUDY.glob("*.*"):
        shutil.copy(file, folder)
    done = subprocess.run(
        ["scalestudy", "run", "study.yaml"], cwd=folder, env=user_environment(home), capture_output=True, text=True,
        timeout=560, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = (folder / "runs").iterdir()
    _copy_study(run, run.name.replace("my-study", "other"))
    return folder, done.stdout


def _copy_study(run, name):
    """The same records under another study's name, so that there are two to compare."""
    copy = run.parent / name
    shutil.copytree(run, copy, symlinks=True)
    for file in (copy / "plan.json", copy / "summary.json", copy / "report.html"):
        file.write_text(file.read_text("utf-8").replace(run.name, name), encoding="utf-8")


@pytest.fixture
def folder_of(tmp_path, home, request):
    """Makes a page's folder; what its commands find in the environment; what was printed in the folder already."""
    ports = free_ports(4)
    state = f"/tmp/scalestudy-docs-{os.getpid()}"  # short: sockets lie under it
    cluster = dict(zip(("PORT", "DASHBOARD_PORT", "AGENT_PORT"), map(str, ports), strict=False), STATE_DIR=state)

    def make(page):
        folder, variables, printed = tmp_path / "folder", user_environment(home), []
        folder.mkdir()
        if REPOSITORY_FOLDER in page.begins_with:
            copy_repository(folder)
            variables = user_environment(home, PYTHONPATH=str(folder), **cluster)  # of this copy, as `make demo` has it
            request.addfinalizer(lambda: _stop_cluster(folder, variables))
        if STUDY_FOLDER in page.begins_with:
            begun, output = request.getfixturevalue("my_study")
            shutil.copytree(begun, folder, symlinks=True, dirs_exist_ok=True)
            printed.append(("scalestudy run study.yaml\n", output))
        return folder, variables, printed

    return make


def _stop_cluster(folder, variables):
    """Also after a page that failed between `start` and `stop`."""
    if Path(variables["STATE_DIR"]).exists():
        script = folder / "infra" / "local" / "cluster.sh"
        subprocess.run([script, "stop"], env=variables, timeout=120, check=True, stdout=subprocess.DEVNULL)
