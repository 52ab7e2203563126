"""A user's Ray Train loop by `ray job submit` on two raylets: its driver is killed, and a second job goes on."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.experiments.study.journal import Journal
from tests.long.test_job_submit import cluster, variables
from tests.support.groups import wait_until
from tests.support.processes import mentioning, title_of
from tests.support.studies import REPOSITORY, environment

__all__ = ["cluster", "variables"]
pytestmark = pytest.mark.chaos

SPEC = """\
name: loops
workload:
  loop: user_loops:counts
  loop_args: {sleep: 0.5, steps: true}
  metrics: {accuracy: eval_acc, samples: seen}
train: {epochs: 12}
sweep: {num_gpus: [2, 3], batch_size: [96], learning_rate: [0.05], seed: [0]}
targets: {accuracy: [0.5]}
storage: %s
"""


@pytest.fixture
def working_folder(tmp_path):
    """A folder with a spec and a loop, as a user has it."""
    shutil.copy(REPOSITORY / "tests/support/loops.py", tmp_path / "user_loops.py")
    (tmp_path / "loops.yaml").write_text(SPEC % (tmp_path / "runs"))
    return tmp_path


def job(*arguments, folder, variables):
    ray = Path(variables["BIN"]) / "ray"
    python = Path(variables["BIN"]) / "python"
    return subprocess.Popen(
        [ray, "job", "submit", "--working-dir", folder, "--", python, "-m", "scalestudy", *arguments],
        cwd=folder,
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_killed_job_goes_on_from_rays_checkpoint(cluster, variables, working_folder):
    runs = working_folder / "runs"
    first = job("run", "loops.yaml", folder=working_folder, variables=variables)
    wait_until(lambda: sum(entry.type == "epoch" for entry in entries_in(runs)) >= 3, 240)
    (driver,) = [pid for pid in mentioning("loops.yaml") if title_of(pid).split()[1:4] == ["-m", "scalestudy", "run"]]
    os.kill(driver, signal.SIGKILL)
    printed, _ = first.communicate(timeout=120)
    assert first.returncode != 0, printed
    (study,) = runs.iterdir()
    second = job("resume", str(study), folder=working_folder, variables=variables)
    printed, _ = second.communicate(timeout=400)
    assert second.returncode == 0, printed
    trials = StudyFolder(study).read_trials()
    assert [trial["status"] for trial in trials] == ["finished", "finished"]
    assert [[epoch["epoch"] for epoch in trial["epochs"]] for trial in trials] == [list(range(1, 13))] * 2
    assert [[epoch["samples"] for epoch in trial["epochs"]] for trial in trials] == [[960] * 12] * 2
    (hit,) = [trial for trial in trials if trial["attempts"] > 1]
    assert "resumed" in hit["flags"]
    assert [lost["kind"] for lost in hit["failures"]] == ["interrupted"]
    assert any(trial["world"]["nodes"] == 2 for trial in trials)
    told = [(entry.trial_id, entry.event["epoch"]["epoch"]) for entry in entries_in(runs) if entry.type == "epoch"]
    assert len(told) == len(set(told)) == 24


def entries_in(runs):
    return [entry for study in runs.glob("*") for entry in Journal(StudyFolder(study).journal_folder).entries()]
