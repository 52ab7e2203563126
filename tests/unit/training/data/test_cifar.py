"""CIFAR-10's files: read without running a pickle, refused when damaged, fetched."""

from __future__ import annotations

import hashlib
import io
import pickle
import tarfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from scalestudy.training.data import DataError, require
from scalestudy.training.data.cifar import CIFAR10, FILES, NAMES_FILE, TEST_FILE, CifarSource, load_source, parse_batch

FOLDER = "cifar-10-batches-py"


class Python2Pickler(pickle._Pickler):
    """Writes text and bytes alike as Python 2's `str`, and NumPy's names of that time, as the published files do."""

    dispatch: ClassVar[dict[type, Any]] = dict(pickle._Pickler.dispatch)

    def save_str(self, value: str | bytes) -> None:
        content = value.encode("latin1") if isinstance(value, str) else value
        self.write(pickle.BINSTRING + len(content).to_bytes(4, "little") + content)
        self.memoize(value)

    dispatch[str] = dispatch[bytes] = save_str


def batch_bytes(content: dict[str, Any]) -> bytes:
    """The file that holds the dictionary."""
    stream = io.BytesIO()
    Python2Pickler(stream, protocol=2).dump(content)
    return stream.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def images_of(file: str) -> NDArray[np.uint8]:
    """Two images of one file, (2, 3, 32, 32)."""
    return np.random.default_rng(FILES.index(file)).integers(0, 256, (2, 3, 32, 32), dtype=np.uint8)


def file_contents() -> dict[str, bytes]:
    """All seven files; the labels of the i-th are i and i + 1."""
    batches = {
        file: batch_bytes({"batch_label": "x", "data": images_of(file).reshape(2, -1), "labels": [place, place + 1]})
        for place, file in enumerate(FILES)
    }
    return {**batches, NAMES_FILE: batch_bytes({"label_names": ["airplane"]})}


def md5_of(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def write_archive(path: Path, contents: dict[str, bytes]) -> None:
    """The packed folder."""
    with tarfile.open(path, "w:gz") as archive:
        for file, content in contents.items():
            entry = tarfile.TarInfo(f"{FOLDER}/{file}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    """A folder that has the archive."""
    (tmp_path / "origin").mkdir()
    write_archive(tmp_path / "origin" / "cifar-10-python.tar.gz", file_contents())
    return tmp_path / "origin"


@pytest.fixture
def source(origin: Path) -> CifarSource:
    """Those files with their checksums; the mirrors are one that lacks them and that folder."""
    archive_md5 = md5_of((origin / "cifar-10-python.tar.gz").read_bytes())
    mirrors = (f"{(origin / 'nowhere').as_uri()}/", f"{origin.as_uri()}/")
    md5 = {file: md5_of(content) for file, content in file_contents().items()}
    return CifarSource("cifar10", FOLDER, "cifar-10-python.tar.gz", mirrors, archive_md5, md5)


@pytest.fixture
def unpacked(source: CifarSource, origin: Path, tmp_path: Path) -> Path:
    """A root that has the unpacked files."""
    source.fetch(tmp_path / "root", origin)
    return tmp_path / "root"


def test_the_archive_is_read_without_writing(source: CifarSource, origin: Path) -> None:
    splits = load_source(source, str(origin))
    assert (splits.train_inputs.shape, splits.test_inputs.shape) == ((10, 3, 32, 32), (2, 3, 32, 32))
    assert torch.equal(splits.test_inputs, torch.from_numpy(images_of(TEST_FILE).astype(np.float32)).div(255))
    assert splits.train_targets.tolist() == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5]
    assert (splits.test_targets.tolist(), splits.num_classes, splits.in_channels) == ([5, 6], 10, 3)
    assert [path.name for path in origin.iterdir()] == ["cifar-10-python.tar.gz"]


def test_unpacked_files_give_the_same(source: CifarSource, origin: Path, unpacked: Path) -> None:
    assert not (unpacked / "cifar-10-python.tar.gz").exists()
    for array, expected in zip(source.load(unpacked), source.load(origin), strict=True):
        assert np.array_equal(array, expected)


def test_the_synthetic_files_are_what_torchvision_reads(unpacked: Path) -> None:
    """So that the other tests speak of the published format: the same pickles, through Python's own reader."""
    entry = pickle.loads((unpacked / FOLDER / TEST_FILE).read_bytes(), encoding="latin1")
    assert entry["labels"] == [5, 6]
    assert np.array_equal(entry["data"].reshape(2, 3, 32, 32), images_of(TEST_FILE))


@pytest.mark.parametrize("given", ["origin", "root", f"root/{FOLDER}"])
def test_fetch_unpacks_or_copies_from_a_folder(source: CifarSource, unpacked: Path, tmp_path: Path, given: str) -> None:
    new = source.fetch(tmp_path / "new", tmp_path / given)
    assert [path.name for path in new] == [*FILES, NAMES_FILE]
    assert source.load(tmp_path / "new")[3].tolist() == [5, 6]
    assert source.fetch(tmp_path / "new", tmp_path / given) == []


def test_fetch_tries_the_mirrors_in_turn(source: CifarSource, tmp_path: Path) -> None:
    assert len(source.fetch(tmp_path / "root", None)) == 7
    assert not list(tmp_path.rglob(".*"))


def test_fetch_unpacks_an_archive_that_is_there(source: CifarSource, origin: Path) -> None:
    offline = CifarSource(source.name, FOLDER, source.archive, (), source.archive_md5, source.md5)
    assert len(offline.fetch(origin, None)) == 7


def test_fetch_completes_what_is_there(source: CifarSource, unpacked: Path) -> None:
    (unpacked / FOLDER / TEST_FILE).unlink()
    assert [path.name for path in source.fetch(unpacked, None)] == [TEST_FILE]


def test_fetch_from_a_folder_without_the_files(source: CifarSource, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"neither {FOLDER}/ nor .*; give the folder that has one of them"):
        source.fetch(tmp_path / "root", tmp_path)


def test_a_damaged_file_is_named_and_not_read(source: CifarSource, unpacked: Path) -> None:
    path = unpacked / FOLDER / "data_batch_3"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"data_batch_3: checksum .*delete it and run `scalestudy data fetch cifar10`"):
        source.load(unpacked)


def test_a_damaged_archive_is_named(source: CifarSource, origin: Path) -> None:
    path = origin / "cifar-10-python.tar.gz"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"cifar-10-python\.tar\.gz: checksum"):
        source.load(origin)


def test_an_archive_without_a_file_is_refused(source: CifarSource, tmp_path: Path) -> None:
    contents = file_contents()
    del contents[TEST_FILE]
    write_archive(tmp_path / source.archive, contents)
    md5 = md5_of((tmp_path / source.archive).read_bytes())
    other = CifarSource(source.name, FOLDER, source.archive, (), md5, source.md5)
    with pytest.raises(DataError, match=f"{TEST_FILE}.*; run `scalestudy data fetch"):
        other.load(tmp_path)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"neither data_batch_1, .* nor cifar-10-python\.tar\.gz in"):
        require("cifar10", tmp_path)


class Harmful:
    """Its pickle writes a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.path, "harm")


def test_a_pickle_is_not_run(tmp_path: Path) -> None:
    content = pickle.dumps({b"data": Harmful(tmp_path / "harmed"), b"labels": [0]})
    with pytest.raises(DataError, match="not a batch of CIFAR-10: UnpicklingError: it asks for "):
        parse_batch(content)
    assert not (tmp_path / "harmed").exists()
    pickle.loads(content)
    assert (tmp_path / "harmed").exists()  # the trap works


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "EOFError"),
        (batch_bytes({"labels": [0]}), "KeyError"),
        (batch_bytes({"data": np.zeros((2, 3071), np.uint8), "labels": [0, 1]}), "ValueError"),
        (batch_bytes({"data": np.zeros((2, 3072), np.int16), "labels": [0, 1]}), "rows of bytes"),
        (batch_bytes({"data": np.zeros((2, 3072), np.uint8), "labels": [0]}), r"labels of shape \(1,\)"),
        (batch_bytes({"data": np.zeros((2, 3072), np.uint8), "labels": [0, 10]}), "up to 10"),
        (batch_bytes({"data": np.zeros((2, 3072), np.uint8), "labels": [0, -1]}), "OverflowError"),
    ],
)
def test_what_is_no_batch_is_refused(content: bytes, found: str) -> None:
    with pytest.raises(DataError, match=found):
        parse_batch(content)


def test_checksums_and_mirror_are_torchvisions() -> None:
    from scalestudy.training.torchvision_compat import import_torchvision

    theirs = import_torchvision().datasets.CIFAR10
    assert f"{CIFAR10.mirrors[0]}{CIFAR10.archive}" == theirs.url
    assert (CIFAR10.archive, CIFAR10.archive_md5, CIFAR10.folder) == (
        theirs.filename,
        theirs.tgz_md5,
        theirs.base_folder,
    )
    listed = dict([*theirs.train_list, *theirs.test_list, (theirs.meta["filename"], theirs.meta["md5"])])
    assert dict(CIFAR10.md5) == listed
