"""A folder as a store of bytes under names."""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from scalestudy.training.checkpoint.byte_store import LocalByteStore


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../a",
        "a/../b",
        "/a",
        "a/",
        "a//b",
        "a/./b",
        ".a",
        "a/.b",
        "a\\b",
        "a b",
        "a\n",
        "a\0",
        "ä",
        "~",
        "C:",
    ],
)
def test_names_stay_in_the_folder(tmp_path: Path, name: str) -> None:
    store = LocalByteStore(tmp_path / "store")
    for act in (lambda: store.write(name, b""), lambda: store.read(name), lambda: store.delete(name)):
        with pytest.raises(ValueError, match=r"is not a name in a store; use words of"):
            act()
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_ours_is_not_listed(tmp_path: Path) -> None:
    store = LocalByteStore(tmp_path)
    for name in ("b/x", "a", "b/a"):
        store.write(name, b"")
    for foreign in (".DS_Store", "b/my notes"):
        (tmp_path / foreign).write_bytes(b"")
    assert store.names() == ["a", "b/a", "b/x"]
    assert store.names("b") == ["b/a", "b/x"]


def test_a_store_that_can_t_be_listed_is_not_empty(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert LocalByteStore(tmp_path / "none").names() == []
    with pytest.raises(NotADirectoryError):
        LocalByteStore(tmp_path / "file").names()


def test_a_folder_that_goes_while_it_is_listed_holds_nothing(tmp_path: Path) -> None:
    store = LocalByteStore(tmp_path)
    done = threading.Event()

    def write_and_delete() -> None:
        while not done.is_set():
            store.write("a/b/c", b"")
            store.delete("a/b/c")

    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(write_and_delete)
        try:
            seen = [tuple(store.names()) for _ in range(2_000)]
        finally:
            done.set()
        writer.result()
    assert set(seen) <= {(), ("a/b/c",)}


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Files of this process can't grow larger: the disk is full, so to speak."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    store = LocalByteStore(tmp_path)
    store.write("a/b", b"before")
    with largest_file(1_000), pytest.raises(OSError, match="File too large"):
        store.write("a/b", bytes(2_000))
    assert store.read("a/b") == b"before"
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]


def test_what_killed_writers_left_goes_with_the_name(tmp_path: Path) -> None:
    store = LocalByteStore(tmp_path)
    store.write("a/b", b"")
    (tmp_path / "a" / f".b.{'0' * 32}").write_bytes(b"half")
    (tmp_path / "a" / f".b.c.{'0' * 32}").write_bytes(b"of another name")
    assert store.names() == ["a/b"]
    store.delete("a/b")
    store.delete("a/b")
    assert [path.name for path in (tmp_path / "a").iterdir()] == [f".b.c.{'0' * 32}"]
    store.delete("a/b.c")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        store.read("a/b")
