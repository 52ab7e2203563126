"""A checkpoint's manifest; checkpoints in a store: found whole, passed over when damaged, forgotten when old."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalestudy.training.checkpoint.byte_store import ByteStore, LocalByteStore
from scalestudy.training.checkpoint.files import (
    MANIFEST,
    SHARED,
    CheckpointError,
    Manifest,
    PartSummary,
    Search,
    file_name,
    forget_newer,
    forget_old,
    latest,
    open_checkpoint,
    part_name,
    write_manifest,
    write_part,
)
from scalestudy.training.data.readers import fork_server
from scalestudy.training.state import pack
from tests.support.training.checkpoints import (
    LENET,
    NAMES,
    manifest_of,
    numbers_in,
    origins,
    resume,
    save,
    state_in,
    write_for_ever,
)


@given(st.binary())
def test_a_summary_tells_its_bytes_from_others(data: bytes) -> None:
    summary = PartSummary.of("part-0.pt", data)
    assert summary.problem_with(data) is None
    assert summary.problem_with(data + b"x") == f"part-0.pt has {len(data) + 1} bytes, not {len(data)}"


def manifest(**changes: Any) -> Manifest:
    parts = tuple(PartSummary.of(name, b"data") for name in (SHARED, part_name(0), part_name(1)))
    values = {"number": 3, "world_size": 2, "identity": "lenet ü", "epoch": 2, "step": 40, "parts": parts}
    return Manifest(**(values | changes))


def test_a_manifest_is_plain_json() -> None:
    written = json.loads(manifest().to_bytes())
    del written["sha256"]
    file = {"bytes": 4, "sha256": hashlib.sha256(b"data").hexdigest()}
    assert written == {
        "format": 1,
        "number": 3,
        "world_size": 2,
        "identity": "lenet ü",
        "position": {"epoch": 2, "step": 40},
        "files": {"shared.pt": file, "part-0.pt": file, "part-1.pt": file},
    }
    assert Manifest.from_bytes(manifest().to_bytes()) == manifest()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"number": -1}, "number: -1 is too small; give at least 0"),
        ({"world_size": 0}, "world_size: 0 is too small; give at least 1"),
        ({"epoch": -1}, "epoch: -1 is too small; give at least 0"),
        ({"step": -1}, "step: -1 is too small; give at least 0"),
        ({"world_size": 3}, "parts: no part-2.pt; write the shared part and one for each rank"),
        ({"parts": ()}, "parts: no part-0.pt, part-1.pt, shared.pt; write the shared part and one for each rank"),
        (
            {"parts": (*manifest().parts, manifest().parts[0])},
            "parts: part-0.pt, part-1.pt, shared.pt, shared.pt name a part twice; give each once",
        ),
        (
            {"parts": (*manifest().parts, PartSummary("a/b", 0, "0" * 64))},
            "name: 'a/b' is not a part's name; use 'shared.pt', part_name(rank) or a plain file name",
        ),
    ],
)
def test_unfit_manifests_are_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError) as error:
        manifest(**changes)
    assert str(error.value) == problem


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"3", b"null", b"[" * 100_000, b'{"format": 1}', b"\xff"])
def test_what_is_no_manifest_is_damaged(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"^manifest.json is damaged$"):
        Manifest.from_bytes(data)


def test_a_manifest_edited_by_hand_is_damaged() -> None:
    data = manifest().to_bytes()
    for old, new in ((b'"step": 40', b'"step": 41'), (b'"step": 40', b'"step":40'), (b"part-1", b"part-0")):
        assert old in data
        with pytest.raises(ValueError, match=r"^manifest.json is damaged$"):
            Manifest.from_bytes(data.replace(old, new))


def test_another_format_says_so() -> None:
    with pytest.raises(ValueError, match=r"^manifest.json is of format 2, not 1$"):
        Manifest.from_bytes(manifest().to_bytes().replace(b'"format": 1', b'"format": 2'))


@pytest.fixture
def store(tmp_path: Path) -> LocalByteStore:
    return LocalByteStore(tmp_path / "checkpoints")


def test_the_newest_is_found_whole(store: LocalByteStore) -> None:
    for number in (3, 9, 10):
        save(store, number)
    search = latest(store, LENET)
    assert search.found is not None
    assert (search.messages, search.found.manifest.number, search.found.manifest.step) == ((), 10, 10)
    assert origins(search) == {(name, 10, 0) for name in NAMES}
    assert torch.equal(search.found.read(SHARED)["weights"], torch.full((4,), 10.0))
    assert store.names("00000010/") == [f"00000010/{name}" for name in (MANIFEST, *sorted(NAMES))]


def test_an_empty_store_holds_none(store: LocalByteStore) -> None:
    assert latest(store, LENET) == Search(None, ())


class CountingStore(LocalByteStore):
    """Counts how often each name is read."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.reads: list[str] = []

    def read(self, name: str) -> bytes:
        self.reads.append(name.rpartition("/")[2])
        return super().read(name)


def test_what_is_held_is_read_once(tmp_path: Path) -> None:
    store = CountingStore(tmp_path)
    save(store, 1)
    assert origins(latest(store, LENET, hold=[SHARED, part_name(0)])) == {(name, 1, 0) for name in NAMES}
    assert sorted(store.reads) == sorted([MANIFEST, *NAMES, part_name(1)])


def test_parts_that_are_not_there_are_refused(store: LocalByteStore) -> None:
    save(store, 1)
    with pytest.raises(ValueError, match=r"name: 'part-2.pt' is not a part of checkpoint 1; choose one of"):
        open_checkpoint(store, 1).read(part_name(2))
    for name in (MANIFEST, "../part-0.pt", "a/b", ".part", ""):
        with pytest.raises(ValueError, match=r"is not a part's name; use 'shared.pt'"):
            write_part(store, 1, name, b"")
    with pytest.raises(ValueError, match="number: -1 is negative; "):
        write_part(store, -1, SHARED, b"")


def damage(store: ByteStore, name: str, how: str) -> None:
    data = store.read(name)
    changed = {
        "flipped": data[:-3] + bytes([data[-3] ^ 1]) + data[-2:],
        "truncated": data[: len(data) // 2],
        "emptied": b"",
        "lengthened": data + b" ",
    }
    if how == "deleted":
        store.delete(name)
    else:
        store.write(name, changed[how])


@pytest.mark.parametrize("how", ["flipped", "truncated", "emptied", "lengthened", "deleted"])
@pytest.mark.parametrize("name", [*NAMES, MANIFEST])
def test_damage_falls_back_with_a_message(store: LocalByteStore, name: str, how: str) -> None:
    save(store, 1)
    save(store, 2)
    damage(store, file_name(2, name), how)
    search = latest(store, LENET)
    assert origins(search) == {(other, 1, 0) for other in NAMES}
    (message,) = search.messages
    assert message.startswith("checkpoint 2 is skipped: ")
    assert "it was not finished" in message if (name, how) == (MANIFEST, "deleted") else name in message
    damage(store, file_name(1, name), how)
    search = latest(store, LENET)
    assert (search.found, len(search.messages)) == (None, 2)
    assert resume(store) == 0
    assert store.names() == []


@given(st.data())
def test_no_flipped_bit_passes(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = LocalByteStore(folder)
        save(store, 1)
        name = data.draw(st.sampled_from(store.names()))
        content = bytearray(store.read(name))
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        store.write(name, bytes(content))
        search = latest(store, LENET)
        assert search.found is None
        assert len(search.messages) == 1
        assert "\n" not in search.messages[0]


def test_damage_after_the_search_is_an_error(store: LocalByteStore) -> None:
    save(store, 1)
    found = latest(store, LENET, hold=[SHARED]).found
    assert found is not None
    for name in NAMES:
        damage(store, file_name(1, name), "flipped")
    assert found.read(SHARED)["from"] == (SHARED, 1, 0)  # held since it was verified
    with pytest.raises(
        CheckpointError, match=r"^checkpoint 1: part-0.pt has another checksum .*; resume again"
    ) as error:
        found.read(part_name(0))
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)
    store.delete(file_name(1, MANIFEST))
    with pytest.raises(CheckpointError, match="checkpoint 1: it was not finished; "):
        open_checkpoint(store, 1)


def test_a_manifest_of_another_number_is_passed_over(store: LocalByteStore) -> None:
    save(store, 1)
    for name in store.names():
        store.write(name.replace("00000001", "00000002"), store.read(name))
    search = latest(store, LENET)
    assert search.messages == ("checkpoint 2 is skipped: manifest.json is that of checkpoint 1",)
    assert origins(search) == {(name, 1, 0) for name in NAMES}


class _Evil:
    """Makes a folder when unpickled."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return (os.mkdir, (self._folder,))


def test_code_in_a_part_is_not_run(store: LocalByteStore, tmp_path: Path) -> None:
    torch.save({"weights": _Evil(tmp_path / "ran")}, tmp_path / "evil.pt")
    for number, data in enumerate([pickle.dumps(_Evil(tmp_path / "ran")), (tmp_path / "evil.pt").read_bytes()]):
        parts = [write_part(store, number, name, data) for name in NAMES]
        write_manifest(store, manifest_of(number, parts))
        found = latest(store, LENET).found
        assert found is not None
        with pytest.raises(ValueError, match=r"damaged or hold code; resume from a checkpoint that") as error:
            found.read(SHARED)
        assert "\n" not in str(error.value)
        assert not (tmp_path / "ran").exists()
        pickle.loads(pickle.dumps(_Evil(tmp_path / "ran")))
        (tmp_path / "ran").rmdir()  # the code would have run


def test_another_model_is_refused(store: LocalByteStore) -> None:
    save(store, 1)
    save(store, 2, identity="resnet18")
    with pytest.raises(
        ValueError, match=r"checkpoint: 2 is of another training \('resnet18' there, 'lenet' here\); resum"
    ):
        latest(store, LENET)
    assert latest(store, "resnet18").found is not None
    damage(store, file_name(2, MANIFEST), "flipped")
    assert origins(latest(store, LENET)) == {(name, 1, 0) for name in NAMES}
    with pytest.raises(ValueError, match="checkpoint: 1 is of another training"):
        latest(store, "resnet18")


def test_the_last_two_are_kept(store: LocalByteStore) -> None:
    for number in range(4):
        save(store, number)
        forget_old(store)
        assert numbers_in(store) == {number, max(number - 1, 0)}
    forget_old(store, keep=1)
    assert numbers_in(store) == {3}
    with pytest.raises(ValueError, match="keep: 0 would delete the newest checkpoint; give at least 1"):
        forget_old(store, keep=0)


def test_only_what_is_older_than_the_newest_is_forgotten(store: LocalByteStore) -> None:
    for number in (1, 3, 5):
        save(store, number)
    for number in (0, 2, 4, 6):  # begun only
        write_part(store, number, SHARED, b"")
    others = ["00000001x/part-0.pt", "1/part-0.pt", "000000001/part-0.pt", "notes.txt"]
    for name in others:
        store.write(name, b"somebody else's")
    forget_old(store)
    assert {name.partition("/")[0] for name in store.names()} - {other.partition("/")[0] for other in others} == {
        "00000003",
        "00000005",
        "00000006",
    }
    assert set(others) < set(store.names())
    forget_newer(store, 3)
    assert {name for name in store.names() if name not in others} == {file_name(3, name) for name in (MANIFEST, *NAMES)}
    forget_newer(store, None)
    assert store.names() == sorted(others)


# --- writing or deleting that is cut short, at any operation, by an error or by a real SIGKILL ------------------------


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


@settings(max_examples=15)  # each single death is in the test above
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


def wait_for(store: ByteStore, number: int, process: BaseProcess) -> None:
    """Until a part of this checkpoint is written."""
    deadline = time.monotonic() + 120
    while max(numbers_in(store), default=-1) < number:
        assert process.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_killed_process_leaves_a_readable_store(tmp_path: Path) -> None:
    store = LocalByteStore(tmp_path)
    process = fork_server(store).Process(target=write_for_ever, args=(str(tmp_path),))
    process.start()
    try:
        wait_for(store, 2, process)
        time.sleep(random.uniform(0, 0.02))  # at any place of a checkpoint
    finally:
        process.kill()
        process.join()
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
