"""The same study by a real `ray job submit`, on a local cluster of two raylets with token authentication."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.experiments.study.journal import Journal
from scalestudy.orchestration.study.origin import git_commit
from tests.support.groups import wait_until
from tests.support.studies import REPOSITORY, command, complaint, environment, ran, scalestudy

PORT, DASHBOARD_PORT, AGENT_PORT = 26379, 28265, 28365
CLUSTER = REPOSITORY / "infra" / "local" / "cluster.sh"
SECRET = "of-this-job-alone-5d1f"


@pytest.fixture(scope="module")
def variables(tmp_path_factory):
    """What a user has in the environment, with ports of the test's own."""
    home = tmp_path_factory.mktemp("job-home")
    return {
        "BIN": str(Path(sys.executable).parent),
        "PORT": str(PORT),
        "DASHBOARD_PORT": str(DASHBOARD_PORT),
        "AGENT_PORT": str(AGENT_PORT),
        "STATE_DIR": f"/tmp/scalestudy-jobs-{os.getpid()}",  # short: sockets lie under it
        "RAY_AUTH_MODE": "token",
        "RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{DASHBOARD_PORT}",
        "SCALESTUDY_HOME": str(home),
        "RAY_JOB_STOP_WAIT_TIME_S": "30",  # Ray's 3 s are enough, but not for a machine that runs other tests too
    }


@pytest.fixture(scope="module")
def cluster(variables):
    started = cluster_sh("start", "2", "2", variables=variables)
    assert started.returncode == 0, started.stdout + started.stderr
    yield started.stdout
    cluster_sh("stop", variables=variables)


def cluster_sh(*arguments, variables):
    return ran([CLUSTER, *arguments], seconds=180, **variables)


def ray(*arguments, variables, seconds=240):
    tool = Path(sys.executable).parent / "ray"
    return ran([tool, *arguments], cwd=REPOSITORY, seconds=seconds, **variables)


def test_the_cluster_has_two_raylets_and_wants_a_token(cluster, variables):
    assert "2 raylets with 2 CPUs each" in cluster
    assert "2 raylets alive" in cluster_sh("status", variables=variables).stdout
    refused = ray("job", "list", variables={**variables, "RAY_AUTH_TOKEN": "not-the-token"})
    assert refused.returncode != 0
    assert cluster_sh("start", variables=variables).returncode == 2, "a second cluster on the same port"


@pytest.mark.parametrize("token", ["not-the-token", None], ids=["wrong", "none"])
def test_without_the_token_nothing_is_submitted_or_run(cluster, variables, tmp_path, token):
    tokens = {"RAY_AUTH_TOKEN": token} if token else {"RAY_AUTH_TOKEN_PATH": str(tmp_path / "none")}
    wanted = scalestudy("submit", "digits-quick", cwd=REPOSITORY, **variables, **tokens)
    assert (wanted.returncode, wanted.stdout) == (3, ""), wanted.stderr
    assert wanted.stderr.startswith(f"--address: {variables['RAY_API_SERVER_ADDRESS']}: ")
    assert "refuses this token, or requires one" in wanted.stderr
    assert wanted.stderr.count("\n") == 1, "one line"
    assert "not-the-token" not in wanted.stderr
    assert "Traceback" not in wanted.stderr

    run = scalestudy("run", "--address", f"127.0.0.1:{PORT}", cwd=tmp_path, **variables, **tokens)
    assert (run.returncode, run.stdout) == (3, ""), run.stderr
    assert "Traceback" not in run.stderr
    said = complaint(run.stderr)
    assert said.startswith(f"--address: 127.0.0.1:{PORT}: Ray answers, but refuses this process")
    assert "RAY_AUTH_TOKEN" in said
    assert "Failed to connect" not in said, "what Ray says when it has tried for 20 seconds"
    assert said.count("\n") == 1, "one line"
    assert list(tmp_path.iterdir()) == [], "nothing is written"


def test_a_submitted_study_leaves_its_results_where_the_job_says(cluster, variables):
    """Two trials of one size."""
    values = ("train.epochs=1", "sweep.num_gpus=[2]", "sweep.learning_rate=[0.1]", "sweep.seed=[0]")
    entry = ["python", "-m", "scalestudy", "run", "digits-quick"]
    settings = [part for each in values for part in ("--set", each)]
    done = ray("job", "submit", "--working-dir", ".", "--", *entry, *settings, variables=variables)
    printed = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
    assert done.returncode == 0, printed
    assert "succeeded" in printed
    places = re.findall(r"study: +(/\S+?)[;\s]", printed)
    assert len(places) >= 2, "the study's folder is printed first and last"
    assert len(set(places)) == 1
    folder = Path(places[0])
    assert folder.is_relative_to(variables["SCALESTUDY_HOME"])
    trials = [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]
    assert len(trials) == 2
    assert {trial["status"] for trial in trials} == {"finished"}
    assert (folder / "report.html").exists()
    databases = re.findall(r"MLflow: +sqlite:///(/\S+)", printed)
    assert set(databases) == {f"{variables['SCALESTUDY_HOME']}/mlflow.db"}
    assert Path(databases[0]).exists()


@pytest.mark.chaos
def test_a_stopped_job_goes_on(cluster, variables):
    """`ray job stop` is SIGTERM and, three seconds later, SIGKILL: a job leaves out the report, and ends in order."""
    settings = ["train.epochs=12", "sweep.learning_rate=[0.1]", "sweep.seed=[0]", "sweep.num_gpus=[2]"]
    job = subprocess.Popen(
        command("submit", "digits-quick", *(part for each in settings for part in ("--set", each))),
        cwd=REPOSITORY,
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    printed = []
    while not re.search(r"study: +(/\S+?);", "".join(printed)):
        line = job.stdout.readline()
        assert line, "".join(printed)
        printed.append(line)
    folder = StudyFolder(re.search(r"study: +(/\S+?);", "".join(printed))[1])
    number = re.search(r"job: (\S+) at", "".join(printed))[1]
    wait_until(lambda: any(entry.type == "epoch" for entry in Journal(folder.journal_folder).entries()))
    stopped = ray("job", "stop", number, variables=variables)
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    rest, _ = job.communicate(timeout=60)
    assert job.returncode != 0
    assert f"to go on: scalestudy resume {folder.path}" in rest
    assert not (folder.path / "report.html").exists()
    found = json.loads(scalestudy("status", folder.path, "--json", cwd=REPOSITORY).stdout)
    assert (found["state"], found["unsent"]) == ("stopped", 0)

    entry = ["python", "-m", "scalestudy", "resume", str(folder.path)]
    done = ray("job", "submit", "--working-dir", ".", "--", *entry, variables=variables)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [trial["status"] for trial in folder.read_trials()] == ["finished", "finished"]
    assert [len(trial["epochs"]) for trial in folder.read_trials()] == [12, 12]
    first, second = (
        each.event["origin"] for each in Journal(folder.journal_folder).entries() if "origin" in each.event
    )
    assert (first["job"], first["commit"]) == (number, git_commit(REPOSITORY)), "the .git does not travel with the job"
    assert second["job"] not in (None, number)
    assert (first["source"], second["source"]) == ("digits-quick", "digits-quick")


@pytest.fixture(scope="module")
def refused(cluster, variables):
    """A job that asks for more workers than there is room for, and is told a secret: what `submit` said."""
    asks = ("--set", "sweep.num_gpus=[64]", "--set", "sweep.batch_size=[64]")
    told = ("--env", "DATABASE_PASSWORD")
    return scalestudy(*("submit", "digits-quick", *asks, *told), cwd=REPOSITORY, **variables, DATABASE_PASSWORD=SECRET)


def test_a_bad_request_ends_the_job_with_its_message(refused):
    assert refused.returncode == 2
    assert "sweep.num_gpus: 64: the cluster has room for 4 CPU workers" in refused.stdout


def test_a_job_s_secret_is_in_no_log_of_the_cluster(refused, variables):
    """Ray's agents would log a job's variables; nor are they in what the command prints."""
    assert SECRET not in refused.stdout + refused.stderr
    state = Path(variables["STATE_DIR"])
    logs = [*Path("/tmp/ray/session_latest/logs").rglob("*"), *state.rglob("*.log"), *state.rglob("*.out")]
    read = {file: file.read_bytes() for file in logs if file.is_file()}
    assert any(file.name == "runtime_env_agent.log" for file in read)
    assert any(b"has room for 4 CPU workers" in text for text in read.values()), "the job's own log is among them"
    assert [file for file, text in read.items() if SECRET.encode() in text] == []
