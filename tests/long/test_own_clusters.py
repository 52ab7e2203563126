"""Clusters that commands start for themselves: how they start, and end by a signal."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time

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
        [sys.executable, "-c", CONNECT + code], env=variables, check=True, timeout=120, capture_output=True, text=True
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


def test_a_cluster_has_its_own_token(tmp_path):
    """In its folder, which only its owner may enter; nothing is written to the home folder, which may be read-only."""
    code = """
cluster = connect("local", num_cpus=1)
token = os.environ["RAY_AUTH_TOKEN_PATH"]
print(oct(cluster.home.stat().st_mode)[-3:], token == str(cluster.home / "token"), os.environ["RAY_AUTH_MODE"])
cluster.disconnect()
print([name for name in ("RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE", "RAY_TMPDIR") if name in os.environ])
"""
    assert printed_by(code, environment(HOME=str(tmp_path))).split("\n") == ["700 True token", "[]"]
    assert list(tmp_path.iterdir()) == []


ASKED = """
cluster = connect("local", num_cpus=1)
from ray.dashboard.utils import ray_address_to_api_server_url
print(ray_address_to_api_server_url(cluster.address))
cluster.disconnect()
"""


def test_nobody_answers_for_the_dashboard_that_is_not_started():
    """Ray Train's cleaner asks there whether a group still lives; another cluster would say no."""
    host, _, port = printed_by(ASKED, environment()).removeprefix("http://").rpartition(":")
    assert host == "127.0.0.1"
    assert int(port) in QUIET_PORTS


LONG_TMPDIR = """
cluster = connect("local", num_cpus=1)
print(cluster.home.parent, os.environ["TMPDIR"] == str(cluster.home))
cluster.disconnect()
print(os.environ["TMPDIR"])
"""


def test_a_long_folder_of_temporary_files_is_replaced(tmp_path):
    """Sockets lie in the temporary folder, and their paths are bounded to some hundred bytes."""
    far = tmp_path / ("far" * 30)
    far.mkdir()
    assert printed_by(LONG_TMPDIR, environment(TMPDIR=str(far))).split() == ["/tmp", "True", str(far)]


def test_a_folder_that_the_user_names_for_ray_is_used_and_named_again_afterwards():
    with tempfile.TemporaryDirectory(dir="/tmp") as named:
        code = "cluster = connect('local', num_cpus=1); print(cluster.home.parent); cluster.disconnect()\n"
        printed = printed_by(code + "print(os.environ['RAY_TMPDIR'])", environment(RAY_TMPDIR=named))
        assert printed.split() == [named, named]


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
