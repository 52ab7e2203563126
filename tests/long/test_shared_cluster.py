"""Studies that share a cluster: two at once beside a job that is no study, and one whose cluster must grow first."""

import re
import subprocess
import sys
from contextlib import ExitStack

import pytest

from scalestudy.experiments.study.folder import StudyFolder
from tests.support.drivers import SLOW, assert_recorded_once, outcome
from tests.support.groups import wait_until
from tests.support.preloaded import preloaded_workers
from tests.support.ray_heads import AUTOSCALED_PORT, autoscaled_head, head
from tests.support.studies import command, scalestudy, write_spec

pytestmark = pytest.mark.chaos

PORT = 26479
ADDRESS = f"127.0.0.1:{PORT}"
EPOCHS = 2
LONGEST_SECONDS = 240
WAITS = r"room for 2 workers \(\d+ s\): other work on the cluster holds the room of 3 of 4"
SWEEP = {"num_gpus": [2], "batch_size": [64], "learning_rate": [0.1], "seed": [0, 1]}
STUDY = {"workload": SLOW, "train": {"epochs": EPOCHS}, "resources": {"exclusive": False}, "sweep": SWEEP}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared")
    write_spec(folder, **STUDY)
    return folder


@pytest.fixture(scope="module")
def said(place):
    """What two studies have printed that ran at once on four CPUs, three of which a job held until both said so."""
    foreign = [sys.executable, "-m", "tests.support.foreign_job", ADDRESS, "3", str(LONGEST_SECONDS)]
    logs = {out: place / f"{out}.log" for out in ("one", "two")}
    with ExitStack() as stack:
        joined = stack.enter_context(head(4, PORT, python=stack.enter_context(preloaded_workers())))
        job = stack.enter_context(subprocess.Popen(foreign, env=joined, stdout=subprocess.PIPE, text=True))
        assert job.stdout.readline() == "held\n"
        studies = [
            subprocess.Popen(
                command(
                    *("run", "study.yaml", "--address", ADDRESS),
                    *("--out", out, "--set", f"tracking.uri=sqlite:///{out}.db"),
                ),
                cwd=place,
                env=joined,
                stdout=stack.enter_context(log.open("w")),
                stderr=subprocess.STDOUT,
            )
            for out, log in logs.items()
        ]
        try:
            wait_until(lambda: all(re.search(WAITS, log.read_text()) for log in logs.values()), LONGEST_SECONDS)
        except TimeoutError:
            for process in (job, *studies):
                process.kill()
            raise TimeoutError([log.read_text() for log in logs.values()]) from None
        assert job.poll() is None, "nobody has disturbed it"
        job.terminate()
        statuses = [study.wait(280) for study in studies]
    printed = {out: log.read_text() for out, log in logs.items()}
    assert statuses == [0, 0], printed
    return printed


def test_both_end_with_every_trial_once_and_nobody_is_blamed(said, place):
    results = [outcome(StudyFolder(place / out)) for out in said]
    assert results[0] == results[1]
    assert len(results[0]) == 2
    for out in said:
        trials = StudyFolder(place / out).read_trials()
        assert [(trial["attempts"], trial.get("failures") or []) for trial in trials] == [(1, [])] * 2, out
        assert_recorded_once(StudyFolder(place / out), place / f"{out}.db", EPOCHS)


def test_who_waits_says_for_what(said):
    for out, printed in said.items():
        assert re.search(WAITS, printed), out


def test_what_trained_beside_others_is_flagged(said, place):
    """The first trials of both were there together."""
    for out in said:
        assert any("shared_node" in trial["flags"] for trial in StudyFolder(place / out).read_trials()), out


def test_a_trial_larger_than_the_cluster_waits_for_its_autoscaler(tmp_path):
    write_spec(tmp_path, **{**STUDY, "sweep": {**SWEEP, "num_gpus": [4], "seed": [0]}})
    with autoscaled_head(2, 1) as joined:
        arguments = ("run", "study.yaml", "--address", f"127.0.0.1:{AUTOSCALED_PORT}", "--out", "out")
        done = scalestudy(*arguments, cwd=tmp_path, **joined)
    assert done.returncode == 0, done.stdout + done.stderr
    (trial,) = StudyFolder(tmp_path / "out").read_trials()
    assert (trial["status"], trial["attempts"], trial["world"]["nodes"]) == ("finished", 1, 2)
