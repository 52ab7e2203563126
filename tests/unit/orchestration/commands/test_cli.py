"""Commands on the command line. A few are processes; the others run in this one."""

import json
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from scalestudy.experiments.spec.reading import SpecError, parse_study
from scalestudy.orchestration.commands import cli
from scalestudy.training.process import Terminated, terminate
from tests.support.approved import approved
from tests.support.groups import wait_until
from tests.support.in_process import scalestudy
from tests.support.ports import free_port, listens
from tests.support.processes import mentioning
from tests.support.studies import command, complaint, environment, left_behind, ran, write_spec
from tests.support.studies import scalestudy as process


def test_validate_prints_the_whole_spec(tmp_path):
    done = scalestudy("validate", "digits-quick", "--json", cwd=tmp_path)
    assert done.returncode == 0
    spec = json.loads(done.stdout)
    assert spec["limits"]["failures_per_trial"] == 2
    assert scalestudy("validate", "d2l-lenet", cwd=tmp_path).returncode == 0


LEAVES = """
import atexit, subprocess, threading, time
from scalestudy.orchestration.commands.cli import main
threading.Thread(target=time.sleep, args=(600,)).start()
subprocess.Popen(["sleep", "600"])
atexit.register(time.sleep, 600)
main()
"""


def test_a_terminal_that_takes_ascii_alone(tmp_path):
    spec = write_spec(tmp_path, description="größer – schneller?")
    done = process("validate", spec, cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "gr??er ? schneller?" in done.stdout


def test_a_command_ends_with_its_last_line(tmp_path):
    """Whatever a user's code leaves running in its process."""
    done = ran([sys.executable, "-c", LEAVES, "--help"], cwd=tmp_path, seconds=60, MARK=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert not mentioning(str(tmp_path))


STOPS = """
import os, signal, time
from torch import nn

def stop():
    os.kill(int(os.environ["DRIVER"]), int(os.environ["NUMBER"]))
    time.sleep(600)

if os.environ.setdefault("DRIVER", str(os.getpid())) == str(os.getpid()) and os.environ["STAGE"] == "checks":
    stop()

def build(num_classes, in_channels):
    if os.environ["STAGE"] == "rehearsal":
        stop()
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))
"""


@pytest.mark.parametrize(
    ("stage", "sent"),
    [("checks", signal.SIGTERM), pytest.param("rehearsal", signal.SIGHUP, marks=pytest.mark.slow)],
)
def test_a_signal_before_the_sweep_ends_the_command_and_what_it_started(tmp_path, stage, sent):
    (tmp_path / "stopping.py").write_text(STOPS)
    spec = write_spec(tmp_path, workload={"model": "stopping:build", "data": "digits"})
    variables = {"STAGE": stage, "NUMBER": str(int(sent)), "MARK": str(tmp_path)}
    done = process("run", spec, "--out", "out", cwd=tmp_path, **variables)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (143, "stopped")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
    assert not mentioning(str(tmp_path))


@pytest.fixture
def stopping():
    """Gives SIGTERM and SIGHUP their handlers in this process, and takes them away again."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, terminate) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
@pytest.mark.parametrize(
    ("arguments", "stage"),
    [
        (("doctor",), "scalestudy.orchestration.commands.doctor.examine"),
        (("ui",), "scalestudy.orchestration.commands.ui.check_reachable"),
        (("data", "fetch", "mnist"), "scalestudy.training.data.fetch"),
        (("plan", "digits-quick"), "scalestudy.orchestration.commands.planning.plan_study"),
        (("resume", "runs/x"), "scalestudy.orchestration.study.study.resume_study"),
    ],
)
def test_a_signal_ends_any_command_with_its_status(tmp_path, monkeypatch, stopping, arguments, stage, sent, status):
    monkeypatch.setattr(stage, lambda *_, **__: signal.raise_signal(sent))
    done = scalestudy(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (status, "stopped")


def test_a_closed_terminal_that_says_so_twice_does_not_break_off_the_end(stopping):
    with pytest.raises(Terminated):
        signal.raise_signal(signal.SIGHUP)
    signal.raise_signal(signal.SIGHUP)
    signal.signal(signal.SIGHUP, terminate)


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP])
def test_a_forked_process_of_a_user_s_ends_by_a_signal_without_a_word(stopping, sent):
    fork = "import os, signal, sys; from scalestudy.training.process import end_by_signals; end_by_signals()\n"
    fork += f"if not os.fork(): signal.raise_signal({int(sent)})\nprint(os.waitstatus_to_exitcode(os.wait()[1]))"
    done = subprocess.run([sys.executable, "-c", fork], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"{-sent}\n", "")


@pytest.mark.parametrize("arguments", [("validate", "digits-quick"), ("--help",), ("list",), ("no-such-command",)])
def test_a_reader_that_goes_away_ends_no_command(tmp_path, arguments):
    """As `head -1`. The status is the command's, and nothing is said of it."""
    running = subprocess.Popen(command(*arguments), cwd=tmp_path, env=environment(), stdout=-1, stderr=-1)
    running.stdout.close()
    said = running.stderr.read().decode()
    running.stderr.close()
    assert running.wait(60) == (2 if arguments == ("no-such-command",) else 0)
    assert not {"Traceback", "BrokenPipeError", "Exception ignored"} & set(said.split())


def test_the_schema_is_what_an_editor_reads(tmp_path):
    from scalestudy.experiments.spec.schema import json_schema

    done = scalestudy("validate", "--schema", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == json_schema()


def test_the_help_fits_one_screen(tmp_path):
    done = process("--help", cwd=tmp_path, COLUMNS="100")
    assert len(done.stdout.splitlines()) <= 31
    approved(done.stdout, Path(__file__).parent / "help.txt")


def test_every_command_is_listed():
    """A name may lead an unlisted life otherwise."""
    from typer.main import get_command

    group = get_command(cli.app)
    assert sorted(group.commands) == sorted(group.list_commands(None))


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("validate",), "SPEC: is missing; name a spec file, or a study of the catalogue\n"),
        (
            ("validate", "x.yaml", "--schema"),
            "--schema: is the same for every spec; leave out SPEC, --set and --budget\n",
        ),
        (("ui", "x", "--sync", "--uri", "y"), "--uri: --sync sends to the study's own store; leave out --uri\n"),
        (("run", "x", "--out", "a", "--extend", "b"), "--out, --extend: name two folders; give one of the two\n"),
        (("resume", "x", "--only", "no_room"), "--only: goes with --retry-failed alone; add --retry-failed\n"),
    ],
)
def test_a_command_line_that_can_not_be_is_refused_in_one_line(tmp_path, typed, said):
    done = scalestudy(*typed, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)


def test_plan_shows_every_trial_and_runs_nothing(tmp_path):
    done = scalestudy("plan", "digits-quick", cwd=tmp_path)
    assert done.returncode == 0
    assert "16 trials, 96 epochs, 144 worker-epochs" in done.stdout
    assert list(tmp_path.iterdir()) == []
    assert len(json.loads(scalestudy("plan", "digits-quick", "--json", cwd=tmp_path).stdout)["trials"]) == 16


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


@pytest.mark.slow
def test_the_pages_of_mlflow_end_with_the_command(tmp_path, empty_database):
    shutil.copy(empty_database, tmp_path)
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
        assert process.wait(30) == 143
    finally:
        process.kill()
    wait_until(lambda: not listens(port), seconds=10)


# --- what a user can get wrong: one message, the documented exit status, no traceback, nothing left behind ------------


SWEEP = {"num_gpus": [1], "batch_size": [64], "learning_rate": [0.1]}


def assert_refused(done, code, *words):
    """One message on standard error that holds the words; nothing else."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


WRONG = "name: a/b\ntrain: {epoch: 3}\nsweep:\n  num_gpus: [0]\n"


@pytest.mark.parametrize(
    ("typed", "overrides"),
    [
        (("run",), ["train.lr_rule=adascal"]),
        (("validate",), ["train.lr_rule=adascal"]),
        (("plan",), ["train.lr_rule=adascal"]),
        (("submit", "--address", "http://127.0.0.1:9"), ["train.lr_rule=adascal"]),
        (("bench", "max-batch"), ["train.lr_rule=adascal"]),
        (("doctor",), []),
    ],
)
def test_every_command_that_takes_a_spec_shows_all_that_is_wrong_with_it(tmp_path, typed, overrides):
    """What is wrong, and in which words, the table of bad input says: tests/unit/experiments/spec/bad_input.txt."""
    (tmp_path / "study.yaml").write_text(WRONG)
    with pytest.raises(SpecError) as caught:
        parse_study(WRONG, "study.yaml", overrides)
    options = [word for override in overrides for word in ("--set", override)]
    done = scalestudy(*typed, "study.yaml", *options, cwd=tmp_path)
    assert (done.returncode, done.stdout, complaint(done.stderr)) == (2, "", f"{caught.value}\n")
    assert left_behind(tmp_path) == ["study.yaml"]


def test_a_missing_spec_names_the_catalogue(tmp_path):
    done = scalestudy("run", "nowhere.yaml", "--json", cwd=tmp_path)
    assert_refused(done, 2, "nowhere.yaml", "digits-quick")
    assert done.stderr.startswith("nowhere.yaml"), "what is waited for is not said with --json"
    assert left_behind(tmp_path) == []


def test_run_says_what_it_waits_for_before_it_loads_ray(tmp_path):
    python, *words = command("run", "nowhere.yaml")
    done = subprocess.run(
        [python, "-X", "importtime", *words], cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    before, _, after = done.stderr.partition("waiting for the checks of nowhere.yaml")
    loaded = [{line.rpartition("|")[2].strip() for line in part.splitlines()} for part in (before, after)]
    assert "typer" in loaded[0]
    assert "scalestudy.orchestration.study.study" in loaded[1]
    assert not (loaded[0] | loaded[1]) & {"ray", "torch", "mlflow", "pandas"}, "a bad spec is refused without them"


@pytest.fixture
def places(tmp_path):
    """A file, a port on which nobody listens, and one on which somebody listens and never says a word."""
    (tmp_path / "file").write_text("in the way")
    with socket.socket() as dead, socket.create_server(("127.0.0.1", 0)) as silent:
        dead.bind(("127.0.0.1", 0))
        yield {"file": tmp_path / "file", "dead": dead.getsockname()[1], "silent": silent.getsockname()[1]}


LOCAL = ("--address", "local")


@pytest.mark.parametrize(
    ("changes", "options", "code", "words"),
    [
        ({"workload": {"model": "lenet", "data": "fashion_mnist"}}, (), 2, ["scalestudy data fetch fashion_mnist"]),
        ({"workload": {"model": "no_such_module:Net", "data": "digits"}}, LOCAL, 2, ["no_such_module"]),
        ({"storage": "%(file)s/runs"}, LOCAL, 3, ["storage", "%(file)s"]),
        ({"storage": "/proc/nowhere/runs"}, (), 3, ["storage", "/proc/nowhere/runs"]),  # where not even root may write
        ({"tracking": {"uri": "http://127.0.0.1:abc"}}, (), 2, ["tracking.uri", "abc"]),
        ({"tracking": {"uri": "http://127.0.0.1:99999"}}, (), 2, ["tracking.uri", "99999"]),
        ({"tracking": {"uri": "http://127.0.0.1:%(dead)s"}}, (), 3, ["tracking.uri", "%(dead)s"]),
        ({"tracking": {"uri": "postgresql://me:secret@127.0.0.1:%(dead)s/x"}}, (), 3, ["tracking.uri", "%(dead)s"]),
        pytest.param(
            {"tracking": {"uri": "http://127.0.0.1:%(silent)s"}},
            (),
            3,
            ["tracking.uri", "%(silent)s", "does not answer"],
            marks=pytest.mark.slow,
        ),
        ({}, ("--address", "127.0.0.1:%(dead)s"), 3, ["--address", "%(dead)s"]),
        ({}, ("--address", "127.0.0.1:%(silent)s"), 3, ["--address", "is not Ray"]),
        ({}, ("--address", "ray://127.0.0.1:10001"), 2, ["ray://", "ray job submit"]),
    ],
)
def test_a_study_that_can_not_start_is_refused_and_leaves_nothing(tmp_path, places, changes, options, code, words):
    spec = write_spec(tmp_path, sweep=SWEEP, **json.loads(json.dumps(changes) % places))
    typed = [option % places for option in options]
    done = scalestudy("run", spec, *typed, cwd=tmp_path, SCALESTUDY_DATA=str(tmp_path / "none"))
    assert_refused(done, code, *(word % places for word in words))
    assert "secret" not in done.stderr
    assert left_behind(tmp_path) == ["file", "study.yaml"]


def test_fetching_data_from_a_folder_that_has_none(tmp_path):
    done = scalestudy("data", "fetch", "mnist", "--from", tmp_path, cwd=tmp_path, SCALESTUDY_DATA=str(tmp_path / "d"))
    assert_refused(done, 2, "mnist", str(tmp_path))


def test_a_folder_that_is_there_already(tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "kept.txt").write_text("kept")
    done = scalestudy("run", write_spec(tmp_path, sweep=SWEEP), "--out", "old", cwd=tmp_path)
    assert_refused(done, 2, "--out", "old")
    assert (tmp_path / "old" / "kept.txt").read_text() == "kept"


def test_a_tracking_address_from_the_environment_is_checked_too(tmp_path, places):
    uri = f"http://127.0.0.1:{places['dead']}"
    done = scalestudy("run", write_spec(tmp_path, sweep=SWEEP), cwd=tmp_path, MLFLOW_TRACKING_URI=uri)
    assert_refused(done, 3, uri)


def test_a_model_is_looked_for_where_scalestudy_is_called_and_not_beside_the_spec(tmp_path, monkeypatch):
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
        (folder / f"model_{folder.name}.py").write_text("def build(num_classes, in_channels): ...\n")
        write_spec(folder, workload={"model": f"model_{folder.name}:build"})
    write_spec(there, "elsewhere.yaml", workload={"model": "model_here:build"})
    for spec in ("study.yaml", "../there/elsewhere.yaml"):
        assert scalestudy("plan", spec, cwd=here).returncode == 0
    refused = scalestudy("plan", "../there/study.yaml", cwd=here)
    assert refused.returncode == 2
    assert f"workload.model: 'model_there:build': there is no module 'model_there' in {here}" in refused.stderr
    assert str(there) not in refused.stderr
    assert "call scalestudy in the folder that has model_there.py, or put that folder on PYTHONPATH" in refused.stderr
    monkeypatch.syspath_prepend(there)  # as Python itself puts PYTHONPATH there
    assert scalestudy("plan", "../there/study.yaml", cwd=here).returncode == 0


def test_validate_imports_nothing_of_the_users(tmp_path):
    """A module of the user's may do anything while it is imported."""
    marking = "from pathlib import Path\nPath('imported').touch()\ndef build(num_classes, in_channels): ...\n"
    (tmp_path / "marking.py").write_text(marking)
    names = {"model": "marking:build", "data": "marking:build", "loss": "marking:build", "metric": "marking:build"}
    spec = write_spec(tmp_path, workload=names, train={"schedule": "marking:build", "gradient_sync": "marking:build"})
    done = scalestudy("validate", spec, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "the names of your code were not looked up: scalestudy plan" in done.stderr
    assert left_behind(tmp_path) == ["marking.py", "study.yaml"]
    assert scalestudy("plan", spec, cwd=tmp_path).returncode == 0
    assert (tmp_path / "imported").exists(), "the module does write"


def test_a_mistake_is_found_by_a_rehearsal_before_ray_is_imported(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "def build(num_classes, in_channels, width=8):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(784, width), nn.Linear(8, num_classes))\n"
    )
    workload = {"model": "mine:build", "data": "digits", "model_args": {"width": 9}}
    spec = write_spec(tmp_path, workload=workload, sweep=SWEEP)
    python, *words = command("run", spec)
    done = subprocess.run(
        [python, "-X", "importtime", *words], cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    lines = done.stderr.splitlines()
    (refusal,) = [line for line in lines if not line.startswith(("import time:", "waiting for "))]
    assert refusal == (
        "workload.model: mine:build: RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x9 and 8x10); "
        "correct it; --no-rehearsal starts the study without this check"
    )
    assert done.returncode == 2
    assert any(line.startswith("waiting for a rehearsal: the first steps of mine:build on the CPU") for line in lines)
    loaded = {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}
    assert not loaded & {"ray", "mlflow"}
    written = [name for name in left_behind(tmp_path) if "__pycache__" not in name]
    assert written == ["mine.py", "study.yaml"]


def test_ui_with_an_impossible_port(tmp_path):
    done = scalestudy("ui", "--port", "99999", cwd=tmp_path)
    assert done.returncode == 2
    assert "--port" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["report", "recommend"])
@pytest.mark.parametrize("damage", ["spec.yaml", "plan.json", "trials.jsonl"])
def test_a_damaged_folder(tmp_path, command, damage):
    from scalestudy.experiments.plan.plan import make_plan
    from scalestudy.experiments.study.folder import StudyFolder
    from scalestudy.orchestration.study.folders import read_spec

    spec = read_spec(write_spec(tmp_path, sweep=SWEEP))
    folder = StudyFolder(tmp_path / "out")
    folder.create()
    folder.write_plan(make_plan(spec), "small-1", spec.to_yaml())
    (folder.path / damage).write_text("{ this is broken\n")
    done = scalestudy(command, "out", cwd=tmp_path)
    assert_refused(done, 2, "out/spec.yaml:" if damage == "spec.yaml" else "DIR: out")


def test_a_current_folder_that_is_gone_is_one_line(tmp_path):
    (tmp_path / "gone").mkdir()
    program = f"import os; os.chdir({str(tmp_path / 'gone')!r}); os.rmdir('../gone')\n"
    program += "from scalestudy.orchestration.commands.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", program, "list"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (2, "the current folder is gone; change to another folder\n")
