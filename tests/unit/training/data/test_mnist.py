"""Data sets in IDX files: what they hold, and what happens when files are missing, damaged or fetched."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import struct
import threading
import time
from http.client import IncompleteRead
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from scalestudy.training.data import DataError, downloads
from scalestudy.training.data.mnist import FASHION_MNIST, FILES, MNIST, IdxSource, load_source, parse_idx


def idx_bytes(array: NDArray[np.uint8]) -> bytes:
    """The IDX file that holds the array."""
    return struct.pack(f">I{array.ndim}I", 0x0800 + array.ndim, *array.shape) + array.tobytes()


def tiny_arrays() -> dict[str, NDArray[np.uint8]]:
    """Five training and three test images of 4 × 6 pixels."""
    random = np.random.default_rng(0)
    shapes = dict(zip(FILES, [(5, 4, 6), (5,), (3, 4, 6), (3,)], strict=True))
    return {file: random.integers(0, 10, shape, dtype=np.uint8) for file, shape in shapes.items()}


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    """A folder with the four packed files, in torchvision's layout."""
    raw = tmp_path / "origin" / "Tiny" / "raw"
    raw.mkdir(parents=True)
    for file, array in tiny_arrays().items():
        (raw / f"{file}.gz").write_bytes(gzip.compress(idx_bytes(array), mtime=0))
    return tmp_path / "origin"


@pytest.fixture
def source(origin: Path) -> IdxSource:
    """Those files with their checksums; the mirrors are one that lacks them and the folder itself."""
    raw = origin / "Tiny" / "raw"
    md5 = {file: hashlib.md5((raw / f"{file}.gz").read_bytes()).hexdigest() for file in FILES}
    return IdxSource("fashion_mnist", "Tiny", (f"{raw.parent.as_uri()}/nowhere/", f"{raw.as_uri()}/"), md5)


def test_packed_files_are_read_without_writing(source: IdxSource, origin: Path) -> None:
    before = sorted(path.name for path in origin.rglob("*"))
    arrays = source.load(origin)
    for array, expected in zip(arrays, tiny_arrays().values(), strict=True):
        assert np.array_equal(array, expected)
    assert sorted(path.name for path in origin.rglob("*")) == before


def test_pixels_become_inputs_in_0_to_1(source: IdxSource, origin: Path) -> None:
    splits = load_source(source, str(origin))
    assert splits.train_inputs.shape == (5, 1, 4, 6)
    assert splits.train_inputs.dtype == torch.float32
    expected = torch.from_numpy(tiny_arrays()[FILES[0]].astype(np.float32) / 255)
    assert torch.allclose(splits.train_inputs[:, 0], expected, atol=1e-7)
    assert splits.test_targets.tolist() == tiny_arrays()[FILES[3]].tolist()
    assert (splits.num_classes, splits.in_channels) == (10, 1)


def test_the_first_examples_alone(source: IdxSource, origin: Path) -> None:
    some, whole = load_source(source, str(origin), 3, 1), load_source(source, str(origin))
    assert torch.equal(some.train_inputs, whole.train_inputs[:3])
    assert torch.equal(some.train_targets, whole.train_targets[:3])
    assert torch.equal(some.test_inputs, whole.test_inputs[:1])
    assert torch.equal(some.test_targets, whole.test_targets[:1])


@pytest.mark.parametrize("count", [0, 6, 1.5, True, "3"])
def test_more_examples_than_there_are(source: IdxSource, origin: Path, count: object) -> None:
    with pytest.raises(ValueError, match=r"data_args\.train_samples: .* is not a whole number from 1 to 5"):
        load_source(source, str(origin), train_samples=count)


@pytest.fixture
def square(tmp_path: Path) -> tuple[IdxSource, str]:
    """Two training images and a test image of 4 × 4 pixels: 0 to 15, then ones."""
    ramp = np.arange(16, dtype=np.uint8).reshape(1, 4, 4)
    arrays = [np.concatenate([ramp, np.full_like(ramp, 1)]), np.zeros(2, np.uint8), ramp, np.zeros(1, np.uint8)]
    raw = tmp_path / "Tiny" / "raw"
    raw.mkdir(parents=True)
    for file, array in zip(FILES, arrays, strict=True):
        (raw / file).write_bytes(idx_bytes(array))
    return IdxSource("fashion_mnist", "Tiny", (), {}), str(tmp_path)


def test_smaller_images_have_the_means_of_squares(square: tuple[IdxSource, str]) -> None:
    source, root = square
    splits = load_source(source, root, image_size=2)
    means = torch.tensor([[2.5, 4.5], [10.5, 12.5]]) / 255  # (0 + 1 + 4 + 5) / 4, …
    assert torch.allclose(splits.train_inputs[:, 0], torch.stack([means, torch.full((2, 2), 1 / 255)]))
    assert torch.allclose(splits.test_inputs[0, 0], means)
    assert torch.equal(load_source(source, root, image_size=4).train_inputs, load_source(source, root).train_inputs)


@pytest.mark.parametrize("size", [0, 3, 8, True, 2.5, "2"])
def test_images_of_an_impossible_size(square: tuple[IdxSource, str], size: object) -> None:
    source, root = square
    with pytest.raises(ValueError, match=r"data_args\.image_size: .* is none of 4, 2, 1"):
        load_source(source, root, image_size=size)


def test_unpacked_files_are_read_too(source: IdxSource, tmp_path: Path) -> None:
    raw = tmp_path / "root" / "Tiny" / "raw"
    raw.mkdir(parents=True)
    for file, array in tiny_arrays().items():
        (raw / file).write_bytes(idx_bytes(array))
    source.require(tmp_path / "root")
    assert source.load(tmp_path / "root")[0].shape == (5, 4, 6)


def test_a_missing_file_names_the_remedy(source: IdxSource, origin: Path) -> None:
    (origin / "Tiny" / "raw" / f"{FILES[3]}.gz").unlink()
    for read in (source.require, source.load):
        with pytest.raises(DataError, match=f"no {FILES[3]} in .*scalestudy data fetch fashion_mnist"):
            read(origin)


@pytest.mark.parametrize("damage", [lambda content: content[:-9], lambda content: b"", lambda content: b"x" * 40])
def test_a_damaged_packed_file_is_named(source: IdxSource, origin: Path, damage: object) -> None:
    path = origin / "Tiny" / "raw" / f"{FILES[0]}.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=f"{FILES[0]}.gz: checksum .*delete it and run `scalestudy data fetch"):
        source.load(origin)


@pytest.mark.parametrize(
    ("file", "content", "found"),
    [
        (FILES[0], idx_bytes(tiny_arrays()[FILES[0]])[:-1], "shape .* takes 136 bytes and the file has 135"),
        (FILES[1], idx_bytes(tiny_arrays()[FILES[0]]), "files hold arrays of shapes"),
        (FILES[1], idx_bytes(np.full(5, 10, dtype=np.uint8)), "labels above 9"),
    ],
    ids=["cut short", "images for labels", "labels above nine"],
)
def test_an_unpacked_file_of_another_content_is_refused(
    source: IdxSource, origin: Path, file: str, content: bytes, found: str
) -> None:
    raw = origin / "Tiny" / "raw"
    (raw / f"{file}.gz").unlink()
    (raw / file).write_bytes(content)
    with pytest.raises(DataError, match=found):
        load_source(source, str(origin))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=4).map(tuple))
def test_idx_holds_any_shape(shape: tuple[int, ...]) -> None:
    array = np.arange(int(np.prod(shape)), dtype=np.uint8).reshape(shape)
    assert np.array_equal(parse_idx(idx_bytes(array)), array)


@given(st.binary(max_size=40))
def test_idx_refuses_whatever_is_none(content: bytes) -> None:
    with contextlib.suppress(DataError):  # and nothing else
        assert parse_idx(content).nbytes <= len(content)


@pytest.mark.parametrize("folder", ["", "Tiny", "Tiny/raw"])
def test_fetch_copies_from_a_folder(source: IdxSource, origin: Path, tmp_path: Path, folder: str) -> None:
    new = source.fetch(tmp_path / "root", origin / folder)
    assert [path.name for path in new] == [f"{file}.gz" for file in FILES]
    assert source.load(tmp_path / "root")[0].shape == (5, 4, 6)
    assert source.fetch(tmp_path / "root", origin / folder) == []


def test_fetch_tries_the_mirrors_in_turn(source: IdxSource, tmp_path: Path) -> None:
    assert len(source.fetch(tmp_path / "root", None)) == 4
    assert source.load(tmp_path / "root")[3].shape == (3,)
    assert not list(tmp_path.rglob(".*"))


def test_fetch_without_a_good_mirror_leaves_nothing(source: IdxSource, tmp_path: Path) -> None:
    dead = IdxSource(source.name, source.folder, source.mirrors[:1], source.md5)
    remedy = "; check the network, or name a folder that has the files: scalestudy data fetch fashion_mnist --from DIR"
    with pytest.raises(DataError, match=f"{remedy}$"):
        dead.fetch(tmp_path / "root", None)
    assert not (tmp_path / "root").exists()


def test_a_mirror_behind_a_proxy_names_it(source: IdxSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"http_proxy": "http://127.0.0.1:9", "no_proxy": "", "NO_PROXY": ""}.items():
        monkeypatch.setenv(name, value)
    behind = IdxSource(source.name, source.folder, ("http://far.invalid/",), source.md5)
    with pytest.raises(DataError, match=r"through the proxy http://127.0.0.1:9 \(no_proxy does not list far.invalid\)"):
        behind.fetch(tmp_path / "root", None)


def test_a_mirror_that_never_answers_is_not_waited_for(
    source: IdxSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a host's name is looked up without a network: no socket is there yet that could time out."""
    assert downloads.DOWNLOAD_TIMEOUT_SECONDS <= 10
    ended = threading.Event()
    monkeypatch.setattr(downloads, "DOWNLOAD_TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr("urllib.request.urlopen", lambda url, timeout: ended.wait(20))
    started = time.monotonic()
    with pytest.raises(DataError, match=r"no answer within 0\.05 seconds, .*; check the network"):
        source.fetch(tmp_path / "root", None)
    ended.set()
    assert time.monotonic() - started < 10
    assert not (tmp_path / "root").exists()


def test_a_mirror_that_breaks_off_is_a_problem_of_that_mirror(
    source: IdxSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_off(url: str, timeout: float) -> None:
        raise IncompleteRead(b"", 9)

    monkeypatch.setattr("urllib.request.urlopen", break_off)
    with pytest.raises(DataError, match="IncompleteRead"):
        source.fetch(tmp_path / "root", None)


def test_fetch_refuses_a_file_with_another_checksum(source: IdxSource, origin: Path, tmp_path: Path) -> None:
    (origin / "Tiny" / "raw" / f"{FILES[2]}.gz").write_bytes(b"other")
    with pytest.raises(DataError, match="checksum"):
        source.fetch(tmp_path / "root", origin)
    assert not (tmp_path / "root" / "Tiny" / "raw" / f"{FILES[2]}.gz").exists()


def test_fetch_from_a_folder_without_the_files(source: IdxSource, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="give the folder that has Tiny/raw/"):
        source.fetch(tmp_path / "root", tmp_path)


def test_fetch_into_an_impossible_folder(source: IdxSource, origin: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match="set SCALESTUDY_DATA to a folder that you may write"):
        source.fetch(tmp_path / "file", origin)


def test_checksums_and_mirrors_are_torchvisions() -> None:
    from scalestudy.training.torchvision_compat import import_torchvision

    datasets = import_torchvision().datasets
    for source, theirs in ((MNIST, datasets.MNIST), (FASHION_MNIST, datasets.FashionMNIST)):
        assert {f"{file}.gz": md5 for file, md5 in source.md5.items()} == dict(theirs.resources)
        assert list(source.mirrors) == theirs.mirrors
        assert source.folder == theirs.__name__
