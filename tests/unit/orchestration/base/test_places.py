"""A folder with modules of our name is told; one with modules named like our folders is a user's own."""

import subprocess
import sys
from pathlib import Path

import pytest

from scalestudy.orchestration.base.errors import RequestError
from scalestudy.orchestration.base.places import check_not_hidden
from tests.support.studies import REPOSITORY, left_behind, ran, scalestudy

MODEL = """
import torch

def build(num_classes, in_channels):
    pool = torch.nn.AdaptiveAvgPool2d(4)
    return torch.nn.Sequential(pool, torch.nn.Flatten(), torch.nn.Linear(16 * in_channels, num_classes))
"""


@pytest.mark.parametrize("file", ["scalestudy.py", "scalestudy/__init__.py"])
def test_a_module_that_would_hide_ours_is_named(tmp_path, file):
    hiding = tmp_path / file
    hiding.parent.mkdir(exist_ok=True)
    hiding.write_text("")
    with pytest.raises(RequestError, match=f"{hiding}: hides scalestudy's own module"):
        check_not_hidden(tmp_path)


def test_a_folder_without_modules_may_have_any_name(tmp_path):
    (tmp_path / "scalestudy" / "runs").mkdir(parents=True)
    check_not_hidden(tmp_path)
    check_not_hidden(REPOSITORY)


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
        f"{tmp_path / 'scalestudy.py'}: hides scalestudy's own module; "
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
