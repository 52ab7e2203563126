"""Stage 5, training loop: the UCI optical digits, a small file in this package (digits.md tells where it is from)."""

from __future__ import annotations

from importlib import resources

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from training.data import Splits

_LARGEST_VALUE = 16  # a pixel counts the set bits of a 4 × 4 block


def load(root: str | None, image_size: int = 28) -> Splits:
    """1,437 + 360 digits, (n, 1, image_size, image_size) in [0, 1], ten classes; `root` is not used.

    The 8 × 8 pixels are resized bilinearly; image_size 8 leaves them as they are.
    """
    if not isinstance(image_size, int) or image_size < 1:
        raise ValueError(f"data_args.image_size: {image_size!r} is not a whole number above 0; correct it")
    with (resources.files("training.data") / "digits.npz").open("rb") as stream, np.load(stream) as arrays:
        return Splits(
            train_inputs=_to_inputs(arrays["train_images"], image_size),
            train_targets=torch.from_numpy(arrays["train_labels"].astype(np.int64)),
            test_inputs=_to_inputs(arrays["test_images"], image_size),
            test_targets=torch.from_numpy(arrays["test_labels"].astype(np.int64)),
            num_classes=10,
        )


def _to_inputs(images: NDArray[np.uint8], size: int) -> torch.Tensor:
    """(n, 8, 8) counts to (n, 1, size, size) float32 in [0, 1]."""
    inputs = torch.from_numpy(images.astype(np.float32)).div_(_LARGEST_VALUE).unsqueeze(1)
    return F.interpolate(inputs, size=(size, size), mode="bilinear", align_corners=False)
