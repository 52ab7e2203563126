"""Stage 5, training loop: a trial's data set, near the worker's device, kept for the next trial that wants the same.

Shapes: n training and m test examples, N of them in a batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import torch

from training.config import TrainConfig
from training.data import DataError, DatasetSplits, Splits
from training.data.augment import AUGMENTATIONS, Augmentation
from training.data.reading import Batch, Bounds, DatasetReader, HostReader, Reader, ResidentReader
from training.distributed import Worker
from training.registry import DATASETS, call_with, resolve_field
from training.seeding import augmentation_key

EVALUATION_BATCH = 512  # examples at once, a bound for activation memory
RESIDENT_SHARE = 0.25  # of a device's free memory that a data set may take; models and activations need the rest

_last_used: dict[tuple[str, ...], Splits | DatasetSplits] = {}  # at most one: a worker's trials mostly share it


@dataclass(frozen=True)
class TrainingData:
    """The training and the test set as one worker reads them."""

    train: Reader
    test: Reader
    num_classes: int  # K: classes, or numbers to predict
    in_channels: int
    device: torch.device
    seed: int = 0  # of the augmentation
    augmentation: Augmentation | None = None

    @property
    def samples(self) -> int:
        """n."""
        return len(self.train)

    @property
    def test_samples(self) -> int:
        """m."""
        return len(self.test)

    def shards(self, order: torch.Tensor, bounds: Bounds, epoch: int) -> Iterator[Batch]:
        """(inputs (N, C, …), targets (N, …)) on the device for each pair of bounds, augmented.

        order: a permutation of the training examples, (n,) int64 on the CPU. bounds: first and one-past-last position
        in it, for each of this worker's shards; equal ones give an empty batch. What reads ahead ends with the
        iterator.
        """
        here = order.to(self.device) if self.augmentation else order
        key = augmentation_key(self.seed, epoch)
        with closing(self.train.batches(order, bounds, epoch)) as batches:
            for (first, stop), (inputs, targets) in zip(bounds, batches, strict=True):
                if self.augmentation:
                    inputs = self.augmentation(inputs, here[first:stop], key)
                yield inputs, targets

    def test_batches(self, start: int, stop: int) -> Iterator[Batch]:
        """The test examples start … stop - 1, in their order, on the device, never augmented."""
        bounds = [(first, min(first + EVALUATION_BATCH, stop)) for first in range(start, stop, EVALUATION_BATCH)]
        with closing(self.test.batches(None, bounds, epoch=0)) as batches:
            yield from batches


def open_data(config: TrainConfig, worker: Worker) -> TrainingData:
    """The config's data set for this worker; the one that was used last is not loaded again.

    Tensors are on the device if they take at most RESIDENT_SHARE of its free memory; other tensors, and torch data
    sets, come through a DataLoader. Raises DataError (a ValueError) if files are missing or damaged, an argument is
    unknown, a user's callable returns something else, labels are out of range, or `augment` needs images.
    """
    splits = load_splits(config, worker.device)
    train, test = _readers(splits, config, worker)
    _check_augment(config, train)
    return TrainingData(
        train=train,
        test=test,
        num_classes=splits.num_classes,
        in_channels=splits.in_channels,
        device=worker.device,
        seed=config.seed,
        augmentation=AUGMENTATIONS[config.augment],
    )


def load_splits(config: TrainConfig, device: torch.device) -> Splits | DatasetSplits:
    """What the config's data set callable returns, tensors on the device if they fit it. Raises DataError."""
    key = _key(config, device)
    if key not in _last_used:
        _last_used.clear()  # before loading: never hold two
        _last_used[key] = _place(_load(config), device)
    return _last_used[key]


def fits(size_bytes: int, free_bytes: int) -> bool:
    """Whether a data set is small enough to live on a device with so much free memory."""
    return size_bytes <= RESIDENT_SHARE * free_bytes


def _key(config: TrainConfig, device: torch.device) -> tuple[str, ...]:
    arguments = json.dumps(dict(config.data_args), sort_keys=True, default=repr)
    return config.data, arguments, str(config.data_root), str(device)


def _load(config: TrainConfig) -> Splits | DatasetSplits:
    loader = resolve_field("data", config.data, DATASETS)
    splits = call_with(loader, f"data_args: {config.data!r}", config.data_root, **config.data_args)
    if not isinstance(splits, Splits | DatasetSplits):
        raise DataError(f"data: {config.data!r} gave a {type(splits).__name__}; return training.data.Splits")
    return splits


def _place(splits: Splits | DatasetSplits, device: torch.device) -> Splits | DatasetSplits:
    if isinstance(splits, DatasetSplits):
        return splits
    return splits.to(device if device.type != "cuda" or fits(splits.size_bytes, _free_bytes(device)) else _HOST)


_HOST = torch.device("cpu")


def _free_bytes(device: torch.device) -> int:
    """Of a GPU: what nobody has, and what PyTorch has and does not use."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def _readers(splits: Splits | DatasetSplits, config: TrainConfig, worker: Worker) -> tuple[Reader, Reader]:
    if isinstance(splits, DatasetSplits):
        seed, classes = config.seed, splits.num_classes
        return (
            DatasetReader("train", splits.train, classes, worker, seed),
            DatasetReader("test", splits.test, classes, worker, seed),
        )
    pairs = (splits.train_inputs, splits.train_targets), (splits.test_inputs, splits.test_targets)
    if splits.train_inputs.device.type == worker.device.type:
        return ResidentReader(*pairs[0]), ResidentReader(*pairs[1])
    return HostReader(*pairs[0], worker.device), HostReader(*pairs[1], worker.device)


def _check_augment(config: TrainConfig, train: Reader) -> None:
    if config.augment != "none" and len(train.inputs_shape) != 3:
        raise DataError(f"augment: {config.augment} is for images (n, C, H, W) and {config.data!r} has inputs "
                        f"(n, {', '.join(map(str, train.inputs_shape))}); set it to none")  # fmt: skip
