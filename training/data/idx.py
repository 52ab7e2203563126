"""Stage 5, training loop: MNIST-like data sets as files in the IDX format: find, verify, read, fetch (no torch).

The layout is torchvision's, `<root>/FashionMNIST/raw/train-images-idx3-ubyte.gz`, so that folders are shared with it;
its data set classes are not used for reading because they unpack into the folder, which may be read-only.
The format: two zero bytes, a type (8: unsigned byte), the number of dimensions, each dimension as a big-endian uint32,
then the values (http://yann.lecun.com/exdb/mnist/).
"""

from __future__ import annotations

import gzip
import hashlib
import math
import struct
import tempfile
import threading
import urllib.request
import zlib
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
DOWNLOAD_TIMEOUT_SECONDS = 10.0  # until a mirror answers, and then without a byte


class DataError(ValueError):
    """A data set is missing, damaged or can't be fetched; the message says what to do."""


@dataclass(frozen=True)
class IdxSource:
    """Where a data set of four IDX files lives, and what they must be."""

    name: str  # in registry.DATASETS
    folder: str  # under the root
    mirrors: tuple[str, ...]  # URLs that end in /
    md5: Mapping[str, str]  # of FILES' packed form, as torchvision states them

    def path(self, root: Path, file: str) -> Path:
        """The packed file."""
        return root / self.folder / "raw" / f"{file}.gz"

    @property
    def remedy(self) -> str:
        """What to type when a file is not as it should be."""
        return f"run `scalestudy data fetch {self.name}` (or with `--from DIR`, a folder that has the files)"


SOURCES: Mapping[str, IdxSource] = {
    "mnist": IdxSource(
        name="mnist",
        folder="MNIST",
        mirrors=("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
        md5={
            "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
    "fashion_mnist": IdxSource(
        name="fashion_mnist",
        folder="FashionMNIST",
        mirrors=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        md5={
            "train-images-idx3-ubyte": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte": "bb300cfdad3c16e7a12a480ee83cd310",
        },
    ),
}


def require_source(source: IdxSource, root: Path) -> None:
    """Raise DataError unless each of the four files is there, packed or unpacked."""
    missing = [file for file in FILES if _find(source, root, file) is None]
    if missing:
        raise DataError(f"data: {source.name}: no {', '.join(missing)} in {root / source.folder / 'raw'}; "
                        f"{source.remedy}, or set SCALESTUDY_DATA to the folder that has {source.folder}/")  # fmt: skip


def load_arrays(source: IdxSource, root: Path) -> tuple[NDArray[np.uint8], ...]:
    """Training images (n, H, W), training labels (n,), test images (m, H, W), test labels (m,).

    A packed file must have its checksum; an unpacked one, which has none, must be a whole IDX file. Raises DataError.
    """
    require_source(source, root)
    arrays = tuple(_load_file(source, root, file) for file in FILES)
    if [array.ndim for array in arrays] != [3, 1, 3, 1]:
        shapes = [array.shape for array in arrays]
        raise DataError(f"data: {source.name}: files hold arrays of shapes {shapes}; {source.remedy}")
    return arrays


def parse_idx(content: bytes) -> NDArray[np.uint8]:
    """The array of unsigned bytes that an IDX file holds. Raises DataError if it is none, or cut short, or too long."""
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise DataError(f"not an IDX file of unsigned bytes: it starts with {content[:4].hex(' ') or 'nothing'}")
    dimensions = content[3]
    header = 4 + 4 * dimensions
    shape = struct.unpack(f">{dimensions}I", content[4:header].ljust(4 * dimensions, b"\x00"))
    if len(content) != header + math.prod(shape):
        raise DataError(f"shape {shape} takes {header + math.prod(shape)} bytes and the file has {len(content)}")
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)


def fetch_source(source: IdxSource, root: Path, folder: Path | None) -> list[Path]:
    """Copy or download the missing files, verified; returns the new ones. Raises DataError."""
    missing = [file for file in FILES if _find(source, root, file) is None]
    return [_fetch_file(source, root, file, folder) for file in missing]


def _find(source: IdxSource, root: Path, file: str) -> Path | None:
    packed = source.path(root, file)
    return next((path for path in (packed, packed.with_suffix("")) if path.is_file()), None)


def _load_file(source: IdxSource, root: Path, file: str) -> NDArray[np.uint8]:
    path = _find(source, root, file)
    try:
        content = _read_bytes(source, path, file) if path else b""
        return parse_idx(content)
    except (DataError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"data: {path}: {error}; delete it and {source.remedy}") from None


def _read_bytes(source: IdxSource, path: Path, file: str) -> bytes:
    content = path.read_bytes()
    if path.suffix != ".gz":
        return content
    _check_md5(content, source.md5[file])
    return gzip.decompress(content)


def _check_md5(content: bytes, expected: str) -> None:
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != expected:
        raise DataError(f"checksum (MD5) {found} is not {expected}: the file is damaged or another one")


def _fetch_file(source: IdxSource, root: Path, file: str, folder: Path | None) -> Path:
    """Verify one packed file, write it aside, then give it its name: no half file, nor a folder for none, is left."""
    target = source.path(root, file)
    origins = [str(_find_in(source, folder, file))] if folder else [f"{url}{file}.gz" for url in source.mirrors]
    content = _first_good(origins, source.md5[file], source)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as aside:
            written = Path(aside) / target.name
            written.write_bytes(content)
            written.replace(target)
    except OSError as error:
        raise DataError(
            f"data: {source.name}: can't write {target}: {error.strerror}; choose a folder that can be"
        ) from None
    return target


def _find_in(source: IdxSource, folder: Path, file: str) -> Path:
    """The packed file in a folder given by the user: a root, the data set's folder, or the one with the files."""
    candidates = (source.path(folder, file), folder / "raw" / f"{file}.gz", folder / f"{file}.gz")
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise DataError(f"data: {source.name}: no {file}.gz in {folder}; give the folder that has {source.folder}/raw/")


def _first_good(origins: list[str], md5: str, source: IdxSource) -> bytes:
    problems = []
    for origin in origins:
        try:
            with closing(_open(origin)) as stream:
                content = stream.read()
            _check_md5(content, md5)
        except (OSError, HTTPException, DataError) as error:
            problems.append(f"{origin}: {error}")
        else:
            return content
    raise DataError(f"data: {source.name}: {', '.join(problems)}; check the network, or name a folder that has the "
                    f"files: scalestudy data fetch {source.name} --from DIR")  # fmt: skip


def _open(origin: str) -> IO[bytes]:
    return _open_url(origin) if "://" in origin else Path(origin).open("rb")


def _open_url(url: str) -> IO[bytes]:
    """Raises TimeoutError if the mirror does not answer in time.

    In a thread, because urllib's own timeout starts anew for each address of a host and does not bound its look-up.
    """
    answer: Future[IO[bytes]] = Future()
    threading.Thread(target=_ask, args=(url, answer), daemon=True).start()
    try:
        return answer.result(DOWNLOAD_TIMEOUT_SECONDS)
    except TimeoutError:
        raise TimeoutError(f"no answer within {DOWNLOAD_TIMEOUT_SECONDS:g} seconds") from None


def _ask(url: str, answer: Future[IO[bytes]]) -> None:
    try:
        answer.set_result(urllib.request.urlopen(url, timeout=DOWNLOAD_TIMEOUT_SECONDS))
    except Exception as error:  # whatever it is belongs to the thread that waits
        answer.set_exception(error)
