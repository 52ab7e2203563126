"""Clusters that commands start for themselves: how they start, and end by a signal."""

import json
import stat
import subprocess
import sys
import time

from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.orchestration.cluster.ports import QUIET_PORTS
from tests.support.groups import wait_until
from tests.support.studies import command, environment, ran, scalestudy, write_spec

SLOW = {"model": "tests.support.user_models:Slow", "data": "digits", "model_args": {"seconds": 0.05}}


def test_doctor_finds_this_machine_well(tmp_path):
    done = scalestudy("doctor", "--json", "--set-nothing", cwd=tmp_path)
    assert done.returncode == 2  # an unknown option
    done = scalestudy("doctor", "--json", cwd=tmp_path)
    findings = {finding["name"]: finding["state"] for finding in json.loads(done.stdout)}
    assert {"ray", "torch", "torchvision", "mlflow", "devices", "Ray token", "data", "tracking", "Ray"} <= set(findings)
    assert done.returncode == (1 if "broken" in findings.values() else 0)
    assert "broken" not in {findings[name] for name in ("ray", "torch", "torchvision", "mlflow", "data", "tracking")}


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


def test_sigterm_stops_the_study_and_keeps_what_has_ended(tmp_path):
    rates = [0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08]
    spec = write_spec(
        tmp_path,
        workload=SLOW,
        sweep={"num_gpus": [1], "batch_size": [256], "learning_rate": rates},
        train={"epochs": 2},
    )
    process = subprocess.Popen(
        command("run", spec, "--address", "local", "--out", "out"),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        folder = StudyFolder(tmp_path / "out")
        wait_until(lambda: folder.trials_file.exists() and folder.read_trials(), seconds=90)
        sent = time.monotonic()
        process.terminate()
        printed, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 143, errors
    assert "Traceback" not in errors + printed
    assert "stopped" in printed
    assert time.monotonic() - sent < 30
    trials = folder.read_trials()
    assert 0 < len(trials) < len(rates)
    assert {trial["status"] for trial in trials} == {"finished"}
    assert folder.report_file.exists()


def test_the_token_that_ray_makes_is_for_its_owner_alone(tmp_path):
    code = (
        "from scalestudy.orchestration.base.environment import prepare_environment as p; p(); "
        "from scalestudy.orchestration.cluster.connection import connect; connect('local', num_cpus=1).disconnect()"
    )
    home = environment(HOME=str(tmp_path), RAY_AUTH_MODE="token")
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        home.pop(name, None)
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=home, check=True, timeout=120)
    assert stat.S_IMODE((tmp_path / ".ray" / "auth_token").stat().st_mode) == 0o600


ASKED = """
from scalestudy.orchestration.base.environment import prepare_environment
prepare_environment()
from scalestudy.orchestration.cluster.connection import connect
cluster = connect("local", num_cpus=1)
from ray.dashboard.utils import ray_address_to_api_server_url
print(ray_address_to_api_server_url(cluster.address))
cluster.disconnect()
"""


def test_nobody_answers_for_the_dashboard_that_is_not_started(tmp_path):
    """Ray Train's cleaner asks there whether a group still lives; another cluster would say no."""
    done = subprocess.run(
        [sys.executable, "-c", ASKED],
        cwd=tmp_path,
        env=environment(),
        check=True,
        timeout=120,
        capture_output=True,
        text=True,
    )
    host, _, port = done.stdout.strip().removeprefix("http://").rpartition(":")
    assert host == "127.0.0.1"
    assert int(port) in QUIET_PORTS


FAILS = """
from scalestudy.orchestration.base.environment import prepare_environment
prepare_environment()
from scalestudy.orchestration.cluster.connection import connect
from scalestudy.orchestration.base.errors import UnreachableError
import os
try:
    connect("local", num_cpus=1)
except UnreachableError as error:
    print(error, "RAY_TMPDIR" in os.environ)
"""


def test_a_cluster_that_cannot_start_says_so_and_leaves_nothing(tmp_path):
    """Sockets lie in the temporary folder, and their paths are bounded to some hundred characters."""
    far = tmp_path / ("far" * 30)
    far.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", FAILS],
        cwd=tmp_path,
        env=environment(TMPDIR=str(far)),
        check=True,
        timeout=120,
        capture_output=True,
        text=True,
    )
    assert "could not be started on this machine" in done.stdout
    assert "AF_UNIX path length" in done.stdout
    assert done.stdout.rstrip().endswith("False")
    assert not list(far.glob("scalestudy-*"))
