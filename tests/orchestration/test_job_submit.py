"""The same study by a real `ray job submit`, on a local cluster of two raylets with token authentication."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.studies import REPOSITORY, environment

PORT, DASHBOARD_PORT, AGENT_PORT = 26379, 28265, 28365
CLUSTER = REPOSITORY / "infra" / "local" / "cluster.sh"


@pytest.fixture(scope="module")
def variables(tmp_path_factory):
    """What a user has in the environment, with ports of the test's own."""
    home = tmp_path_factory.mktemp("job-home")
    return {
        "BIN": str(Path(sys.executable).parent),
        "PORT": str(PORT),
        "DASHBOARD_PORT": str(DASHBOARD_PORT),
        "AGENT_PORT": str(AGENT_PORT),
        "RAY_AUTH_MODE": "token",
        "RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{DASHBOARD_PORT}",
        "SCALESTUDY_HOME": str(home),
    }


@pytest.fixture(scope="module")
def cluster(variables):
    started = cluster_sh("start", "2", "2", variables=variables)
    assert started.returncode == 0, started.stdout + started.stderr
    yield started.stdout
    cluster_sh("stop", variables=variables)


def cluster_sh(*arguments, variables):
    return subprocess.run(
        [CLUSTER, *arguments], env=environment(**variables), capture_output=True, text=True, timeout=180, check=False
    )


def ray(*arguments, variables, seconds=240):
    tool = Path(sys.executable).parent / "ray"
    return subprocess.run(
        [tool, *arguments], cwd=REPOSITORY, env=environment(**variables), capture_output=True, text=True,
        timeout=seconds, check=False,
    )  # fmt: skip


def submit(*overrides, variables, study="digits-quick"):
    entry = ["python", "-m", "orchestration", "run", study]
    settings = [part for override in overrides for part in ("--set", override)]
    return ray("job", "submit", "--working-dir", ".", "--", *entry, *settings, variables=variables)


def test_the_cluster_has_two_raylets_and_wants_a_token(cluster, variables):
    assert "2 raylets with 2 CPUs each" in cluster
    assert "2 raylets alive" in cluster_sh("status", variables=variables).stdout
    refused = ray("job", "list", variables={**variables, "RAY_AUTH_TOKEN": "not-the-token"})
    assert refused.returncode != 0
    assert cluster_sh("start", variables=variables).returncode == 2, "a second cluster on the same port"


def test_a_submitted_study_leaves_its_results_where_the_job_says(cluster, variables):
    done = submit("train.epochs=1", "sweep.learning_rate=[0.1]", "sweep.seed=[0]", variables=variables)
    printed = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
    assert done.returncode == 0, printed
    assert "succeeded" in printed
    places = re.findall(r"study: +(/\S+?)[;\s]", printed)
    assert len(places) >= 2, "the study's folder is printed first and last"
    assert len(set(places)) == 1
    folder = Path(places[0])
    assert folder.is_relative_to(variables["SCALESTUDY_HOME"])
    trials = [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]
    assert len(trials) == 4
    assert {trial["status"] for trial in trials} == {"finished"}
    assert (folder / "report.html").exists()
    databases = re.findall(r"MLflow: +sqlite:///(/\S+)", printed)
    assert set(databases) == {f"{variables['SCALESTUDY_HOME']}/mlflow.db"}
    assert Path(databases[0]).exists()


def test_a_bad_request_ends_the_job_with_its_message(cluster, variables):
    done = submit("sweep.num_gpus=[64]", "sweep.batch_size=[64]", variables=variables)
    printed = done.stdout + done.stderr
    assert done.returncode != 0
    assert "sweep.num_gpus: 64: the cluster has room for 4 CPU workers" in printed
    assert "exit code 2" in printed


def test_the_upload_is_small():
    """`.rayignore` keeps out what a job does not need: all files but those in the folders that it names."""
    ignored = {line.rstrip("/") for line in (REPOSITORY / ".rayignore").read_text().splitlines()}
    assert {".git", ".venv", "runs"} <= ignored
    files = (path for path in REPOSITORY.rglob("*") if path.is_file())
    sent = [path for path in files if ignored.isdisjoint(path.relative_to(REPOSITORY).parts)]
    assert sum(path.stat().st_size for path in sent) < 5_000_000
    assert REPOSITORY / "training" / "loop.py" in sent
