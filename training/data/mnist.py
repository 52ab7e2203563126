"""MNIST and Fashion-MNIST, read from their IDX files or fetched.

The layout is torchvision's, `<root>/FashionMNIST/raw/train-images-idx3-ubyte.gz`, so both can share a folder. Rejected:
to read by its data set classes, which unpack into the folder; that may be read-only.

The format: two zero bytes, a type (8: unsigned byte), the number of dimensions, each dimension as a big-endian uint32,
then the values (http://yann.lecun.com/exdb/mnist/).
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scalestudy.training.data.downloads import DataError, check_md5, default_root, first_good, remedy, write_file
from scalestudy.training.data.splits import Splits
from scalestudy.training.exceptions import InputError

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def load_mnist(
    root: str | None, train_samples: int | None = None, test_samples: int | None = None, image_size: int | None = None
) -> Splits:
    """Load MNIST, (n, 1, image_size, image_size) in [0, 1], ten classes.

    `train_samples`, `test_samples`: how many from the start of each set; None: all. `image_size`: 14, 7, 4, 2 or 1
    shrink images, each square of pixels to its mean; None: 28. Raises DataError if files are missing or damaged,
    ValueError for more examples than there are and for another size.
    """
    return load_source(MNIST, root, train_samples, test_samples, image_size)


def load_fashion_mnist(
    root: str | None, train_samples: int | None = None, test_samples: int | None = None, image_size: int | None = None
) -> Splits:
    """Load Fashion-MNIST, as `load_mnist`. Its files mix the classes, so the first examples are a fair sample."""
    return load_source(FASHION_MNIST, root, train_samples, test_samples, image_size)


def load_source(
    source: IdxSource,
    root: str | None,
    train_samples: int | None = None,
    test_samples: int | None = None,
    image_size: int | None = None,
) -> Splits:
    """Load a data set of four IDX files; the first `train_samples` and `test_samples`, None: all."""
    from torch.nn.functional import adaptive_avg_pool2d  # torch, which `require` and `fetch` do without

    from scalestudy.training.data.builtin import splits_of_bytes

    train_images, train_labels, test_images, test_labels = source.load(Path(root or default_root()))
    train = _count("data_args.train_samples", train_samples, len(train_labels))
    test = _count("data_args.test_samples", test_samples, len(test_labels))
    if max(train_labels.max(initial=0), test_labels.max(initial=0)) > 9:
        raise DataError(f"data: {source.name}: labels above 9", remedy(source.name))
    splits = splits_of_bytes(
        train_images[:train, None], train_labels[:train], test_images[:test, None], test_labels[:test], num_classes=10
    )
    if image_size is None:
        return splits
    side = splits.train_inputs.shape[-1]
    sizes = [number for number in range(side, 0, -1) if side % number == 0]
    if image_size not in sizes or isinstance(image_size, bool):
        raise InputError(f"data_args.image_size: {image_size!r} is none of {', '.join(map(str, sizes))}", "correct it")
    return replace(
        splits,
        train_inputs=adaptive_avg_pool2d(splits.train_inputs, image_size),
        test_inputs=adaptive_avg_pool2d(splits.test_inputs, image_size),
    )


def _count(field: str, count: int | None, available: int) -> int:
    """Return how many examples to take."""
    if count is None:
        return available
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= available:
        raise InputError(
            f"{field}: {count!r} is not a whole number from 1 to {available}", "correct it, or leave it out"
        )
    return count


@dataclass(frozen=True)
class IdxSource:
    """Where a data set of four IDX files lives, and what they must be."""

    name: str  # in registry.DATASETS
    folder: str  # under the root
    mirrors: tuple[str, ...]  # URLs that end in /
    md5: Mapping[str, str]  # of FILES' packed form, as torchvision states them

    def path(self, root: Path, file: str) -> Path:
        """Return the packed file."""
        return root / self.folder / "raw" / f"{file}.gz"

    def require(self, root: Path) -> None:
        """Raise DataError unless each of the four files is there, packed or unpacked."""
        missing = [file for file in FILES if self._find(root, file) is None]
        if missing:
            raise DataError(
                f"data: {self.name}: no {', '.join(missing)} in {root / self.folder / 'raw'}",
                f"{remedy(self.name)}, or set SCALESTUDY_DATA to the folder that has {self.folder}/",
            )

    def fetch(self, root: Path, folder: Path | None) -> list[Path]:
        """Copy or download the missing files, verified. Return the new ones. Raises DataError."""
        new = []
        for file in [file for file in FILES if self._find(root, file) is None]:
            origins = [str(self._find_in(folder, file))] if folder else [f"{url}{file}.gz" for url in self.mirrors]
            content = first_good(self.name, origins, self.md5[file])
            new.append(write_file(self.name, self.path(root, file), content))
        return new

    def load(self, root: Path) -> tuple[NDArray[np.uint8], ...]:
        """Return the training images (n, H, W), training labels (n,), test images (m, H, W), test labels (m,).

        A packed file must have its checksum. An unpacked one, which has none, must be a whole IDX file. Raises
        DataError.
        """
        self.require(root)
        arrays = tuple(self._load_file(root, file) for file in FILES)
        if [array.ndim for array in arrays] != [3, 1, 3, 1]:
            shapes = [array.shape for array in arrays]
            raise DataError(f"data: {self.name}: files hold arrays of shapes {shapes}", remedy(self.name))
        return arrays

    def _find(self, root: Path, file: str) -> Path | None:
        packed = self.path(root, file)
        return next((path for path in (packed, packed.with_suffix("")) if path.is_file()), None)

    def _load_file(self, root: Path, file: str) -> NDArray[np.uint8]:
        path = self._find(root, file)
        try:
            content = path.read_bytes() if path else b""
            if path and path.suffix == ".gz":
                check_md5(content, self.md5[file])
                content = gzip.decompress(content)
            return parse_idx(content)
        except (DataError, OSError, EOFError, zlib.error) as error:
            raise DataError(f"data: {path}: {error}", f"delete it and {remedy(self.name)}") from None

    def _find_in(self, folder: Path, file: str) -> Path:
        """Return the packed file in the user's folder: a root, the data set's folder, or the one with the files."""
        candidates = (self.path(folder, file), folder / "raw" / f"{file}.gz", folder / f"{file}.gz")
        for candidate in candidates:
            if candidate.is_file():
                return candidate
        raise DataError(f"data: {self.name}: no {file}.gz in {folder}", f"give the folder that has {self.folder}/raw/")


MNIST = IdxSource(
    name="mnist",
    folder="MNIST",
    mirrors=("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
    md5={
        "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
    },
)


FASHION_MNIST = IdxSource(
    name="fashion_mnist",
    folder="FashionMNIST",
    mirrors=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    md5={
        "train-images-idx3-ubyte": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte": "bb300cfdad3c16e7a12a480ee83cd310",
    },
)


def parse_idx(content: bytes) -> NDArray[np.uint8]:
    """Return the array of unsigned bytes in an IDX file. Raises DataError for any other file."""
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise DataError(f"not an IDX file of unsigned bytes: it starts with {content[:4].hex(' ') or 'nothing'}")
    dimensions = content[3]
    header = 4 + 4 * dimensions
    shape = struct.unpack(f">{dimensions}I", content[4:header].ljust(4 * dimensions, b"\x00"))
    if len(content) != header + math.prod(shape):
        raise DataError(f"shape {shape} takes {header + math.prod(shape)} bytes and the file has {len(content)}")
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)
