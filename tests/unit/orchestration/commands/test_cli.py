"""Commands that need no cluster. Two are processes; the others run in this one."""

import json
import subprocess

from tests.support.groups import wait_until
from tests.support.in_process import scalestudy
from tests.support.ports import free_port, listens
from tests.support.studies import command, environment, write_spec
from tests.support.studies import scalestudy as process


def test_validate_prints_the_whole_spec(tmp_path):
    done = process("validate", "digits-quick", "--json", cwd=tmp_path)
    assert done.returncode == 0
    spec = json.loads(done.stdout)
    assert spec["limits"]["failures_per_trial"] == 2
    assert scalestudy("validate", "d2l-lenet", cwd=tmp_path).returncode == 0


def test_plan_shows_every_trial_and_runs_nothing(tmp_path):
    done = scalestudy("plan", "digits-quick", cwd=tmp_path)
    assert done.returncode == 0
    assert "16 trials, 128 epochs, 192 worker-epochs" in done.stdout
    assert list(tmp_path.iterdir()) == []
    assert len(json.loads(scalestudy("plan", "digits-quick", "--json", cwd=tmp_path).stdout)["trials"]) == 16


def test_doctor_finds_what_is_broken(tmp_path):
    spec = write_spec(tmp_path, workload={"model": "lenet", "data": "mnist"}, tracking={"uri": "http://127.0.0.1:9"})
    done = scalestudy("doctor", spec, cwd=tmp_path, SCALESTUDY_DATA=str(tmp_path / "none"))
    assert done.returncode == 1
    assert "BROKEN" in done.stdout
    assert "scalestudy data fetch mnist" in done.stdout
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("BROKEN")] == ["data", "tracking"]
    assert any(line.split()[:2] == ["ok", "gloo"] for line in done.stdout.splitlines()), "two processes meet"
    assert "Traceback" not in done.stderr


def test_two_studies_may_begin_in_one_second(tmp_path, monkeypatch):
    from scalestudy.orchestration.study.folders import read_spec
    from scalestudy.orchestration.study.opening import new_folder, new_study_id

    monkeypatch.chdir(tmp_path)
    spec = read_spec(write_spec(tmp_path))
    names = set()
    for _ in range(3):
        name = new_study_id(spec)
        new_folder(spec, name).create()
        names.add(name)
    assert len(names) == 3


def test_the_pages_of_mlflow_end_with_the_command(tmp_path):
    port = free_port()
    process = subprocess.Popen(
        command("ui", "--port", str(port)),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: listens(port), seconds=90)
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
    wait_until(lambda: not listens(port), seconds=10)
