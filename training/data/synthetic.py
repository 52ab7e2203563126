"""Stage 5, training loop: a synthetic data set of any size, the same everywhere, for tests and timings."""

from __future__ import annotations

import torch

from training.data import Splits


def load(
    root: str | None,
    train_samples: int = 4096,
    test_samples: int = 1024,
    num_classes: int = 10,
    channels: int = 1,
    image_size: int = 28,
    noise: float = 0.5,
    seed: int = 0,
) -> Splits:
    """One random image a class, blended with noise: inputs (n, channels, image_size, image_size) in [0, 1].

    `noise` in [0, 1] is the noise's share; 0 leaves the class's image, 1 leaves nothing to learn. `root` is not used.
    Raises ValueError for sizes below 1 or noise outside [0, 1].
    """
    sizes = {"train_samples": train_samples, "test_samples": test_samples, "num_classes": num_classes,
             "channels": channels, "image_size": image_size}  # fmt: skip
    for name, size in sizes.items():
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"data_args.{name}: {size!r} is not a whole number above 0; correct it")
    if not 0 <= noise <= 1:
        raise ValueError(f"data_args.noise: {noise!r} is not in [0, 1]; correct it")
    generator = torch.Generator().manual_seed(seed)
    prototypes = torch.rand(num_classes, channels, image_size, image_size, generator=generator)
    train = _draw(prototypes, train_samples, noise, generator)
    test = _draw(prototypes, test_samples, noise, generator)
    return Splits(*train, *test, num_classes=num_classes)


def _draw(
    prototypes: torch.Tensor, samples: int, noise: float, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """(inputs, targets) of `samples` examples."""
    targets = torch.randint(len(prototypes), (samples,), generator=generator)
    random = torch.rand(samples, *prototypes.shape[1:], generator=generator)
    return prototypes[targets].mul_(1 - noise).add_(random, alpha=noise), targets
