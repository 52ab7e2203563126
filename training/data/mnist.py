"""Stage 5, training loop: MNIST and Fashion-MNIST from their IDX files (60,000 + 10,000 images of 28 × 28)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch.nn.functional import adaptive_avg_pool2d

from training.data import DataError, Splits, default_root
from training.data.files import remedy
from training.data.idx import FASHION_MNIST, MNIST, IdxSource
from training.data.images import splits_of_bytes


def load_mnist(
    root: str | None, train_samples: int | None = None, test_samples: int | None = None, image_size: int | None = None
) -> Splits:
    """MNIST, (n, 1, image_size, image_size) in [0, 1], ten classes; of each file the first so many, None: all.

    `image_size`: 14, 7, 4, 2 or 1 make images smaller, each square of pixels its mean; None: 28. Raises DataError if
    files are missing or damaged, ValueError for more examples than there are and for another size.
    """
    return load_source(MNIST, root, train_samples, test_samples, image_size)


def load_fashion_mnist(
    root: str | None, train_samples: int | None = None, test_samples: int | None = None, image_size: int | None = None
) -> Splits:
    """Fashion-MNIST, as `load_mnist`. Its files are in no order of classes, so that the first are a fair sample."""
    return load_source(FASHION_MNIST, root, train_samples, test_samples, image_size)


def load_source(
    source: IdxSource,
    root: str | None,
    train_samples: int | None = None,
    test_samples: int | None = None,
    image_size: int | None = None,
) -> Splits:
    """The data set of four IDX files, of each the first so many examples."""
    train_images, train_labels, test_images, test_labels = source.load(Path(root or default_root()))
    train = _first("data_args.train_samples", train_samples, len(train_labels))
    test = _first("data_args.test_samples", test_samples, len(test_labels))
    if max(train_labels.max(initial=0), test_labels.max(initial=0)) > 9:
        raise DataError(f"data: {source.name}: labels above 9; {remedy(source.name)}")
    splits = splits_of_bytes(
        train_images[:train, None], train_labels[:train], test_images[:test, None], test_labels[:test], num_classes=10
    )
    return splits if image_size is None else _smaller(splits, image_size)


def _smaller(splits: Splits, size: object) -> Splits:
    """The same images as size × size pixels, each the mean of a square."""
    side = splits.train_inputs.shape[-1]
    sizes = [number for number in range(side, 0, -1) if side % number == 0]
    if size not in sizes or isinstance(size, bool):
        raise ValueError(f"data_args.image_size: {size!r} is none of {', '.join(map(str, sizes))}; correct it")
    train, test = (adaptive_avg_pool2d(inputs, size) for inputs in (splits.train_inputs, splits.test_inputs))
    return replace(splits, train_inputs=train, test_inputs=test)


def _first(field: str, count: int | None, there: int) -> int:
    """How many examples are taken."""
    if count is None:
        return there
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= there:
        raise ValueError(f"{field}: {count!r} is not a whole number from 1 to {there}; correct it, or leave it out")
    return count
