"""A trial's data, as near its device as it fits, and augmented.

Augmentation takes its random numbers from a hash of (seed, epoch, example's index) alone. So an example is changed
alike at any world size, in any batch, on any device. Rejected: a torch.Generator, whose numbers depend on the position
in a batch, on the batches before and on the kind of device.

Shapes: n training and m test examples, N of them in a batch, C channels, H × W pixels.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from scalestudy.training.config import TrainConfig
from scalestudy.training.data.files import DataError
from scalestudy.training.data.reading import Batch, Bounds, DatasetReader, HostReader, Reader, ResidentReader
from scalestudy.training.data.splits import DatasetSplits, Splits
from scalestudy.training.distributed import Worker
from scalestudy.training.registry import DATASETS, call_with, resolve_field
from scalestudy.training.seeding import augmentation_key

Augmentation = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]
"""(inputs (N, C, H, W), examples' indices (N,) int64 on the same device, key of the epoch) -> changed inputs."""

EVALUATION_BATCH = 512  # examples at once, a bound for activation memory
RESIDENT_SHARE = 0.25  # of a device's free memory that a data set may take; models and activations need the rest
PADDING = 4  # pixels of zeros on each side, before the crop

_STEP, _FIRST, _SECOND = (  # of SplitMix64, as signed numbers
    constant - 2**64 for constant in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)

_last_used: dict[tuple[str, ...], Splits | DatasetSplits] = {}  # at most one, which a worker's trials mostly share


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

        `order`: a permutation of the training examples, (n,) int64 on the CPU. `bounds`: first and one-past-last
        position in it, for each of this worker's shards; equal ones give an empty batch. The reading ahead ends with
        the iterator.
        """
        here = order.to(self.device) if self.augmentation else order
        key = augmentation_key(self.seed, epoch)
        with closing(self.train.batches(order, bounds, epoch)) as batches:
            for (first, stop), (inputs, targets) in zip(bounds, batches, strict=True):
                if self.augmentation:
                    inputs = self.augmentation(inputs, here[first:stop], key)
                yield inputs, targets

    def test_batches(self, start: int, stop: int) -> Iterator[Batch]:
        """The test examples start … stop - 1 in their order, on the device, never augmented."""
        bounds = [(first, min(first + EVALUATION_BATCH, stop)) for first in range(start, stop, EVALUATION_BATCH)]
        with closing(self.test.batches(None, bounds, epoch=0)) as batches:
            yield from batches


def open_data(config: TrainConfig, worker: Worker) -> TrainingData:
    """Open the config's data set for this worker. The set that was used last is not loaded again.

    Tensors live on the device if they take at most RESIDENT_SHARE of its free memory. Other tensors, and torch data
    sets, come through a DataLoader. Raises DataError (a ValueError) if files are missing or damaged, an argument is
    unknown, a user's callable returns another type, labels are out of range, or `augment` needs images.
    """
    splits = load_splits(config, worker.device)
    train: Reader
    test: Reader
    if isinstance(splits, DatasetSplits):
        train = DatasetReader("train", splits.train, splits.num_classes, worker, config.seed)
        test = DatasetReader("test", splits.test, splits.num_classes, worker, config.seed)
    elif splits.train_inputs.device.type == worker.device.type:
        train = ResidentReader(splits.train_inputs, splits.train_targets)
        test = ResidentReader(splits.test_inputs, splits.test_targets)
    else:
        train = HostReader(splits.train_inputs, splits.train_targets, worker.device)
        test = HostReader(splits.test_inputs, splits.test_targets, worker.device)
    if config.augment != "none" and len(train.inputs_shape) != 3:
        raise DataError(
            f"augment: {config.augment} is for images (n, C, H, W) and {config.data!r} has inputs (n, "
            f"{', '.join(map(str, train.inputs_shape))})",
            "set it to none",
        )
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
    arguments = json.dumps(dict(config.data_args), sort_keys=True, default=repr)
    key = config.data, arguments, str(config.data_root), str(device)
    if key in _last_used:
        return _last_used[key]
    _last_used.clear()  # before loading: never hold two
    loader = resolve_field("data", config.data, DATASETS)
    splits = call_with(loader, f"data_args: {config.data!r}", config.data_root, **config.data_args)
    if not isinstance(splits, Splits | DatasetSplits):
        raise DataError(
            f"data: {config.data!r} gave a {type(splits).__name__}", "return scalestudy.training.data.Splits"
        )
    if isinstance(splits, Splits):
        splits = splits.to(device if _has_room(device, splits.size_bytes) else torch.device("cpu"))
    _last_used[key] = splits
    return splits


def fits(size_bytes: int, free_bytes: int) -> bool:
    """Whether a data set may live on a device with so much free memory."""
    return size_bytes <= RESIDENT_SHARE * free_bytes


def _has_room(device: torch.device, size_bytes: int) -> bool:
    """A CPU always has. A GPU's free memory is what nobody has, and what PyTorch holds unused."""
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return fits(size_bytes, free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


def crop_flip(inputs: torch.Tensor, examples: torch.Tensor, key: int) -> torch.Tensor:
    """Crop the zero-padded image at one of 9 × 9 places, and mirror it left to right or not, all equally likely.

    The usual augmentation of CIFAR-10 (He et al. 2015, arXiv 1512.03385, section 4.2). Inputs and result (N, C, H, W).
    """
    count, channels, height, width = inputs.shape
    words = random_words(examples, key)
    places = 2 * PADDING + 1
    top, left = (((words >> shift) & 0xFFFFFF) * places >> 24 for shift in (0, 24))  # 24 bits each: 0 … 8
    mirrored = words < 0  # the highest bit
    rows = top.unsqueeze(1) + torch.arange(height, device=inputs.device)
    columns = torch.arange(width, device=inputs.device)
    columns = left.unsqueeze(1) + torch.where(mirrored.unsqueeze(1), width - 1 - columns, columns)
    pixels = rows.unsqueeze(2) * (width + 2 * PADDING) + columns.unsqueeze(1)  # (N, H, W) in the padded image
    padded = F.pad(inputs, (PADDING,) * 4).flatten(2)
    return padded.gather(2, pixels.view(count, 1, height * width).expand(-1, channels, -1)).view(inputs.shape)


AUGMENTATIONS: Mapping[str, Augmentation | None] = {"none": None, "crop_flip": crop_flip}
"""The values of the config's `augment`."""


def random_words(examples: torch.Tensor, key: int) -> torch.Tensor:
    """64 random bits an example, (N,) int64: element `example` of the SplitMix64 sequence that starts at the key.

    Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators". It needs int64's wrapping around.
    """
    words = (examples + 1) * _STEP + key
    words = (words ^ _shifted(words, 30)) * _FIRST
    words = (words ^ _shifted(words, 27)) * _SECOND
    return words ^ _shifted(words, 31)


def _shifted(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift right and fill with zeros; int64's own shift fills with the sign."""
    return (words >> bits) & (2 ** (64 - bits) - 1)
