"""The process of a command: its streams, whatever reads them, and its end, whatever a user's code left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.processes import is_alive, mentioning
from tests.support.project_files import REPOSITORY


def started(body, *, wrapped=(), **options):
    """Starts a command in a process of its own. wrapped: what starts it."""
    code = "import os, sys, time\nfrom scalestudy.training.process import run\n\ndef main():\n"
    code += "".join(f"    {line}\n" for line in body.strip().splitlines()) + "\nrun(main, exit_seconds=0.5)\n"
    variables = {**os.environ, "PYTHONPATH": str(REPOSITORY), **options.pop("variables", {})}
    return subprocess.Popen([*wrapped, sys.executable, "-c", code], env=variables, **options)


def ran(body, **options):
    done = started(body, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
    out, err = done.communicate(timeout=60)
    return done.returncode, out, err.decode(errors="replace")


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("ascii", b"gr??e ? 2 ?"),
        ("latin-1", "größe × 2 ?".encode("latin-1")),
        ("cp1252", "größe × 2 ?".encode("cp1252")),
        ("koi8-r", b"gr??e ? 2 \x80"),
        ("shift_jis", b"gr??e \x81\x7e 2 \x84\x9f"),
        ("ascii:backslashreplace", rb"gr\xf6\xdfe \xd7 2 \u2500"),
        ("ascii:surrogateescape", b"gr??e ? 2 ?"),
        ("utf-8", "größe × 2 ─".encode()),
    ],
)
def test_what_a_terminal_has_no_letter_for_is_replaced(encoding, shown):
    text = '"gr\\u00f6\\u00dfe \\u00d7 2 \\u2500"'
    body = f"print({text}); print({text}, file=sys.stderr); return 4"
    status, out, _ = ran(body, variables={"PYTHONIOENCODING": encoding})
    assert (status, out) == (4, shown + b"\n")


def test_a_name_that_is_no_text_can_be_printed_too():
    assert ran('print(os.fsdecode(b"m\\xfcll")); return 0', variables={"PYTHONIOENCODING": "utf-8:strict"}) == (
        0,
        b"m?ll\n",
        "",
    )


MANY_LINES = """
for number in range(5_000):
    print("a line that fills the pipe", number)
    print("another", number, file=sys.stderr)
os.system("echo a child prints too")
return 7
"""


@pytest.mark.parametrize("lines", [0, 1, 3])
@pytest.mark.parametrize("both", [False, True])
def test_a_reader_that_goes_away_is_not_missed(lines, both):
    command = started(MANY_LINES, stdout=subprocess.PIPE, stderr=subprocess.STDOUT if both else subprocess.DEVNULL)
    for _ in range(lines):
        command.stdout.readline()
    command.stdout.close()
    assert command.wait(60) == 7


def test_a_terminal_that_is_closed_is_not_missed():
    terminal, its_end = os.openpty()
    command = started("print('here')\ntime.sleep(0.5)\n" + MANY_LINES.strip(), stdout=its_end, stderr=its_end)
    os.close(its_end)
    assert os.read(terminal, 4) == b"here"
    os.close(terminal)
    assert command.wait(60) == 7


def test_without_any_descriptor_no_file_gets_what_is_printed(tmp_path):
    """The next file that a program opens gets the lowest free descriptor, such as standard output's."""
    body = f"""
with open({str(tmp_path / "kept")!r}, "w") as file:
    print("printed")
    print("printed", file=sys.stderr)
    os.system("echo by a child; echo by a child >&2")
    file.write(f"mine {{sys.stdin.read()}}")
return 5
"""
    command = started(body, wrapped=("sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"))
    assert command.wait(60) == 5
    assert (tmp_path / "kept").read_text() == "mine "


def test_a_full_disk_costs_the_lines_and_is_told():
    with Path("/dev/full").open("w") as full:
        command = started("print('a line')\nreturn 0", stdout=full, stderr=subprocess.PIPE)
        _, err = command.communicate(timeout=60)
    assert (command.returncode, err) == (1, b"the output is not complete: No space left on device\n")


def test_a_pipe_that_another_program_made_non_blocking_gets_every_line():
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    command = started(MANY_LINES, stdout=writing, stderr=subprocess.DEVNULL)
    os.close(writing)
    time.sleep(0.5)  # the pipe is full by then
    with os.fdopen(reading) as lines:
        assert len(lines.readlines()) == 5_001
    assert command.wait(60) == 7


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ("return None", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit('a reason')", 1, "a reason\n"),
        ("raise ValueError('wrong')", 1, "ValueError: wrong\n"),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt\n"),
    ],
)
def test_the_exit_status_is_pythons(body, status, said):
    ended, _, err = ran(body)
    assert ended == status
    assert err.endswith(said)
    assert bool(err) == bool(said)


LEFT = {
    "thread": "import threading; threading.Thread(target=time.sleep, args=(600,)).start()",
    "pool of threads": "import concurrent.futures as f; P = f.ThreadPoolExecutor(); P.submit(time.sleep, 600)",
    "exit handler": "import atexit; atexit.register(time.sleep, 600)",
    "exit handler that waits for a thread": "import atexit, threading\n"
    "t = threading.Thread(target=time.sleep, args=(600,), daemon=True); t.start(); atexit.register(t.join)",
    "finalizer": "class A:\n    def __del__(self): time.sleep(600)\nsys.modules[__name__].A = A()",
    "child": "import subprocess; subprocess.Popen(['sleep', '600'])",
    "child that ignores SIGTERM": "import subprocess; subprocess.Popen(['sh', '-c', r'trap \"\" TERM; sleep 600; :'])",
    "grandchild": "import subprocess; subprocess.Popen(['sh', '-c', 'sleep 600; true'])",
    "orphan": "os.system('sleep 600 &')",
    "process": "import multiprocessing; multiprocessing.Process(target=time.sleep, args=(600,)).start()",
    "pool": "import multiprocessing; P = multiprocessing.Pool(2); P.apply_async(time.sleep, (600,)); time.sleep(0.2)",
    "pool of processes": "import concurrent.futures as f; P = f.ProcessPoolExecutor(1); P.submit(time.sleep, 600)",
    "shared memory": "import multiprocessing.shared_memory as m; m.SharedMemory(create=True, size=8)",
}


@pytest.mark.parametrize("left", LEFT.values(), ids=LEFT)
def test_nothing_that_is_left_running_holds_the_command_or_survives_it(left, tmp_path):
    mark = f"MARK={tmp_path}"
    began = time.monotonic()
    body = f"import atexit; atexit.register(print, 'handled')\n{left}\nprint('last line')\nreturn 6"
    status, out, _ = ran(body, wrapped=("env", mark))
    assert (status, out.splitlines()[0]) == (6, b"last line")
    assert time.monotonic() - began < 20
    if "atexit.register(t" not in left:
        assert out.splitlines() == [b"last line", b"handled"], "a handler of another, which does end"
    with suppress(TimeoutError):
        wait_until_gone(mark)
    assert not mentioning(mark)


def wait_until_gone(mark):
    give_up_at = time.monotonic() + 5
    while mentioning(mark) and time.monotonic() < give_up_at:
        time.sleep(0.05)


def test_what_ends_in_time_is_waited_for():
    body = """
import atexit, threading
def later(): time.sleep(0.1); print("thread")
def once_main_ends(): threading.main_thread().join(); print("main has ended")
threading.Thread(target=later).start()
threading.Thread(target=once_main_ends).start()
atexit.register(lambda: [time.sleep(0.1), print("handler")])
return 0
"""
    status, out, err = ran(body)
    assert (status, err, out.split(b"\n")[-2]) == (0, "", b"handler")
    assert {b"thread", b"main has ended"} < set(out.split(b"\n"))


def test_a_process_with_a_session_of_its_own_stays():
    """As a browser that shows a report."""
    body = """
from subprocess import DEVNULL, Popen
print(Popen(["sleep", "60"], stdout=DEVNULL, stderr=DEVNULL, start_new_session=True).pid)
return 0
"""
    _, out, _ = ran(body)
    assert is_alive(int(out))
    os.kill(int(out), signal.SIGKILL)


def test_there_is_no_child_to_end_without_children():
    assert ran("from scalestudy.training.process import _children\nprint(_children())\nreturn 0")[:2] == (0, b"set()\n")
