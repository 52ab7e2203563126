"""What checkpoints are made of: bytes in a folder, states as bytes, manifests and digests."""

from __future__ import annotations

import hashlib
import json
import random
import resource
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from scalestudy.training.checkpoint.byte_store import LocalByteStore
from scalestudy.training.checkpoint.files import SHARED, Manifest, PartSummary, part_name
from scalestudy.training.models import LeNet
from scalestudy.training.state import pack, unpack

# --- a folder ----------------------------------------------------------------------------------------------------


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


# --- states ------------------------------------------------------------------------------------------------------

dtypes = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
tensors = st.builds(
    lambda shape, dtype, seed: torch.from_numpy(np.random.default_rng(seed).integers(0, 200, shape)).to(dtype),
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
    dtypes,
    st.integers(0, 2**32 - 1),
)
leaves = st.none() | st.booleans() | st.integers(-(2**100), 2**100) | st.floats() | st.text() | tensors
states = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=4)
    ),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    """Whether two states are equal, types and NaN included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other or (one != one and other != other)


@given(states)
def test_a_state_survives(state: Any) -> None:
    assert same(unpack(pack(state)), state)


def test_states_of_a_training_survive() -> None:
    model = LeNet(10, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.rand(2, 1, 28, 28)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": torch.get_rng_state()}
    assert same(unpack(pack(state)), state)


def test_tied_weights_stay_tied() -> None:
    weight = nn.Parameter(torch.ones(3))
    again = unpack(pack({"one": weight, "other": weight}))
    assert type(again["one"]) is nn.Parameter
    assert again["one"].data_ptr() == again["other"].data_ptr()


class _Float(float):
    pass


@pytest.mark.parametrize(
    ("state", "place"),
    [
        ({"a": [1, np.float64(2)]}, "state['a'][1]: a numpy.float64"),
        ({"a": np.zeros(2)}, "state['a']: a numpy.ndarray"),
        ((_Float(1),), f"state[0]: a {__name__}._Float"),
        (torch.Size([1]), "state: a torch.Size"),
        ({1.5: 0}, "state: a key of type builtins.float"),
        ({True: 0}, "state: a key of type builtins.bool"),
        ({"a": LeNet}, "state['a']: a builtins.type"),
    ],
)
def test_what_could_not_be_read_again_is_not_written(state: Any, place: str) -> None:
    with pytest.raises(ValueError) as error:
        pack(state)
    assert str(error.value) == (
        f"{place} can't be in a checkpoint; turn it into tensors, numbers, strings, lists or dicts"
    )


def test_types_that_only_torch_allows_are_refused_when_read(tmp_path: Path) -> None:
    torch.save({"shape": torch.Size([1])}, tmp_path / "state.pt")
    with pytest.raises(ValueError, match=r"^state\['shape'\]: a torch.Size; resume from a checkpoint"):
        unpack((tmp_path / "state.pt").read_bytes())


@settings(max_examples=200)
@given(st.randoms(use_true_random=False))
def test_damaged_states_are_value_errors(chance: random.Random) -> None:
    """Here a change of the numbers alone may pass: the checksums of the manifest are what finds it."""
    data = bytearray(pack({"weights": torch.arange(3.0), "random": [1, (2.5, None)]}))
    for _ in range(chance.randrange(1, 4)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    cut = bytes(data[: chance.choice([len(data), chance.randrange(len(data))])])
    try:
        unpack(cut)
    except ValueError as error:
        assert "\n" not in str(error)  # noqa: PT017 - it need not be raised


@pytest.mark.parametrize("data", [b"", b"garbage", b"PK\x03\x04", bytes(1_000)])
def test_what_is_no_state_is_refused(data: bytes) -> None:
    with pytest.raises(
        ValueError, match=rf"^state: {len(data)} bytes can't be read \(.*hold code; resume from a check"
    ):
        unpack(data)


# --- digests and manifests ---------------------------------------------------------------------------------------


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
