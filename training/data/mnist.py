"""Stage 5, training loop: MNIST and Fashion-MNIST from their IDX files (60,000 + 10,000 images of 28 × 28)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from training.data import DataError, Splits, default_root
from training.data.idx import SOURCES, IdxSource, load_arrays


def load_mnist(root: str | None) -> Splits:
    """MNIST, (n, 1, 28, 28) in [0, 1], ten classes. Raises DataError if files are missing or damaged."""
    return load_source(SOURCES["mnist"], root)


def load_fashion_mnist(root: str | None) -> Splits:
    """Fashion-MNIST, (n, 1, 28, 28) in [0, 1], ten classes. Raises DataError if files are missing or damaged."""
    return load_source(SOURCES["fashion_mnist"], root)


def load_source(source: IdxSource, root: str | None) -> Splits:
    """The data set of four IDX files, pixels divided by 255 as the book (torchvision's ToTensor) does."""
    train_images, train_labels, test_images, test_labels = load_arrays(source, Path(root or default_root()))
    if max(train_labels.max(initial=0), test_labels.max(initial=0)) > 9:
        raise DataError(f"data: {source.name}: labels above 9; {source.remedy}")
    return Splits(
        train_inputs=_to_inputs(train_images),
        train_targets=torch.from_numpy(train_labels.astype(np.int64)),
        test_inputs=_to_inputs(test_images),
        test_targets=torch.from_numpy(test_labels.astype(np.int64)),
        num_classes=10,
    )


def _to_inputs(images: NDArray[np.uint8]) -> torch.Tensor:
    """(n, H, W) bytes to (n, 1, H, W) float32 in [0, 1]."""
    return torch.from_numpy(images.astype(np.float32)).div_(255).unsqueeze(1)
