"""What Ray and MLflow read from the process, and where output goes."""

import getpass
import logging
import os
import pwd
import signal
import subprocess
import sys
import textwrap
import threading
import warnings
from pathlib import Path

import pytest

from scalestudy.orchestration.base import environment, places
from scalestudy.training.data.downloads import default_root
from tests.support.project_files import REPOSITORY


def test_the_users_environment_wins(monkeypatch):
    for name in environment.DEFAULTS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")
    environment.prepare_environment()
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "1"
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"


def test_this_machine_is_asked_without_a_proxy(monkeypatch):
    for name, value in {"http_proxy": "http://127.0.0.1:9", "no_proxy": "near.example", "NO_PROXY": ""}.items():
        monkeypatch.setenv(name, value)
    environment.prepare_environment()
    assert os.environ["NO_PROXY"].startswith("near.example,localhost,127.0.0.1,")


def test_relative_paths_begin_at_home_inside_a_ray_job(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_JOB_CONFIG_JSON_ENV_VAR", raising=False)
    monkeypatch.delenv("SCALESTUDY_HOME", raising=False)
    assert places.base_folder() == tmp_path
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    assert places.base_folder() == Path.home() / "scalestudy"
    monkeypatch.setenv("SCALESTUDY_HOME", "elsewhere")
    assert places.base_folder() == tmp_path / "elsewhere"


NOBODY = """
import os, pwd
for name in ("HOME", "LOGNAME", "USER", "LNAME", "USERNAME"):
    os.environ.pop(name, None)
pwd.getpwuid = lambda number: {}[number]
from scalestudy.orchestration.base.environment import prepare_environment
prepare_environment()
import getpass
from pathlib import Path
print(Path.home(), getpass.getuser().isdigit())
"""


def test_a_process_of_a_user_without_name_and_home():
    done = subprocess.run([sys.executable, "-c", NOBODY], cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["/nonexistent", "True"], done.stderr


@pytest.mark.parametrize(
    ("settings", "home", "data"),
    [
        ({}, "/nonexistent", "/nonexistent/.cache/scalestudy/data"),
        ({"HOME": "/"}, "/", "/.cache/scalestudy/data"),
        ({"HOME": "/proc"}, "/proc", "/proc/.cache/scalestudy/data"),
        ({"SCALESTUDY_DATA": "/data"}, "/nonexistent", "/data"),
        ({"XDG_CACHE_HOME": "/cache"}, "/nonexistent", "/cache/scalestudy/data"),
    ],
)
def test_the_home_and_the_data_of_a_user_without_name(monkeypatch, settings, home, data):
    """As in a container: Ray and MLflow can't be imported without a home."""
    for name in ("HOME", "LOGNAME", "USER", "LNAME", "USERNAME", "SCALESTUDY_DATA", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "")  # so that it is put back whatever is set below
        monkeypatch.delenv(name)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(pwd, "getpwuid", lambda number: {}[number])
    environment.prepare_environment()
    assert (str(Path.home()), getpass.getuser().isdigit(), str(default_root())) == (home, True, data)


CHANGES = {
    "environment": lambda: os.environ.update(HOME="/elsewhere", SCALESTUDY_NEW="1"),
    "removed variable": lambda: os.environ.pop("PATH"),
    "current folder": lambda: os.chdir("/"),
    "import path": lambda: sys.path.insert(0, "/elsewhere"),
    "signals": lambda: [
        signal.signal(each, lambda *_: None) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    ],
    "root logger": lambda: (logging.root.setLevel("CRITICAL"), logging.root.addHandler(logging.NullHandler())),
    "Ray's logger": lambda: (logging.getLogger("ray").setLevel("CRITICAL"), logging.getLogger("ray").handlers.clear()),
    "a logger": lambda: (setattr(RAY.parent, "disabled", True), setattr(RAY, "propagate", not RAY.propagate)),
    "warnings": lambda: warnings.simplefilter("error"),
    "hooks": lambda: (setattr(sys, "excepthook", print), setattr(threading, "excepthook", print)),
    "MLflow's store": lambda: __import__("mlflow").set_tracking_uri("sqlite:///theirs.db"),
}
RAY = logging.getLogger("ray")


def picture():
    """What `left_as_found` promises to put back."""
    loggers = [logging.root, RAY, RAY.parent]
    return (
        dict(os.environ),
        Path.cwd(),
        list(sys.path),
        [signal.getsignal(each) for each in signal.valid_signals()],
        [(each.level, list(each.handlers), each.propagate, each.disabled) for each in loggers],
        list(warnings.filters),
        (sys.excepthook, threading.excepthook),
        __import__("mlflow").get_tracking_uri(),
    )


@pytest.mark.parametrize("what", CHANGES)
def test_a_program_finds_itself_as_it_was(what):
    import mlflow  # noqa: F401 - sets variables when it is imported

    before = picture()

    @environment.left_as_found()
    def study():
        CHANGES[what]()
        assert picture() != before
        raise KeyError

    with pytest.raises(KeyError):
        study()
    assert picture() == before


def test_a_thread_puts_back_what_it_can():
    before = picture()

    @environment.left_as_found()
    def study():
        os.environ["SCALESTUDY_NEW"] = "1"
        logging.root.setLevel("CRITICAL")

    thread = threading.Thread(target=study)
    thread.start()
    thread.join()
    assert picture() == before


def run(tmp_path, code, **variables):
    """Runs code in a process of its own, in a folder that only it writes to: (stdout, stderr, files)."""
    work = tmp_path / "work"
    work.mkdir()
    source = "import os, subprocess, sys\nfrom pathlib import Path\n"
    source += "from scalestudy.orchestration.base.environment import Output\n"
    code = source + textwrap.dedent(code)
    project = str(REPOSITORY)
    settings = {**os.environ, "PYTHONPATH": project, "TMPDIR": str(work), **variables}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=work,
        env=settings,
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        timeout=60,
        check=True,
    )
    return done.stdout, done.stderr, {file.name: file.read_text() for file in work.iterdir()}


NOISE = """
def noise(word):
    print(word, "print")
    print(word, "error", file=sys.stderr)
    subprocess.run(["sh", "-c", f"echo {word} child; echo {word} child error >&2"], check=True)
"""


def test_everything_goes_to_the_log_and_only_screen_to_the_screen(tmp_path):
    out, err, files = run(
        tmp_path,
        NOISE
        + textwrap.dedent("""
        print("before")
        with Output() as output:
            noise("held")
            print("seen", file=output.screen)
            output.keep_in(Path("driver.log"))
            noise("kept")
            output.screen.write("too\\n")
        print("after")
        print("after error", file=sys.stderr)
        """),
    )
    assert out == "before\nseen\ntoo\nafter\n"
    assert err == "after error\n"
    assert files.keys() == {"driver.log"}
    lines = files["driver.log"].splitlines()
    for word in ("held", "kept"):
        assert {line for line in lines if line.startswith(word)} == {
            f"{word} print",
            f"{word} error",
            f"{word} child",
            f"{word} child error",
        }
    assert [line.split()[0] for line in lines] == ["held"] * 4 + ["kept"] * 4


def test_a_command_that_fails_at_the_start_leaves_nothing_behind(tmp_path):
    out, err, files = run(
        tmp_path,
        NOISE
        + textwrap.dedent("""
        try:
            with Output():
                noise("held")
                raise ValueError("refused")
        except ValueError as error:
            print(error)
        """),
    )
    assert (out, err, files) == ("refused\n", "", {})


def test_no_secret_comes_into_the_log(tmp_path):
    """Printed, logged – also by a handler that kept the stream from before – or in a traceback."""
    out, err, files = run(
        tmp_path,
        """
        import logging
        os.environ["MY_TOKEN"] = "tok-en-42"
        logging.basicConfig()
        with Output() as output:
            output.keep_in(Path("driver.log"))
            print("print http://ann:s3cr3t@h tok-en-42")
            sys.stderr.writelines(["error http://ann:s3cr3t@h\\n"])
            logging.getLogger("a").warning("log %s %d", "http://ann:s3cr3t@h", 7)
            try:
                raise ValueError("raised with http://ann:s3cr3t@h")
            except ValueError:
                logging.getLogger("a").exception("caught")
                sys.excepthook(*sys.exc_info())
        logging.getLogger("a").warning("after %s", "http://ann:s3cr3t@h")
        """,
    )
    log = files["driver.log"]
    assert "s3cr3t" not in log
    assert "tok-en-42" not in log
    for expected in ("print http://ann:***@h ***", "error http://ann:***@h", "WARNING:a:log http://ann:***@h 7"):
        assert expected in log
    assert log.count("ValueError: raised with http://ann:***@h") == 2
    assert err == "WARNING:a:after http://ann:s3cr3t@h\n", "outside, logging is the user's own again"
    assert out == ""


def test_a_program_without_streams_has_a_log_too(tmp_path):
    """As one that a daemon starts; Python has None in their places."""
    _, _, files = run(
        tmp_path,
        """
        for number in range(3):
            os.close(number)
        sys.stdin = sys.stdout = sys.stderr = None
        with Output() as output:
            print("printed")
            print("seen", file=output.screen)
            output.keep_in(Path("driver.log"))
            os.system("echo by a child")
        """,
    )
    assert files == {"driver.log": "printed\nby a child\n"}


def test_the_screen_has_the_encoding_of_standard_output_and_outlives_its_reader(tmp_path):
    out, _, files = run(
        tmp_path,
        """
        with Output() as output:
            print("größe ─", file=output.screen)
            output.keep_in(Path("driver.log"))
            print("größe ─")
            print("größe ─", file=sys.stderr)
        print("größe")
        reading, writing = os.pipe()
        os.dup2(writing, 1)
        with Output() as output:
            os.close(writing), os.close(reading)
            print("nobody reads it", file=output.screen)
            print("nobody reads it", file=output.screen, flush=True)
        """,
        PYTHONIOENCODING="latin-1",
    )
    assert out.encode("utf-8", "surrogateescape") == "größe ?\ngröße\n".encode("latin-1")
    assert files == {"driver.log": "größe ─\ngröße ─\n"}


def test_file_descriptors_are_given_back(tmp_path):
    out, _, _ = run(
        tmp_path,
        """
        before = os.listdir("/proc/self/fd")
        for number in range(3):
            with Output() as output:
                output.keep_in(Path("driver.log"))
        print(len(os.listdir("/proc/self/fd")) - len(before))
        """,
    )
    assert out == "0\n"
