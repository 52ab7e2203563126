"""Stage 5, training loop: MNIST and Fashion-MNIST from their IDX files (60,000 + 10,000 images of 28 × 28)."""

from __future__ import annotations

from pathlib import Path

from training.data import DataError, Splits, default_root
from training.data.files import remedy
from training.data.idx import FASHION_MNIST, MNIST, IdxSource
from training.data.images import splits_of_bytes


def load_mnist(root: str | None) -> Splits:
    """MNIST, (n, 1, 28, 28) in [0, 1], ten classes. Raises DataError if files are missing or damaged."""
    return load_source(MNIST, root)


def load_fashion_mnist(root: str | None) -> Splits:
    """Fashion-MNIST, (n, 1, 28, 28) in [0, 1], ten classes. Raises DataError if files are missing or damaged."""
    return load_source(FASHION_MNIST, root)


def load_source(source: IdxSource, root: str | None) -> Splits:
    """The data set of four IDX files."""
    train_images, train_labels, test_images, test_labels = source.load(Path(root or default_root()))
    if max(train_labels.max(initial=0), test_labels.max(initial=0)) > 9:
        raise DataError(f"data: {source.name}: labels above 9; {remedy(source.name)}")
    return splits_of_bytes(train_images[:, None], train_labels, test_images[:, None], test_labels, num_classes=10)
