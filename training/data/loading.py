"""A trial's data, as near its device as it fits, and augmented.

Augmentation takes its random numbers from a hash of (seed, epoch, example's index) alone. So an example is changed the
same at any world size, in any batch, on any device. Rejected: a torch.Generator, whose numbers depend on the position
in a batch, on the batches before and on the kind of device.

Shapes: n training and m test examples, N of them in a batch, C channels, H × W pixels.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from scalestudy.training.batches import shard_bounds
from scalestudy.training.config import TrainConfig
from scalestudy.training.data.downloads import DataError
from scalestudy.training.data.readers import Bounds, DatasetReader, HostReader, Reader, ResidentReader, StreamReader
from scalestudy.training.data.splits import DatasetSplits, Splits, TensorSplits, check_alike, evenly, scaled
from scalestudy.training.data.streams import Passes, Place
from scalestudy.training.distributed import Worker, gather_texts
from scalestudy.training.exceptions import InputError
from scalestudy.training.process_state import ALL
from scalestudy.training.registry import DATASETS, call_with, resolve_field
from scalestudy.training.seeding import augmentation_key, epoch_order, generators_kept, seed_loading
from scalestudy.training.settings import Settings, put_settings
from scalestudy.training.trees import Tree, moved, tensors

Augmentation = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]
"""(inputs (N, C, H, W), examples' indices (N,) int64 on the same device, key of the epoch) -> changed inputs."""

EVALUATION_BATCH = 512  # examples at once, a bound for activation memory
RESIDENT_SHARE = 0.25  # of a device's free memory that a data set may take; models and activations need the rest
PADDING = 4  # pixels of zeros on each side, before the crop

_STEP, _FIRST, _SECOND = (  # of SplitMix64, as signed numbers
    constant - 2**64 for constant in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)

AnySplits = Splits | TensorSplits | DatasetSplits


class Loaded(NamedTuple):
    """A data set with what loading it has done."""

    splits: AnySplits
    versions: list[int]  # of its tensors, since a model may change its inputs
    settings: Mapping[str, Any]  # of the process that the user's code has set


_last_used: dict[tuple[str, ...], Loaded] = {}  # at most one, which a worker's trials mostly share


@dataclass(frozen=True)
class TrainingData:
    """The training and the test set as one worker reads them."""

    train: Reader | StreamReader
    test: Reader | StreamReader
    for_model: tuple[int, int] | Mapping[str, Any]  # what the model's callable is called with before its arguments
    num_classes: int | None  # K: classes, or numbers to predict; None: batches of any form
    device: torch.device
    seed: int = 0  # of the augmentation
    augmentation: Augmentation | None = None
    is_scaled: bool = False  # whether inputs come as bytes, and are divided by 255 on the device
    for_task: Mapping[str, Any] = field(default_factory=dict)  # what the task's class is called with, on the device
    evaluate_batches: int | None = None  # of EVALUATION_BATCH test examples in each evaluation; None: all examples

    @property
    def is_stream(self) -> bool:
        """Whether the training set is iterable, without a known length."""
        return isinstance(self.train, StreamReader)

    @property
    def samples(self) -> int | None:
        """n; None: a stream, whose length is not known."""
        return None if isinstance(self.train, StreamReader) else len(self.train)

    @property
    def test_samples(self) -> int | None:
        """m, those of an evaluation; None as for `samples`."""
        if isinstance(self.test, StreamReader):
            return None
        m = len(self.test)
        return m if self.evaluate_batches is None else min(m, self.evaluate_batches * EVALUATION_BATCH)

    @property
    def place(self) -> dict[str, Any] | None:
        """The pass of a stream that this rank reads, as plain data; None: the training set has a length."""
        return vars(self.train.place) if isinstance(self.train, StreamReader) else None

    def go_on(self, places: Sequence[Mapping[str, Any] | None]) -> None:
        """Let a stream continue where a checkpoint's ranks were. `places`: theirs, by rank.

        Raises InputError if the data set shards itself, and the checkpoint is of another world size.
        """
        known = [Place(**place) for place in places if place is not None]
        if known and isinstance(self.train, StreamReader):
            self.train.go_on(known)

    def first_shard(self, size: int) -> Tree:
        """Return so many of the training's first examples, or all that there are, as a batch on the device."""
        if self.samples is None:
            return next(self.stream_shards(0, size, size, range(1)))
        order = epoch_order(self.samples, self.seed, epoch=1)
        return next(self.shards(order, [(0, min(size, self.samples))], 1))

    def shards(self, order: torch.Tensor, bounds: Bounds, epoch: int) -> Generator[Tree]:
        """Yield a batch on the device for each pair of bounds, its inputs scaled and augmented.

        `order`: a permutation of the training examples, (n,) int64 on the CPU. `bounds`: first and one-past-last
        position in it, for each of this worker's shards; equal ones give an empty batch. The reading ahead ends with
        the iterator.
        """
        assert not isinstance(self.train, StreamReader)
        here = order.to(self.device) if self.augmentation else order
        key = augmentation_key(self.seed, epoch)
        with closing(self.train.batches(order, bounds, epoch)) as batches:
            for (first, stop), batch in zip(bounds, batches, strict=True):
                yield self._prepared(batch, here[first:stop], key)

    def stream_shards(self, first: int, size: int, batch: int, steps: range) -> Generator[Tree]:
        """Yield a stream's batch on the device for each step: examples first … first + size - 1 of the global batch.

        It reads from `place` on if that is not behind the first of them. Examples are augmented by their number in the
        stream.
        """
        assert isinstance(self.train, StreamReader)
        key = augmentation_key(self.seed, 0)
        here = torch.arange(first, first + size, device=self.device)
        with closing(self.train.shards(first, size, batch, steps)) as batches:
            for step, shard in zip(steps, batches, strict=True):
                yield self._prepared(shard, here + step * batch, key)

    def test_part(self, worker: Worker, weights: Sequence[float]) -> Generator[Tree]:
        """Yield this worker's share of the test set, on the device, scaled, never augmented.

        Its weight decides the size of a contiguous part. Batches of a stream go to the ranks in turn.
        """
        if not isinstance(self.test, StreamReader):
            assert self.test_samples is not None
            yield from self.test_batches(*shard_bounds(self.test_samples, weights, worker.rank))
            return
        with closing(self.test.dealt(EVALUATION_BATCH, self.evaluate_batches)) as batches:
            for batch in batches:
                yield self._scaled(batch)

    def test_batches(self, start: int, stop: int) -> Iterator[Tree]:
        """Yield the test examples start … stop - 1 in their order, on the device, scaled, never augmented.

        Of a partial evaluation they come from all over the set, which may be sorted, and are the same each time.
        """
        assert not isinstance(self.test, StreamReader)
        order: torch.Tensor | None = None
        if self.evaluate_batches is not None and self.test_samples is not None:
            order = torch.tensor(evenly(len(self.test), self.test_samples))
        bounds = [(first, min(first + EVALUATION_BATCH, stop)) for first in range(start, stop, EVALUATION_BATCH)]
        with closing(self.test.batches(order, bounds, epoch=0)) as batches:
            for batch in batches:
                yield self._scaled(batch)

    def _prepared(self, batch: Tree, examples: torch.Tensor, key: int) -> Tree:
        batch = self._scaled(batch)
        return (self.augmentation(batch[0], examples, key), batch[1]) if self.augmentation else batch

    def _scaled(self, batch: Tree) -> Tree:
        return (scaled(batch[0]), batch[1]) if self.is_scaled else batch


def open_data(config: TrainConfig, worker: Worker) -> TrainingData:
    """Open the config's data set for this worker. The set that was used last is not loaded again.

    Tensors live on the device if they take at most RESIDENT_SHARE of its free memory. Other tensors, and torch data
    sets, come through a DataLoader. Raises DataError (a ValueError) if files are missing or damaged, an argument is
    unknown, a user's callable returns another type, labels are out of range, or `augment` needs images; InputError if
    the config needs the length of an iterable set. Call it on all ranks.
    """
    splits, _, settings = _loaded(config, worker.device)
    put_settings(ALL, settings)  # as if it had been loaded for this trial
    train: Reader | StreamReader
    test: Reader | StreamReader
    if isinstance(splits, DatasetSplits):
        if isinstance(splits.train, Passes):
            _require_no_length(config, splits.train, worker)
        train, test = _dataset_readers(config, splits, worker)
    elif next(tensors(splits.train))[1].device.type == worker.device.type:
        train, test = ResidentReader(splits.train), ResidentReader(splits.test)
    else:
        train, test = (HostReader(each, worker.device, config.loader.prefetch) for each in (splits.train, splits.test))
    if splits.num_classes is None and config.task is None:
        raise DataError(
            f"data: {config.data!r} has examples of any form, which only a task understands",
            "name workload.task, or give num_classes",
        )
    _require_images(config, train)
    if config.evaluate_batches and not isinstance(test, StreamReader):
        most = math.ceil(len(test) / EVALUATION_BATCH)
        if config.evaluate_batches > most:
            raise InputError(
                f"evaluate_batches: {config.evaluate_batches} batches of {EVALUATION_BATCH} are more than the "
                f"{len(test)} test examples",
                f"choose at most {most}, or null for the whole set",
            )
    is_pair = splits.num_classes is not None
    if is_pair:
        check_alike(train.empty[0], test.empty[0])
    return TrainingData(
        train=train,
        test=test,
        for_model=splits.for_model,
        num_classes=splits.num_classes,
        device=worker.device,
        seed=config.seed,
        augmentation=AUGMENTATIONS[config.augment],
        is_scaled=is_pair and train.empty[0].dtype == torch.uint8,
        for_task=moved(dict(splits.for_task), worker.device),
        evaluate_batches=config.evaluate_batches,
    )


def _dataset_readers(
    config: TrainConfig, splits: DatasetSplits, worker: Worker
) -> tuple[DatasetReader | StreamReader, DatasetReader | StreamReader]:
    """Return the readers of torch data sets. If a stream is wrong on one rank, every rank raises."""

    def made(name: str, dataset: Any) -> DatasetReader | StreamReader:
        arguments = (splits.num_classes, worker, config.seed, splits.collate, config.loader)
        if isinstance(dataset, Passes):
            return StreamReader(name, dataset, *arguments, endless=name == "train")
        return DatasetReader(name, dataset, *arguments)

    if not (isinstance(splits.train, Passes) or isinstance(splits.test, Passes)):
        return made("train", splits.train), made("test", splits.test)
    problem: InputError | None = None
    try:
        readers = made("train", splits.train), made("test", splits.test)
    except InputError as error:  # a rank's part may be empty, and the others would wait for this rank
        problem = error
    for said in gather_texts(json.dumps([problem.what, problem.remedy] if problem else None), worker):
        if found := json.loads(said):
            raise DataError(*found) from problem
    return readers


def _require_no_length(config: TrainConfig, passes: Passes, worker: Worker) -> None:
    """Raise InputError for settings that need the number of examples, or another division of them."""
    what = f"{config.data!r} is an iterable data set, which has no known length"
    if config.epochs is not None:
        raise InputError(f"epochs: {what}", "give train.steps in its place")
    if config.warmup_epochs:
        raise InputError(f"warmup_epochs: {what}", "give train.warmup_steps in its place")
    even = config.shards != "speed" and len(set(config.weights(worker.world_size))) == 1
    if passes.shards_itself and worker.world_size > 1 and not even:
        raise InputError(
            f"shards: {config.data!r} gives each worker a part of its own, by its method shard, and parts are even",
            "set train.shards to even",
        )


def _require_images(config: TrainConfig, train: Reader | StreamReader) -> None:
    """Raise DataError if inputs are to be augmented that are no images."""
    if config.augment == "none":
        return
    inputs = train.empty[0] if isinstance(train.empty, tuple) else None
    if not isinstance(inputs, torch.Tensor) or inputs.dim() != 4:
        form = "batches of another form"
        if isinstance(inputs, torch.Tensor):
            form = f"inputs (n, {', '.join(map(str, inputs.shape[1:]))})"
        raise DataError(
            f"augment: {config.augment} is for images (n, C, H, W) and {config.data!r} has {form}", "set it to none"
        )


def load_splits(config: TrainConfig, device: torch.device) -> AnySplits:
    """Load the splits of the config's data set, as tensors on the device if they fit it. Raises DataError."""
    return _loaded(config, device).splits


def _loaded(config: TrainConfig, device: torch.device) -> Loaded:
    arguments = json.dumps(dict(config.data_args), sort_keys=True, default=repr)
    key = config.data, arguments, str(config.data_root), str(device)
    if key in _last_used and _last_used[key].versions == _versions(_last_used[key].splits):
        return _last_used[key]
    _last_used.clear()  # before loading: never hold two
    before = Settings(ALL)
    splits = make_splits(config)
    if isinstance(splits, Splits | TensorSplits):
        splits = splits.to(device if _has_room(device, splits.size_bytes) else torch.device("cpu"))
    _last_used[key] = Loaded(splits, _versions(splits), before.changed())
    return _last_used[key]


def make_splits(config: TrainConfig) -> AnySplits:
    """Call the config's data set. Raises DataError if it gives no splits."""
    loader = resolve_field("data", config.data, DATASETS)
    with generators_kept():
        seed_loading()
        splits: Any = call_with(loader, f"data_args: {config.data!r}", config.data_root, **config.data_args)
    if not isinstance(splits, AnySplits):
        raise DataError(
            f"data: {config.data!r} gave a {type(splits).__name__}", "return scalestudy.training.data.Splits"
        )
    return splits


def _versions(splits: AnySplits) -> list[int]:
    """Return how often each tensor was changed in place. Not known of a user's data sets, and in inference mode."""
    if isinstance(splits, DatasetSplits):
        return []
    held = [tensor for tree in (splits.train, splits.test) for _, tensor in tensors(tree)]
    return [tensor._version for tensor in held if not tensor.is_inference()]


def fits(size_bytes: int, free_bytes: int) -> bool:
    """Whether a data set may live on a device with so much free memory."""
    return size_bytes <= RESIDENT_SHARE * free_bytes


def _has_room(device: torch.device, size_bytes: int) -> bool:
    """Whether the device has room. A CPU always has; a GPU's free memory includes what PyTorch holds unused."""
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
    """Return 64 random bits an example, (N,) int64: element `example` of the key's SplitMix64 sequence.

    Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators". It needs int64 to wrap around.
    """
    words = (examples + 1) * _STEP + key
    words = (words ^ _shifted(words, 30)) * _FIRST
    words = (words ^ _shifted(words, 27)) * _SECOND
    return words ^ _shifted(words, 31)


def _shifted(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift right and fill with zeros; int64's own shift fills with the sign."""
    return (words >> bits) & (2 ** (64 - bits) - 1)
