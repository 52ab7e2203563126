"""The lock of a study's folder."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from scalestudy.orchestration.base.errors import RequestError, UnreachableError
from scalestudy.orchestration.storage import lock as locks
from scalestudy.orchestration.storage.lock import StoreLock, StudyLock, read_lock
from tests.support.groups import wait_until
from tests.support.studies import REPOSITORY

HOLD = "import sys, time; from pathlib import Path; from scalestudy.orchestration.storage.lock import StudyLock\n"
HOLD += "with StudyLock(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"


@pytest.fixture
def file(tmp_path):
    return tmp_path / "lock"


@pytest.fixture
def other(file):
    """Another process that holds the lock."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, file], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_lock_is_held_and_given_back(file):
    with StudyLock(file):
        holder = read_lock(file)
        assert holder.is_alive
        assert (holder.pid, holder.host) == (os.getpid(), socket.gethostname())
    assert read_lock(file) is None
    assert list(file.parent.iterdir()) == []


def test_one_process_at_a_time(file, other):
    with pytest.raises(RequestError, match=f"is being run by process {other.pid}"), StudyLock(file):
        pass
    assert read_lock(file).pid == other.pid


def test_a_killed_process_blocks_nobody(file, other):
    other.send_signal(signal.SIGKILL)
    other.wait()
    began = time.monotonic()
    with StudyLock(file):
        assert time.monotonic() - began < 1
        assert read_lock(file).pid == os.getpid()
    assert list(file.parent.iterdir()) == []


def test_a_process_on_another_machine_counts_as_dead_when_it_is_silent(file):
    elsewhere = {"token": "t", "host": "elsewhere", "pid": 1, "born": "1", "beat": time.time() - 20}
    file.write_text(json.dumps(elsewhere))
    with pytest.raises(RequestError, match="on elsewhere"), StudyLock(file):
        pass
    file.write_text(json.dumps({**elsewhere, "beat": time.time() - 31}))
    with StudyLock(file):
        assert read_lock(file).host == socket.gethostname()


def test_a_new_process_with_the_old_number_is_not_the_holder(file):
    recycled = {"token": "t", "host": socket.gethostname(), "pid": os.getpid(), "born": "1", "beat": time.time()}
    file.write_text(json.dumps(recycled))
    with StudyLock(file):
        assert read_lock(file).born != "1"


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"token": 1}'])
def test_a_torn_lock_is_nobodys(file, content):
    file.write_text(content)
    with StudyLock(file):
        assert read_lock(file).is_alive


def test_all_texts_of_a_lock_are_as_long(file, monkeypatch):
    """A store that gives as many bytes as the text before had gives the whole new one."""
    lengths = set()
    for moment in (1.0, 1764092345.123456):
        monkeypatch.setattr(locks.time, "time", lambda moment=moment: moment)
        with StudyLock(file):
            lengths.add(len(file.read_bytes()))
            assert read_lock(file).beat == moment
    assert len(lengths) == 1


class _Busy:
    """A store that answers no question for the moment, but would take a text."""

    written = False

    def read(self, name):
        raise OSError("slow down")

    def write(self, name, data):
        self.written = True


def test_a_lock_that_can_not_be_read_is_not_taken():
    store = _Busy()
    lock = StoreLock(store, "lock", "s3://bucket/study")
    assert lock.holder() is None
    with pytest.raises(UnreachableError, match=r"s3://bucket/study: can't be locked \(slow down\)"), lock:
        pass
    assert not store.written


def test_the_heart_beats_and_notices_when_the_lock_is_taken(file, monkeypatch):
    monkeypatch.setattr(locks, "HEARTBEAT_SECONDS", 0.05)
    lost = []
    with StudyLock(file) as lock:
        lock.lost = lambda: lost.append(True)
        first = read_lock(file).beat
        wait_until(lambda: read_lock(file).beat > first, seconds=5)
        taken = {"token": "t", "host": "elsewhere", "pid": 1, "born": "1", "beat": time.time()}
        other = file.with_suffix(".other")

        def take():
            """Again, if a heartbeat that had looked before has written over it."""
            other.write_text(json.dumps(taken))
            other.replace(file)
            return lost

        wait_until(take, seconds=5)
    assert read_lock(file).host == "elsewhere"  # what is not ours is not taken away


def test_who_asks_between_two_heartbeats_is_told_that_the_lock_was_taken(file):
    lost = []
    with StudyLock(file) as lock:
        lock.lost = lambda: lost.append(True)
        assert lock.check()
        assert not lost
        file.write_text(json.dumps({"token": "t", "host": "elsewhere", "pid": 1, "born": "1", "beat": time.time()}))
        assert not lock.check()
    assert lost


def test_of_many_that_see_a_stale_lock_one_gets_it(file):
    stale = {"token": "t", "host": "elsewhere", "pid": 1, "born": "1", "beat": 0.0}
    file.write_text(json.dumps(stale))
    tries = [
        subprocess.Popen(
            [sys.executable, "-c", HOLD, file],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for _ in range(4)
    ]
    try:
        wait_until(lambda: sum(process.poll() is not None for process in tries) == 3, seconds=30)
        (winner,) = (process for process in tries if process.poll() is None)
        assert read_lock(file).pid == winner.pid
    finally:
        for process in tries:
            process.kill()
            process.communicate()
