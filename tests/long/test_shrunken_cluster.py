"""A study whose only size the cluster has no more: it ends by put-offs, and goes on when the room is back."""

import os
import re
import signal
import subprocess
from contextlib import suppress

from scalestudy.experiments.study.folder import StudyFolder
from tests.support.drivers import assert_recorded_once
from tests.support.groups import wait_until
from tests.support.processes import is_alive, mentioning, title_of
from tests.support.ray_heads import RAY, head
from tests.support.studies import command, scalestudy, write_spec

PORT = 26485
ADDRESS = f"127.0.0.1:{PORT}"


def join(joined):
    """A second node of one CPU; returns its processes."""
    before = set(mentioning(joined["RAY_TMPDIR"]))
    ports = ["--min-worker-port=0", "--max-worker-port=0"]  # the head's workers have the usual ones
    subprocess.run(
        [RAY, "start", f"--address={ADDRESS}", "--num-cpus=1", *ports], env=joined, capture_output=True, check=True
    )
    return set(mentioning(joined["RAY_TMPDIR"])) - before


def leave(processes):
    """The node goes. Its raylet says so first: one that is killed is missed by health checks alone, which is later."""
    (raylet,) = [pid for pid in processes if "raylet/raylet " in title_of(pid)]
    os.kill(raylet, signal.SIGTERM)
    wait_until(lambda: not is_alive(raylet), 20)
    for pid in processes - {raylet}:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_study_whose_only_size_can_t_be_had_ends_with_its_line_and_is_resumed(tmp_path):
    write_spec(
        tmp_path,
        sweep={"num_gpus": [2], "batch_size": [64], "learning_rate": [0.1], "seed": [0]},
        limits={"stalled_seconds": 3},
        tracking={"uri": f"sqlite:///{tmp_path}/mlflow.db"},
    )
    folder = StudyFolder(tmp_path / "out")
    with head(1, PORT) as joined:
        second = join(joined)
        study = subprocess.Popen(
            command("run", "study.yaml", "--address", ADDRESS, "--out", "out"),
            cwd=tmp_path,
            env=joined,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        wait_until(lambda: folder.journal_folder.exists() and any(folder.journal_folder.iterdir()), 60)
        leave(second)
        printed, _ = study.communicate(timeout=120)
        assert study.returncode == 3, printed
        assert re.search(
            r"each of 1 trial left was put off 3 times, and none ended in between; the last time: no_room: nodes were "
            r"lost or are draining: the cluster has room for 1 workers, and the trial needs 2",
            printed,
        ), printed
        assert folder.read_trials() == []
        join(joined)
        again = scalestudy("resume", "out", "--address", ADDRESS, cwd=tmp_path, **joined)
    assert again.returncode == 0, again.stdout + again.stderr
    (trial,) = folder.read_trials()
    assert (trial["status"], trial["world"]["nodes"]) == ("finished", 2)
    assert {failure["kind"] for failure in trial["failures"]} <= {"no_room", "node_lost", "group_start"}
    assert_recorded_once(folder, tmp_path / "mlflow.db", 2)
