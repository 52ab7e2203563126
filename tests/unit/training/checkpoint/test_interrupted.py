"""Checkpoints whose writing or deleting is cut short, at any operation, by an error or by a real SIGKILL."""

from __future__ import annotations

import itertools
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalestudy.training.checkpoint.byte_store import ByteStore, LocalByteStore
from scalestudy.training.checkpoint.files import (
    MANIFEST,
    file_name,
    forget_old,
    latest,
    open_checkpoint,
    write_manifest,
    write_part,
)
from scalestudy.training.state import pack
from tests.support.training.checkpoints import LENET, NAMES, manifest_of, numbers_in, origins, resume, save, state_in


class KilledError(Exception):
    """Stands for the end of the process."""


class MortalStore(LocalByteStore):
    """A store whose process dies in an operation: before it has an effect, half through a write, or right after it.

    A half write leaves half a file under its name, which LocalByteStore itself never does: stores without a rename may.
    """

    def __init__(self, folder: str | Path, operations: int, manner: str) -> None:
        super().__init__(folder)
        self._left, self._manner = operations, manner

    def write(self, name: str, data: bytes) -> None:
        last = self._is_last()
        if last and self._manner == "half":
            super().write(name, data[: len(data) // 2])
        if not last or self._manner == "after":
            super().write(name, data)
        self._end(last)

    def delete(self, name: str) -> None:
        last = self._is_last()
        if not last or self._manner == "after":
            super().delete(name)
        self._end(last)

    def _is_last(self) -> bool:
        self._left -= 1
        return self._left < 0

    def _end(self, last: bool) -> None:
        if last:
            raise KilledError


MANNERS = ("before", "half", "after")


def live(store: ByteStore, life: int, checkpoints: int, done: dict[int, int]) -> None:
    """One life of a training: go on from the newest checkpoint and write some more; those whole are noted in `done`."""
    first = resume(store)
    for number in range(first, first + checkpoints):
        parts = [write_part(store, number, name, pack(state_in(name, number, life))) for name in NAMES]
        manifest = manifest_of(number, parts)
        try:
            write_manifest(store, manifest)
        finally:  # killed right after the write, it is whole; what is there tells
            name = file_name(number, MANIFEST)
            if name in store.names() and store.read(name) == manifest.to_bytes():
                done[number] = life
        forget_old(store)


def check_against(folder: str, done: dict[int, int]) -> None:
    """The newest whole checkpoint is found, of one life; and the one before it, if the newest gets lost."""
    store = LocalByteStore(folder)
    search = latest(store, LENET)
    assert (search.found is None) == (not done)
    if done:
        newest = max(done)
        assert origins(search) == {(name, newest, done[newest]) for name in NAMES}
    if len(done) > 1:
        before = sorted(done)[-2]
        found = open_checkpoint(store, before)
        assert {found.read(name)["from"] for name in NAMES} == {(name, before, done[before]) for name in NAMES}


def lives(folder: str, deaths: Sequence[tuple[int, str]]) -> Iterator[dict[int, int]]:
    """What was whole after each death."""
    done: dict[int, int] = {}
    for life, (operations, manner) in enumerate(deaths):
        with suppress(KilledError):
            live(MortalStore(folder, operations, manner), life, 4, done)
        yield done


@pytest.mark.parametrize("manner", MANNERS)
def test_killed_at_any_operation(tmp_path: Path, manner: str) -> None:
    """Four checkpoints take 16 writes and 8 deletions: 24 places to die in, and then none."""
    whole = []
    for operations in range(25):
        folder = str(tmp_path / str(operations))
        for done in lives(folder, [(operations, manner)]):
            check_against(folder, done)
            whole.append(len(done))
    assert whole[0] == 0
    assert whole[-1] == 4
    assert whole == sorted(whole)
    assert LocalByteStore(folder).names("00000003") == [f"00000003/{name}" for name in (MANIFEST, *sorted(NAMES))]
    assert numbers_in(LocalByteStore(folder)) == {2, 3}


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 26), st.sampled_from(MANNERS)), min_size=2, max_size=5))
def test_killed_again_and_again(deaths: list[tuple[int, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for done in lives(folder, deaths):
            check_against(folder, done)


@pytest.mark.parametrize("manner", MANNERS)
def test_a_deletion_cut_short_never_looks_whole(tmp_path: Path, manner: str) -> None:
    """Three checkpoints to delete, of four files each."""
    for operations in range(13):
        folder = tmp_path / str(operations)
        store = LocalByteStore(folder)
        for number in range(5):
            save(store, number)
        try:
            forget_old(MortalStore(folder, operations, manner))
        except KilledError:
            assert operations < 12
        for number in numbers_in(store):
            if file_name(number, MANIFEST) in store.names():
                assert {open_checkpoint(store, number).read(name)["from"][1] for name in NAMES} == {number}
        assert origins(latest(store, LENET)) == {(name, 4, 0) for name in NAMES}
        forget_old(store)
        assert numbers_in(store) == {3, 4}


def write_for_ever(folder: str) -> None:
    """A process to be killed: some megabytes a checkpoint, so that it is mostly writing."""
    store = LocalByteStore(folder)
    for number in itertools.count(resume(store)):
        save(store, number, size=500_000)
        forget_old(store)


def wait_for(store: ByteStore, number: int, process: subprocess.Popen[bytes]) -> None:
    """Until a part of this checkpoint is written."""
    deadline = time.monotonic() + 120
    while max(numbers_in(store), default=-1) < number:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_killed_process_leaves_a_readable_store(tmp_path: Path) -> None:
    store = LocalByteStore(tmp_path)
    code = f"from {__name__} import write_for_ever; write_for_ever({str(tmp_path)!r})"
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        wait_for(store, 2, process)
        time.sleep(random.uniform(0, 0.02))  # at any place of a checkpoint
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    search = latest(store, LENET)
    assert search.found is not None
    number = search.found.manifest.number
    assert number >= 1
    assert origins(search) == {(name, number, 0) for name in NAMES}
    assert all("not finished" in message for message in search.messages)
    first = resume(store)
    for number in range(first, first + 3):
        save(store, number)
        forget_old(store)
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(left) == 2 * (len(NAMES) + 1)  # what the killed writers had left aside is gone too
