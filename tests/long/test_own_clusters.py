"""Clusters that commands start for themselves: how they start, and end by a signal."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from scalestudy.orchestration.cluster.ports import QUIET_PORTS
from tests.support.drivers import Driver
from tests.support.project_files import REPOSITORY
from tests.support.studies import command, environment, ran, scalestudy, write_spec

SLOW = {"model": "tests.support.user_models:Slow", "data": "digits", "model_args": {"seconds": 0.05}}
CONNECT = """
import os
from scalestudy.orchestration.base.environment import prepare_environment
prepare_environment()
from scalestudy.orchestration.base.errors import UnreachableError
from scalestudy.orchestration.cluster.connection import connect
"""


def printed_by(code, variables):
    """What a process prints in which a study could connect."""
    done = subprocess.run(
        [sys.executable, "-c", CONNECT + code], env=variables, check=True, timeout=240, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.mark.chaos
def test_doctor_finds_this_machine_well(tmp_path):
    done = scalestudy("doctor", "--json", cwd=tmp_path)
    findings = {finding["name"]: finding["state"] for finding in json.loads(done.stdout)}
    assert {"ray", "torch", "torchvision", "mlflow", "devices", "Ray token", "data", "tracking", "Ray"} <= set(findings)
    assert done.returncode == (1 if "broken" in findings.values() else 0)
    assert "broken" not in {findings[name] for name in ("ray", "torch", "torchvision", "mlflow", "data", "tracking")}


@pytest.mark.chaos
def test_two_workers_on_two_cpus_do_not_deadlock(tmp_path):
    spec = write_spec(tmp_path, sweep={"num_gpus": [2], "batch_size": [64], "learning_rate": [0.1]})
    script = (
        "import ray; from scalestudy import run_study\n"
        "from scalestudy.orchestration.cluster.connection import connect\n"
        "connect('local', num_cpus=2)\n"
        f"done = run_study({str(spec)!r})\n"
        "print(done.exit_code, done.summary['trials']['finished'])\n"
    )
    (tmp_path / "two.py").write_text(script)
    done = ran([command()[0], "two.py"], cwd=tmp_path, seconds=120)
    assert done.stdout.split()[-2:] == ["0", "1"], done.stderr


@pytest.mark.parametrize(
    "sent_by",
    [
        pytest.param(signal.SIGTERM, id="timeout"),
        pytest.param(signal.SIGHUP, id="a closed terminal", marks=pytest.mark.chaos),
    ],
)
def test_a_signal_to_all_processes_stops_the_study_and_keeps_what_has_ended(tmp_path, sent_by):
    rates = [0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08]
    sweep = {"num_gpus": [1], "batch_size": [256], "learning_rate": rates}
    write_spec(tmp_path, workload=SLOW, sweep=sweep, train={"epochs": 2})
    driver = Driver(tmp_path, "out")
    driver.wait_for("ended", 1)
    sent = time.monotonic()
    status, printed = driver.send(sent_by)
    assert status == 143, printed
    assert "Traceback" not in printed
    assert "stopped" in printed
    assert time.monotonic() - sent < 30
    trials = driver.folder.read_trials()
    assert 0 < len(trials) < len(rates)
    assert {trial["status"] for trial in trials} == {"finished"}
    assert driver.folder.report_file.exists()


STARTED = """
import json
from ray.dashboard.utils import ray_address_to_api_server_url

cluster = connect("local", num_cpus=1)
print(json.dumps({
    "home": str(cluster.home),
    "rights": oct(cluster.home.stat().st_mode)[-3:],
    "dashboard": ray_address_to_api_server_url(cluster.address),
    "variables": dict(os.environ),
}))
cluster.disconnect()
print(json.dumps(dict(os.environ)))
"""


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """A cluster, where the user names a folder for Ray, and the one of temporary files has a long path.

    What a process was told before it connected, of its cluster, and its environment afterwards.
    """
    home, far = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("far" * 30)
    with tempfile.TemporaryDirectory(dir="/tmp") as named:
        told = environment(HOME=str(home), RAY_TMPDIR=named, TMPDIR=str(far))
        while_connected, afterwards = map(json.loads, printed_by(STARTED, told).splitlines())
    return told, while_connected, afterwards


def test_a_cluster_has_its_own_token(started):
    """In its folder, which only its owner may enter; nothing is written to the home folder, which may be read-only."""
    told, cluster, afterwards = started
    assert cluster["rights"] == "700"
    assert cluster["variables"]["RAY_AUTH_TOKEN_PATH"] == f"{cluster['home']}/token"
    assert cluster["variables"]["RAY_AUTH_MODE"] == "token"
    assert not {"RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"} & afterwards.keys()
    assert list(Path(told["HOME"]).iterdir()) == []


def test_nobody_answers_for_the_dashboard_that_is_not_started(started):
    """Ray Train's cleaner asks there whether a group still lives; another cluster would say no."""
    _, cluster, _ = started
    host, _, port = cluster["dashboard"].removeprefix("http://").rpartition(":")
    assert host == "127.0.0.1"
    assert int(port) in QUIET_PORTS


def test_a_long_folder_of_temporary_files_is_replaced(started):
    """Sockets lie in the temporary folder, and their paths are bounded to some hundred bytes.

    Where Ray's folder is without RAY_TMPDIR: tests/unit/orchestration/cluster/test_connection.py.
    """
    told, cluster, afterwards = started
    assert cluster["variables"]["TMPDIR"] == cluster["home"]
    assert afterwards["TMPDIR"] == told["TMPDIR"]


def test_a_folder_that_the_user_names_for_ray_is_used_and_named_again_afterwards(started):
    told, cluster, afterwards = started
    assert str(Path(cluster["home"]).parent) == afterwards["RAY_TMPDIR"] == told["RAY_TMPDIR"]


HELPERS = """
import os, pathlib, sys, time

helper = any("agent" in each for each in sys.orig_argv)
if helper and "first" in os.environ["HELPERS"]:
    starts = pathlib.Path(os.environ["STARTS"])
    (starts / str(os.getpid())).touch()
    time.sleep(45 if len(list(starts.iterdir())) <= 2 else 0)
if helper and "fail" in os.environ["HELPERS"]:
    sys.stdout.flush(), os._exit(1)
"""
FAILS = """
from scalestudy.orchestration.cluster import ray_private
ray_private.TRIES = 2
try:
    connect("local", num_cpus=1).disconnect()
    print("started")
except UnreachableError as error:
    print(error, "RAY_TMPDIR" in os.environ)
"""


def helped(tmp_path, how):
    """The environment in which the helpers of Ray's raylet behave like this."""
    (tmp_path / "sitecustomize.py").write_text(HELPERS)
    (tmp_path / "starts").mkdir()
    path = f"{tmp_path}{os.pathsep}{REPOSITORY}"
    return environment(HELPERS=how, STARTS=str(tmp_path / "starts"), PYTHONPATH=path)


@pytest.mark.chaos
def test_a_busy_machine_on_which_ray_s_half_minute_is_not_enough(tmp_path):
    assert printed_by(FAILS, helped(tmp_path, "first")) == "started"


@pytest.mark.chaos
def test_a_cluster_that_cannot_start_says_so_and_leaves_nothing(tmp_path):
    printed = printed_by(FAILS, helped(tmp_path, "fail"))
    assert printed.startswith("Ray could not be started on this machine (its raylet ended: "), printed
    assert printed.endswith("; end other processes, or free memory or space in /tmp, then try again False")
