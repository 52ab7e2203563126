"""CIFAR-10, read from its files without running a pickle, or fetched.

Archive and layout are torchvision's, `<root>/cifar-10-batches-py/data_batch_1`, so both can share a folder. The files
are pickles of Python 2. Their checksum is verified first. Then an unpickler reads them that makes only objects of its
own class (`_Stored`), so nothing in them is run. Rejected: the binary archive, which no user of torchvision has.

A file holds a dictionary: `data`, bytes (n, 3072), red, green and blue planes of 32 × 32 row by row, and `labels`, n
numbers 0 … 9 (https://www.cs.toronto.edu/~kriz/cifar.html).
"""

from __future__ import annotations

import io
import pickle
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalestudy.training.data.downloads import DataError, check_md5, default_root, first_good, remedy, write_file
from scalestudy.training.data.splits import Splits

TRAIN_FILES = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST_FILE = "test_batch"
FILES = (*TRAIN_FILES, TEST_FILE)
NAMES_FILE = "batches.meta"  # only torchvision reads it; fetched to make its folder complete
_IMAGE = (3, 32, 32)


def load(root: str | None) -> Splits:
    """Load CIFAR-10, (n, 3, 32, 32) in [0, 1], ten classes. Raises DataError if files are missing or damaged."""
    return load_source(CIFAR10, root)


def load_source(source: CifarSource, root: str | None) -> Splits:
    """Load a data set of six batch files."""
    from scalestudy.training.data.builtin import splits_of_bytes

    train_images, train_labels, test_images, test_labels = source.load(Path(root or default_root()))
    return splits_of_bytes(train_images, train_labels, test_images, test_labels, num_classes=10)


@dataclass(frozen=True)
class CifarSource:
    """Where the data set lives, and what its files must be."""

    name: str  # in registry.DATASETS
    folder: str  # under the root, and in the archive
    archive: str  # under the root
    mirrors: tuple[str, ...]  # URLs that end in /
    archive_md5: str
    md5: Mapping[str, str]  # of FILES and NAMES_FILE, as torchvision states them

    def require(self, root: Path) -> None:
        """Raise DataError unless the unpacked files or the archive are there."""
        missing = [file for file in FILES if not self._path(root, file).is_file()]
        if missing and not (root / self.archive).is_file():
            raise DataError(
                f"data: {self.name}: neither {', '.join(missing)} in {root / self.folder} nor {self.archive} in {root}",
                f"{remedy(self.name)}, or set SCALESTUDY_DATA to the folder that has {self.folder}/",
            )

    def load(self, root: Path) -> tuple[NDArray[np.uint8], ...]:
        """Return the training images (n, 3, 32, 32), labels (n,), test images (m, 3, 32, 32), labels (m,).

        Raises DataError.
        """
        self.require(root)
        if all(self._path(root, file).is_file() for file in FILES):
            contents = self._verified(root / self.folder)
        else:
            contents = self._unpack([str(root / self.archive)])
        batches = []
        for file in FILES:
            try:
                batches.append(parse_batch(contents[file]))
            except DataError as error:
                place = self._path(root, file)
                raise DataError(f"data: {place}: {error}", f"delete it and {remedy(self.name)}") from None
        images, labels = zip(*batches[:-1], strict=True)
        return np.concatenate(images), np.concatenate(labels), *batches[-1]

    def fetch(self, root: Path, folder: Path | None) -> list[Path]:
        """Unpack, copy or download the missing files, verified. Return the new ones. Raises DataError."""
        missing = [file for file in (*FILES, NAMES_FILE) if not self._path(root, file).is_file()]
        if not missing or missing == [NAMES_FILE]:
            return []
        if folder:
            contents = self._contents_in(folder)
        else:
            own = [str(root / self.archive)] if (root / self.archive).is_file() else []
            contents = self._unpack([*own, *(f"{url}{self.archive}" for url in self.mirrors)])
        return [write_file(self.name, self._path(root, file), contents[file]) for file in missing if file in contents]

    def _path(self, root: Path, file: str) -> Path:
        return root / self.folder / file

    def _contents_in(self, folder: Path) -> dict[str, bytes]:
        """Return the verified contents of all files in the user's folder: a root, or the folder with the files."""
        unpacked = [place for place in (folder / self.folder, folder) if (place / TEST_FILE).is_file()]
        if unpacked:
            return self._verified(unpacked[0])
        if (folder / self.archive).is_file():
            return self._unpack([str(folder / self.archive)])
        raise DataError(
            f"data: {self.name}: neither {self.folder}/ nor {self.archive} in {folder}",
            "give the folder that has one of them",
        )

    def _verified(self, place: Path) -> dict[str, bytes]:
        contents = {}
        for file in (*FILES, *([NAMES_FILE] if (place / NAMES_FILE).is_file() else [])):
            try:
                contents[file] = (place / file).read_bytes()
                check_md5(contents[file], self.md5[file])
            except (OSError, DataError) as error:
                raise DataError(f"data: {place / file}: {error}", f"delete it and {remedy(self.name)}") from None
        return contents

    def _unpack(self, origins: list[str]) -> dict[str, bytes]:
        """Return the files of the first good archive, in memory: no name inside the archive becomes a path."""
        content = first_good(self.name, origins, self.archive_md5)
        try:
            with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                contents = {}
                for file in (*FILES, NAMES_FILE):
                    stream = archive.extractfile(f"{self.folder}/{file}")
                    if stream is None:
                        raise KeyError(f"{self.folder}/{file} is not a file")
                    contents[file] = stream.read()
                return contents
        except (tarfile.TarError, KeyError, EOFError, zlib.error) as error:
            raise DataError(f"data: {self.name}: {self.archive}: {error}", remedy(self.name)) from None


CIFAR10 = CifarSource(
    name="cifar10",
    folder="cifar-10-batches-py",
    archive="cifar-10-python.tar.gz",
    mirrors=("https://www.cs.toronto.edu/~kriz/",),
    archive_md5="c58f30108f718f92721af3b95e74349a",
    md5={
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
        "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
    },
)


def parse_batch(content: bytes) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return the images (n, 3, 32, 32) and labels (n,) of one file. Raises DataError for other content."""
    try:
        batch = _BatchUnpickler(io.BytesIO(content), encoding="bytes").load()
        _, shape, dtype, is_fortran, values = batch[b"data"].state
        if dtype.arguments[0] != b"u1" or is_fortran:
            raise DataError("its data are not rows of bytes")
        images = np.frombuffer(values, dtype=np.uint8).reshape(shape).reshape(-1, *_IMAGE)
        labels = np.array(batch[b"labels"], dtype=np.uint8)
    except Exception as error:  # a broken or forged pickle can raise anything
        raise DataError(f"not a batch of CIFAR-10: {type(error).__name__}: {error}") from None
    if labels.shape != images.shape[:1] or labels.max(initial=0) > 9:
        raise DataError(f"labels of shape {labels.shape}, up to {labels.max(initial=0)}, for {len(images)} images")
    return images, labels


class _Stored:
    """A stand-in for every NumPy object of a pickle: it keeps the arguments, and makes nothing of them."""

    state: tuple[Any, ...] = ()

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state


class _BatchUnpickler(pickle.Unpickler):
    """An unpickler that knows the names in a pickled array of bytes, and refuses all others."""

    _NAMES = frozenset({"numpy.core.multiarray._reconstruct", "numpy.ndarray", "numpy.dtype"})

    def find_class(self, module_name: str, global_name: str, /) -> type[_Stored]:
        if f"{module_name}.{global_name}" not in self._NAMES:
            raise pickle.UnpicklingError(f"it asks for {module_name}.{global_name}")
        return _Stored
