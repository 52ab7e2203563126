"""Who runs a study, from what, at which commit and in which job."""

import getpass
import json
import subprocess
from pathlib import Path

import pytest

from scalestudy.orchestration.groups.events import Origin
from scalestudy.orchestration.study import origin
from scalestudy.orchestration.study.origin import git_commit, job_metadata, origin_of

GIT = ("git", "-c", "user.name=ann", "-c", "user.email=ann@localhost", "-c", "commit.gpgsign=false")


@pytest.fixture(autouse=True)
def _here(monkeypatch, tmp_path):
    for name in ("RAY_JOB_CONFIG_JSON_ENV_VAR", "MLFLOW_TRACKING_USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def commit(tmp_path):
    """A repository with a spec in it; its commit."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "study.yaml").write_text("name: mine\n")
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "a spec"]):
        subprocess.run([*GIT, "-C", folder, *arguments], check=True)
    return subprocess.check_output(["git", "-C", folder, "rev-parse", "HEAD"], text=True).strip()


def test_a_spec_in_a_repository(commit):
    found = origin_of("mine/study.yaml")
    assert found == Origin(user=getpass.getuser(), source="mine/study.yaml", commit=commit, job=None)
    assert origin_of(Path("mine/study.yaml")) == found


def test_a_study_of_the_catalogue_comes_from_the_current_folder(commit, monkeypatch):
    assert origin_of("digits-quick") == Origin(user=getpass.getuser(), source="digits-quick")
    monkeypatch.chdir("mine")
    assert origin_of("digits-quick").commit == commit


@pytest.mark.parametrize("folder", ["nowhere", "."])
def test_where_there_is_no_repository_there_is_no_commit(folder):
    assert git_commit(Path(folder)) is None


def test_a_repository_without_a_commit(tmp_path):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    assert git_commit(tmp_path) is None


def test_a_machine_without_git(commit, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_commit(tmp_path / "mine") is None


def test_a_machine_that_has_no_name_for_the_user(monkeypatch):
    def nameless():
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr(origin.getpass, "getuser", nameless)
    assert origin_of("study.yaml").user is None
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ann")
    assert origin_of("study.yaml").user == "ann"


def test_a_job_knows_its_id_and_where_it_was_submitted(commit, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ann")
    told = job_metadata(Path("mine"))
    assert told == {"scalestudy_user": "ann", "scalestudy_git_commit": commit}
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "the cluster's")
    metadata = {"job_submission_id": "raysubmit_1", "job_name": "raysubmit_1", **told}
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps({"runtime_env": {}, "metadata": metadata}))
    assert origin_of("study.yaml") == Origin(user="ann", source="study.yaml", commit=commit, job="raysubmit_1")


@pytest.mark.parametrize("config", ["{}", "not JSON", "[]", '{"metadata": null}', '{"metadata": {}}'])
def test_a_job_s_configuration_of_another_form_is_passed_over(monkeypatch, config):
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", config)
    assert origin_of("study.yaml").job is None


def test_what_is_no_file_has_the_running_script_as_its_source(monkeypatch):
    monkeypatch.setattr(origin.sys, "argv", ["/somewhere/sweep.py"])
    assert origin_of({"name": "a dict"}).source == "sweep.py"
    monkeypatch.setattr(origin.sys, "argv", [""])
    assert origin_of().source == "python"
