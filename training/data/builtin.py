"""Data sets that need no files, digits and synthetic data, and images of bytes as tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from scalestudy.training.data.splits import Splits
from scalestudy.training.exceptions import InputError

_LARGEST_VALUE = 16  # a pixel counts the set bits of a 4 × 4 block


def load_digits(root: str | None, image_size: int = 28) -> Splits:
    """Load 1,437 + 360 digits, (n, 1, image_size, image_size) in [0, 1], ten classes; `root` is not used.

    The 8 × 8 pixels are resized bilinearly; image_size 8 keeps them.
    """
    if not isinstance(image_size, int) or image_size < 1:
        raise InputError(f"data_args.image_size: {image_size!r} is not a whole number above 0", "correct it")

    def to_inputs(images: NDArray[np.uint8]) -> torch.Tensor:
        """Turn (n, 8, 8) counts into (n, 1, image_size, image_size) float32 in [0, 1]."""
        inputs = torch.from_numpy(images.astype(np.float32)).div_(_LARGEST_VALUE).unsqueeze(1)
        return F.interpolate(inputs, size=(image_size, image_size), mode="bilinear", align_corners=False)

    with (resources.files("scalestudy.training.data") / "digits.npz").open("rb") as stream, np.load(stream) as arrays:
        return Splits(
            train_inputs=to_inputs(arrays["train_images"]),
            train_targets=torch.from_numpy(arrays["train_labels"].astype(np.int64)),
            test_inputs=to_inputs(arrays["test_images"]),
            test_targets=torch.from_numpy(arrays["test_labels"].astype(np.int64)),
            num_classes=10,
        )


def load_synthetic(
    root: str | None,
    train_samples: int = 4096,
    test_samples: int = 1024,
    num_classes: int = 10,
    channels: int = 1,
    image_size: int = 28,
    noise: float = 0.5,
    seed: int = 0,
) -> Splits:
    """Make one random image a class, blended with noise: inputs (n, channels, image_size, image_size) in [0, 1].

    `noise` in [0, 1] is the noise's share: 0 gives the class's image, 1 nothing to learn. `root` is not used. Raises
    ValueError for sizes below 1 or noise outside [0, 1].
    """
    _check_sizes(
        {
            "train_samples": train_samples,
            "test_samples": test_samples,
            "num_classes": num_classes,
            "channels": channels,
            "image_size": image_size,
        }
    )
    if not 0 <= noise <= 1:
        raise InputError(f"data_args.noise: {noise!r} is not in [0, 1]", "correct it")
    generator = torch.Generator().manual_seed(seed)
    prototypes = torch.rand(num_classes, channels, image_size, image_size, generator=generator)
    train = _draw(prototypes, train_samples, noise, generator)
    test = _draw(prototypes, test_samples, noise, generator)
    return Splits(*train, *test, num_classes=num_classes)


def _draw(
    prototypes: torch.Tensor, samples: int, noise: float, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw (inputs, targets) of `samples` examples."""
    targets = torch.randint(len(prototypes), (samples,), generator=generator)
    random = torch.rand(samples, *prototypes.shape[1:], generator=generator)
    return prototypes[targets].mul_(1 - noise).add_(random, alpha=noise), targets


def load_linear(
    root: str | None,
    train_samples: int = 4096,
    test_samples: int = 1024,
    features: int = 2,
    noise: float = 0.01,
    variances: Sequence[float] | None = None,
    seed: int = 0,
) -> Splits:
    """Make linear regression data: inputs (n, features), targets (n,) as `LinearTruth` says. `root` is not used.

    Raises ValueError for sizes below 1, or noise or variances below 0.
    """
    _check_sizes({"train_samples": train_samples, "test_samples": test_samples})
    truth = linear_truth(features, noise, variances, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    return Splits(
        *_draw_linear(truth, train_samples, generator), *_draw_linear(truth, test_samples, generator), num_classes=1
    )


def _draw_linear(truth: LinearTruth, samples: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw (inputs, targets) of `samples` examples."""
    inputs = torch.randn(samples, len(truth.weights), generator=generator) * truth.variances.sqrt()
    errors = torch.randn(samples, generator=generator) * truth.noise
    return inputs, inputs @ truth.weights + truth.bias + errors


@dataclass(frozen=True)
class LinearTruth:
    """The distribution of `load_linear`: y = X w + b + e with X ~ N(0, diag v) and e ~ N(0, noise²).

    Everything about it can be computed. Take a linear model at (w', b') with u = w - w', c = b - b' and the loss
    (output - target)²: an example's gradient is -2 (x·u + c + e) (x, 1).
    """

    weights: torch.Tensor  # w, (d,)
    bias: float  # b
    variances: torch.Tensor  # v, (d,)
    noise: float  # standard deviation of e


def linear_truth(
    features: int = 2, noise: float = 0.01, variances: Sequence[float] | None = None, seed: int = 0
) -> LinearTruth:
    """Return the distribution of `load_linear` with the same arguments: w and b ~ N(0, 1), v = 1 unless given.

    Raises ValueError for sizes below 1, or noise or variances below 0.
    """
    _check_sizes({"features": features})
    spread = [1.0] * features if variances is None else [float(variance) for variance in variances]
    if len(spread) != features or min(spread) < 0:
        raise InputError(
            f"data_args.variances: {variances!r} are not {features} numbers of at least 0", "give one for each feature"
        )
    if noise < 0:
        raise InputError(f"data_args.noise: {noise!r} is below 0", "correct it")
    drawn = torch.randn(features + 1, generator=torch.Generator().manual_seed(seed))
    return LinearTruth(drawn[:-1], drawn[-1].item(), torch.tensor(spread), noise)


def splits_of_bytes(
    train_images: NDArray[np.uint8],
    train_labels: NDArray[np.uint8],
    test_images: NDArray[np.uint8],
    test_labels: NDArray[np.uint8],
    num_classes: int,
) -> Splits:
    """Make splits of images (n, C, H, W), divided by 255 as in the book (torchvision's ToTensor), and labels (n,)."""
    return Splits(
        train_inputs=torch.from_numpy(train_images.astype(np.float32)).div_(255),
        train_targets=torch.from_numpy(train_labels.astype(np.int64)),
        test_inputs=torch.from_numpy(test_images.astype(np.float32)).div_(255),
        test_targets=torch.from_numpy(test_labels.astype(np.int64)),
        num_classes=num_classes,
    )


def _check_sizes(sizes: Mapping[str, object]) -> None:
    for name, size in sizes.items():
        if not isinstance(size, int) or size < 1:
            raise InputError(f"data_args.{name}: {size!r} is not a whole number above 0", "correct it")
