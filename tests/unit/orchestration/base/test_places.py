"""Files of a study's folder that hide modules, and folders that can't be written."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from scalestudy.orchestration.base import places
from scalestudy.orchestration.base.errors import RequestError, UnreachableError
from scalestudy.orchestration.base.places import check_not_hidden
from tests.support import in_process
from tests.support.studies import REPOSITORY, left_behind, ran, scalestudy

MODEL = """
import torch

def build(num_classes, in_channels):
    pool = torch.nn.AdaptiveAvgPool2d(4)
    return torch.nn.Sequential(pool, torch.nn.Flatten(), torch.nn.Linear(16 * in_channels, num_classes))
"""


HIDING = {
    "scalestudy.py": "the installed",
    "scalestudy/__init__.py": "the installed",
    "queue.py": "Python's",
    "logging/__init__.py": "Python's",
    "platform.pyc": "Python's",
    "secrets.abi3.so": "Python's",
    "ray.py": "the installed",
    "mlflow/__init__.py": "the installed",
    "yaml.py": "the installed",
    "numpy.py": "the installed",
    "click.py": "the installed",
}
HARMLESS = [
    *("time.py", "os.py", "stat.py"),  # Python does not look for these in a folder
    *("training", "experiments", "infra", "data", "utils", "models", "config", "test", "tests", "train", "metrics"),
    *("logger", "model", "dataset", "main", "common", "helpers", "types_", "setup", "conftest", "pytest.ini"),
]


@pytest.mark.parametrize("file", HIDING)
def test_a_file_that_hides_a_module_is_named(tmp_path, file):
    hiding = tmp_path / file
    hiding.parent.mkdir(exist_ok=True)
    hiding.write_text("")
    with pytest.raises(RequestError, match=f"^{hiding}: hides {HIDING[file]} module .*; rename it, or "):
        check_not_hidden(tmp_path)


def test_usual_names_hide_nothing(tmp_path):
    for name in HARMLESS:
        (tmp_path / (name if "." in name else f"{name}.py")).write_text("")
    for name in ("scalestudy", "queue", "ray", "notebooks"):
        (tmp_path / name / "runs").mkdir(parents=True)  # a folder of data
    check_not_hidden(tmp_path)
    check_not_hidden(REPOSITORY)
    check_not_hidden(tmp_path / "no such folder")


def test_python_m_looks_before_it_imports(tmp_path):
    """`python -m` puts the current folder first, where pyarrow would find this file."""
    (tmp_path / "queue.py").write_text("raise SystemExit('imported')")
    done = scalestudy("list", cwd=tmp_path, PYTHONPATH=str(REPOSITORY))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"{tmp_path / 'queue.py'}: hides Python's module queue; rename it, or ")


def test_the_home_of_a_container_s_user(monkeypatch, tmp_path):
    monkeypatch.setenv("SCALESTUDY_HOME", "/dev/null/none")
    assert places.home() == Path("/dev/null/none")
    with pytest.raises(
        UnreachableError, match="SCALESTUDY_HOME: /dev/null/none: can't be written; set it, or HOME, to"
    ):
        places.writable_home()
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    with pytest.raises(UnreachableError, match="SCALESTUDY_HOME"):
        places.base_folder()
    monkeypatch.setenv("SCALESTUDY_HOME", str(tmp_path / "new"))
    assert places.base_folder() == tmp_path / "new"


def test_a_home_folder_that_nobody_has(monkeypatch):
    monkeypatch.setenv("HOME", "/srv/ann")
    assert places.expanded("~/runs") == Path("/srv/ann/runs")
    assert places.expanded("~no-such-user/runs") == Path("~no-such-user/runs")


@pytest.mark.parametrize("command", [("status",), ("list", "--storage")])
def test_a_name_that_no_file_can_have(tmp_path, command):
    done = in_process.scalestudy(*command, "n" * 300, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "n: is too long for a file's name; give a shorter one" in done.stderr.replace("/plan.json", "")


def test_nowhere_for_temporary_files(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/dev/null/none"])
    with pytest.raises(UnreachableError, match=r"^TMPDIR: no folder for temporary files can be written"):
        places.temporary_folder()


@pytest.mark.slow
def test_a_user_may_have_modules_named_like_our_folders(tmp_path):
    (tmp_path / "training.py").write_text(MODEL)
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "orchestration.py").write_text("raise SystemExit('imported')")
    own_model = ("--set", "workload.model=training:build", "--set", "workload.model_args={}")
    inspected = scalestudy("plan", "digits-quick", "--rehearse", *own_model, cwd=tmp_path)
    assert (inspected.returncode, inspected.stderr) == (0, "")
    assert "1.36 kB in all" in inspected.stdout


def test_the_command_line_refuses(tmp_path):
    (tmp_path / "scalestudy.py").write_text("raise SystemExit('imported')")
    command = Path(sys.executable).with_name("scalestudy")  # `python -m scalestudy` would run the user's file
    done = subprocess.run([command, "plan", "digits-quick"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"{tmp_path / 'scalestudy.py'}: hides the installed module scalestudy; "
        "rename it, or run the command in another folder\n"
    )
    assert left_behind(tmp_path) == ["scalestudy.py"]


def test_a_job_leaves_its_folder_which_ray_may_replace(tmp_path):
    """As a second raylet of one machine does, which unpacks the job's files over the first one's."""
    program = """
import os, shutil, sys
from pathlib import Path
from scalestudy.orchestration.base.places import outside_job_folder

job = Path.cwd()
sys.path.insert(0, "")
with outside_job_folder():
    shutil.rmtree(job)
    job.mkdir()
    (job / "beside_the_spec.py").write_text("VALUE = 7")
    print(Path.cwd(), __import__("beside_the_spec").VALUE)
print(Path.cwd() == job)
"""
    folder = tmp_path / "job"
    folder.mkdir()
    inside = {"RAY_JOB_CONFIG_JSON_ENV_VAR": "{}", "SCALESTUDY_HOME": str(tmp_path / "home")}
    done = ran([sys.executable, "-c", program], cwd=folder, **inside, PYTHONPATH=str(REPOSITORY))
    assert (done.returncode, done.stdout.split()) == (0, [str(tmp_path), "7", "True"]), done.stderr
