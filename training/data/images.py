"""Stage 5, training loop: image files' bytes as the tensors of a data set."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from training.data.splits import Splits


def splits_of_bytes(
    train_images: NDArray[np.uint8],
    train_labels: NDArray[np.uint8],
    test_images: NDArray[np.uint8],
    test_labels: NDArray[np.uint8],
    num_classes: int,
) -> Splits:
    """Images (n, C, H, W) divided by 255, as the book (torchvision's ToTensor) does, and labels (n,)."""
    return Splits(
        train_inputs=_to_inputs(train_images),
        train_targets=torch.from_numpy(train_labels.astype(np.int64)),
        test_inputs=_to_inputs(test_images),
        test_targets=torch.from_numpy(test_labels.astype(np.int64)),
        num_classes=num_classes,
    )


def _to_inputs(images: NDArray[np.uint8]) -> torch.Tensor:
    """Bytes to float32 in [0, 1]."""
    return torch.from_numpy(images.astype(np.float32)).div_(255)
