"""The command line as a whole: a study in a process of its own, stopped by signals, read again afterwards."""

import json
import signal
import subprocess
import time

import pytest

from scalestudy.experiments.study.folder import StudyFolder
from tests.support.groups import wait_until
from tests.support.ports import free_port, listens
from tests.support.studies import command, environment, scalestudy, write_spec

SLOW = {"model": "tests.support.user_models:Slow", "data": "digits", "model_args": {"seconds": 0.05}}


def test_validate_prints_the_whole_spec(tmp_path):
    done = scalestudy("validate", "digits-quick", "--json", cwd=tmp_path)
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


def test_doctor_finds_this_machine_well(tmp_path):
    done = scalestudy("doctor", "--json", "--set-nothing", cwd=tmp_path)
    assert done.returncode == 2  # an unknown option
    done = scalestudy("doctor", "--json", cwd=tmp_path)
    findings = {finding["name"]: finding["state"] for finding in json.loads(done.stdout)}
    assert {"ray", "torch", "torchvision", "mlflow", "devices", "Ray token", "data", "tracking", "Ray"} <= set(findings)
    assert done.returncode == (1 if "broken" in findings.values() else 0)
    assert "broken" not in {findings[name] for name in ("ray", "torch", "torchvision", "mlflow", "data", "tracking")}


def test_doctor_finds_what_is_broken(tmp_path):
    spec = write_spec(tmp_path, workload={"model": "lenet", "data": "mnist"}, tracking={"uri": "http://127.0.0.1:9"})
    done = scalestudy("doctor", spec, cwd=tmp_path, SCALESTUDY_DATA=str(tmp_path / "none"))
    assert done.returncode == 1
    assert "BROKEN" in done.stdout
    assert "scalestudy data fetch mnist" in done.stdout
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("BROKEN")] == ["data", "tracking"]
    assert "Traceback" not in done.stderr


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
    done = subprocess.run(
        [command()[0], "two.py"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.split()[-2:] == ["0", "1"], done.stderr


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A study run by the command line, and what it printed."""
    place = tmp_path_factory.mktemp("cli")
    spec = write_spec(place, sweep={"num_gpus": [1], "batch_size": [64], "learning_rate": [0.1, 0.2]})
    done = scalestudy("run", spec, "--address", "local", "--out", "out", cwd=place)
    return place, done


def test_run_prints_the_table_the_answer_and_the_places(study):
    place, done = study
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "num_gpus (CPU)  batch   lr  epoch s  test acc  speed-up  efficiency" in done.stdout
    assert "Fastest" in done.stdout
    assert "overhead_ratio" in done.stdout
    assert f"report: {place / 'out' / 'report.html'}" in done.stdout
    assert f"MLflow: sqlite:///{place / 'mlflow.db'}" in done.stdout
    assert done.stdout.count("finished in") == 2


def test_a_plan_after_a_run_knows_what_it_costs(study):
    place, _ = study
    (place / "runs").mkdir(exist_ok=True)
    (place / "runs" / "earlier").symlink_to(place / "out")
    done = scalestudy("plan", "study.yaml", "--json", cwd=place)
    estimate = json.loads(done.stdout)["estimate"]
    assert estimate["seconds"] > 0
    assert estimate["gpu_seconds"] == pytest.approx(estimate["seconds"])


def test_the_report_is_rebuilt_from_the_folder_alone(study):
    place, _ = study
    before = (place / "out" / "report.html").read_text()
    (place / "out" / "report.html").unlink()
    (place / "out" / "summary.json").unlink()
    done = scalestudy("report", "out", cwd=place, PATH="")
    assert done.returncode == 0, done.stderr
    assert (place / "out" / "report.html").exists()
    assert len(before) == pytest.approx(len((place / "out" / "report.html").read_text()), rel=0.05)


def test_recommend_answers_and_refuses(study):
    place, _ = study
    assert "Fastest" in scalestudy("recommend", "out", cwd=place).stdout
    assert "Choose" in scalestudy("recommend", "out", "--by", "cost", "--price", "2.5", cwd=place).stdout
    advice = json.loads(scalestudy("recommend", "out", "--accuracy", "0.4", "--json", cwd=place).stdout)
    assert advice["target"] == 0.4
    done = scalestudy("recommend", "out", "--accuracy", "85", cwd=place)
    assert done.returncode == 2
    assert "--accuracy: 85" in done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_study_and_keeps_what_has_ended(tmp_path, number, code):
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
        process.send_signal(number)
        printed, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == code, errors
    assert "Traceback" not in errors + printed
    assert "stopped" in printed
    assert time.monotonic() - sent < 30
    trials = folder.read_trials()
    assert 0 < len(trials) < len(rates)
    assert {trial["status"] for trial in trials} == {"finished"}
    assert folder.report_file.exists()


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


def test_a_storage_that_a_node_cannot_read_leaves_no_folder(ray_session, tmp_path, monkeypatch):
    from scalestudy import run_study
    from scalestudy.orchestration.base.errors import UnreachableError
    from scalestudy.orchestration.cluster import checks

    def refuse(folder, nodes):
        raise UnreachableError(f"storage: {folder}: can't be read on host-2", "name a shared folder")

    monkeypatch.setattr(checks, "check_shared_storage", refuse)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnreachableError, match="host-2"):
        run_study(write_spec(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["study.yaml"]


def test_a_refused_study_leaves_one_alone_that_began_beside_it(ray_session, tmp_path, monkeypatch):
    from scalestudy import run_study
    from scalestudy.orchestration.base.errors import UnreachableError
    from scalestudy.orchestration.cluster import checks

    def refuse(folder, nodes):
        (folder.parent / "other").mkdir()
        raise UnreachableError(f"storage: {folder}: can't be read on host-2", "name a shared folder")

    monkeypatch.setattr(checks, "check_shared_storage", refuse)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnreachableError, match="host-2"):
        run_study(write_spec(tmp_path))
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["other"]


def test_the_pages_of_mlflow_end_with_the_command(tmp_path):
    port = free_port()
    process = subprocess.Popen(
        command("ui", "--port", str(port)), cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_until(lambda: listens(port), seconds=90)
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
    wait_until(lambda: not listens(port), seconds=10)
