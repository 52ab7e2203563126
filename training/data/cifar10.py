"""Stage 5, training loop: CIFAR-10 (50,000 + 10,000 colour images of 32 × 32, ten classes)."""

from __future__ import annotations

from pathlib import Path

from training.data import Splits, default_root
from training.data.cifar import CIFAR10, CifarSource
from training.data.images import splits_of_bytes


def load(root: str | None) -> Splits:
    """CIFAR-10, (n, 3, 32, 32) in [0, 1], ten classes. Raises DataError if files are missing or damaged."""
    return load_source(CIFAR10, root)


def load_source(source: CifarSource, root: str | None) -> Splits:
    """The data set of six batch files."""
    train_images, train_labels, test_images, test_labels = source.load(Path(root or default_root()))
    return splits_of_bytes(train_images, train_labels, test_images, test_labels, num_classes=10)
