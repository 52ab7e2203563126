"""A module in a process of its own: its answers, its end, and what it started."""

import json
import time
from pathlib import Path

import pytest

from scalestudy.orchestration.base import child
from scalestudy.orchestration.base.child import run_child

PROGRAM = """
import json, subprocess, sys, time
order = json.load(sys.stdin)
print("answer", flush=True)
if order["starts"]:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print("word", file=sys.stderr)
time.sleep(order["sleeps"])
sys.exit(order["status"])
"""


@pytest.fixture(autouse=True)
def program(tmp_path, monkeypatch):
    (tmp_path / "program_of_a_test.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)


def run(limit_seconds=30.0, **order):
    return run_child(("-m", "program_of_a_test"), {"starts": False, "sleeps": 0, "status": 0, **order}, limit_seconds)


def test_what_it_answers_and_how_it_ends():
    ended = run(status=3)
    assert (ended.status, ended.answers, ended.said) == (3, ["answer"], "word")


def test_a_limit_ends_it_with_all_that_it_started_and_keeps_its_answers():
    began = time.monotonic()
    ended = run(limit_seconds=3.0, sleeps=60, starts=True)
    assert ended.status is None
    assert ended.answers == ["answer"]
    assert time.monotonic() - began < 20
    assert not sleeping()


def test_what_a_child_leaves_running_is_not_waited_for_and_ends():
    """It has the child's output open."""
    began = time.monotonic()
    ended = run(status=3, starts=True)
    assert (ended.status, ended.answers, ended.said) == (3, ["answer"], "word")
    assert time.monotonic() - began < 20
    assert not sleeping()


LOUD = """
import os, sys
from scalestudy.orchestration.base.child import order_and_answer
order, answer = order_and_answer()
print("of Python")
os.write(1, b"of a C library\\n")
os.system("echo of a program")
answer({"given": order})
os.system("echo after the answer")
sys.stderr.write("word")
"""


def test_what_code_prints_by_whatever_way_is_no_answer():
    Path("program_of_a_test.py").write_text(LOUD)
    ended = run(limit_seconds=60, sleeps=0)
    assert [json.loads(line)["given"]["sleeps"] for line in ended.answers] == [0]
    assert ended.said == "word"


def test_a_process_that_cannot_be_killed_is_left_behind(monkeypatch):
    """As one that hangs in a driver is."""
    kill, left = child._kill_group, []
    monkeypatch.setattr(child, "_kill_group", left.append)
    monkeypatch.setattr(child, "KILLED_SECONDS", 0.2)
    began = time.monotonic()
    ended = run(limit_seconds=0.2, sleeps=60)
    kill(left[0])
    left[0].wait()
    assert ended.status is None
    assert time.monotonic() - began < 30


def test_variables_are_left_out(monkeypatch):
    monkeypatch.setenv("LEFT_OUT", "1")
    monkeypatch.setenv("KEPT", "2")
    told = ("-c", "import os; print(os.environ.get('LEFT_OUT'), os.environ.get('KEPT'))")
    assert run_child(told, None, 30.0, without=["LEFT_OUT"]).answers == ["None 2"]


def test_letters_are_read_whatever_the_locale_is(monkeypatch):
    for name, value in {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}.items():
        monkeypatch.setenv(name, value)
    assert run_child(("-c", "print('gr\\u00f6\\u00dfer')"), None, 30.0).answers == ["größer"]


def sleeping():
    """The processes that sleep, once a killed one has had the time to go."""
    give_up_at = time.monotonic() + 5
    while found := [each for each in Path("/proc").glob("[0-9]*/cmdline") if b"time.sleep(60)" in _read(each)]:
        if time.monotonic() > give_up_at:
            break
        time.sleep(0.05)
    return found


def _read(file):
    try:
        return file.read_bytes()
    except OSError:
        return b""
