"""What a data set's callable returns: tensors, or two torch data sets (no torch here).

Shapes: n training and m test examples, C channels, K classes or numbers to predict. Inputs (n, C, …).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from scalestudy.training.data.downloads import DataError

if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset

    from scalestudy.training.data.streams import Passes
    from scalestudy.training.trees import Tree

Collate = Callable[[list[Any]], Any]
"""Examples of a batch -> the batch: tensors with a row an example, in dicts, tuples, lists or dataclasses."""


@dataclass(frozen=True)
class Splits:
    """A training and a test set, whole, on one device.

    Targets are class numbers 0 … K - 1, (n,) int64, or numbers to predict, (n,) with K = 1 or (n, K), float.
    """

    train_inputs: torch.Tensor  # (n, C, …) float32, or bytes, which are divided by 255 on the device
    train_targets: torch.Tensor
    test_inputs: torch.Tensor  # (m, C, …) as the training inputs
    test_targets: torch.Tensor
    num_classes: int  # K
    for_task: Mapping[str, Any] = field(default_factory=dict)  # named arguments of the task's class

    def __post_init__(self) -> None:
        for split, inputs, targets in self._pairs():
            for what, value in (("inputs", inputs), ("targets", targets)):
                if not hasattr(value, "is_floating_point"):
                    raise DataError(
                        f"data: {split} {what} are of {type(value).__module__}.{type(value).__name__}",
                        "give torch tensors, such as torch.from_numpy(array)",
                    )
            if not len(inputs) == len(targets) > 0 or inputs.dim() < 2:
                raise DataError(
                    f"data: {split} inputs {tuple(inputs.shape)} and targets {tuple(targets.shape)} do not fit",
                    "give (n, C, ...) inputs and n targets, n above 0",
                )
            check_inputs(split, inputs)
            check_targets(split, targets, self.num_classes)
        check_alike(self.train_inputs, self.test_inputs)

    @staticmethod
    def from_datasets(
        train: Dataset[Any],
        test: Dataset[Any],
        *,
        num_classes: int | None = None,
        in_channels: int | None = None,
        collate: Collate | None = None,
        for_model: Mapping[str, Any] | None = None,
        for_task: Mapping[str, Any] | None = None,
    ) -> DatasetSplits:
        """Take torch's map-style or iterable data sets in place of tensors.

        With `num_classes` examples are (input (C, …) float, target), and `in_channels` is by default taken from the
        first training example. Without it they have any form, for a task, and the model's callable is called with
        `for_model`. `collate`: makes a batch of a list of examples; None: PyTorch's `default_collate`. `for_task`: what
        the task's class is called with; tensors in it are moved to the device. Raises DataError for another form of
        data sets or examples.
        """
        sets = _examples("train", train), _examples("test", test)
        if train is test and not hasattr(sets[0], "__getitem__"):  # an evaluation would begin it anew amid training
            raise DataError("data: one iterable data set is given for training and test", "make two of it")
        if num_classes is None:
            return DatasetSplits(*sets, dict(for_model or {}), collate=collate, for_task=dict(for_task or {}))
        if for_model is not None:
            raise DataError("data: for_model and num_classes are both given", "put num_classes into for_model")
        found, _ = (_channels(split, dataset) for split, dataset in zip(("train", "test"), sets, strict=True))
        facts = (num_classes, found if in_channels is None else in_channels)
        return DatasetSplits(*sets, facts, num_classes, collate, dict(for_task or {}))

    @staticmethod
    def from_tensors(
        train: Tree,
        test: Tree,
        *,
        for_model: Mapping[str, Any] | None = None,
        for_task: Mapping[str, Any] | None = None,
    ) -> TensorSplits:
        """Take tensors of any names and number, for a task: in dicts, tuples, lists or dataclasses.

        Each has a row an example. The model's callable is called with `for_model`, the task's class with `for_task`,
        whose tensors are moved to the device. Raises DataError for others.
        """
        return TensorSplits(train, test, dict(for_model or {}), for_task=dict(for_task or {}))

    @property
    def in_channels(self) -> int:
        """C, the second dimension of the inputs."""
        return self.train_inputs.shape[1]

    @property
    def for_model(self) -> tuple[int, int]:
        """K and C."""
        return self.num_classes, self.in_channels

    @property
    def train(self) -> Tree:
        """The training set as one batch."""
        return self.train_inputs, self.train_targets

    @property
    def test(self) -> Tree:
        """The test set as one batch."""
        return self.test_inputs, self.test_targets

    @property
    def size_bytes(self) -> int:
        """Bytes of all four tensors."""
        return sum(tensor.nbytes for _, *pair in self._pairs() for tensor in pair)

    def to(self, device: torch.device) -> Splits:
        """Return the same data on the device."""
        names = ("train_inputs", "train_targets", "test_inputs", "test_targets")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    def test_examples(self, most: int) -> Tree:
        """Return a copy of at most so many of the first test examples, as the model sees a batch."""
        return scaled(self.test_inputs[:most].clone()), self.test_targets[:most].clone()

    def train_examples(self, most: int) -> Tree:
        """Return at most so many training examples from all over the set, as the model sees a batch."""
        places = evenly(len(self.train_inputs), most)
        return scaled(self.train_inputs[places]), self.train_targets[places]

    def _pairs(self) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
        yield "train", self.train_inputs, self.train_targets
        yield "test", self.test_inputs, self.test_targets


@dataclass(frozen=True)
class DatasetSplits:
    """A training and a test set, read example by example; made by `Splits.from_datasets`."""

    train: Dataset[Any] | Passes
    test: Dataset[Any] | Passes
    for_model: tuple[int, int] | Mapping[str, Any]  # K and C, or named arguments of the model's callable
    num_classes: int | None = None  # K; None: examples of any form
    collate: Collate | None = None
    for_task: Mapping[str, Any] = field(default_factory=dict)  # named arguments of the task's class

    def test_examples(self, most: int) -> Tree:
        """Return at most so many of the first test examples, as the model or the task sees a batch."""
        from torch.utils.data import default_collate

        batch = (self.collate or default_collate)(_first(self.test, most))
        return batch if self.num_classes is None else (scaled(batch[0]), batch[1])

    def train_examples(self, most: int) -> Tree:
        """Return at most so many training examples from all over the set, of a stream the first, as a batch."""
        from torch.utils.data import default_collate

        from scalestudy.training.data.streams import Passes

        found = (
            self.train.first(most)
            if isinstance(self.train, Passes)
            else [self.train[place] for place in evenly(len(self.train), most)]  # type: ignore[arg-type]
        )
        batch = (self.collate or default_collate)(found)
        return batch if self.num_classes is None else (scaled(batch[0]), batch[1])


@dataclass(frozen=True)
class TensorSplits:
    """A training and a test set of tensors in any form, whole, on one device; made by `Splits.from_tensors`."""

    train: Tree
    test: Tree
    for_model: Mapping[str, Any]  # named arguments of the model's callable
    num_classes: None = None
    for_task: Mapping[str, Any] = field(default_factory=dict)  # named arguments of the task's class

    def __post_init__(self) -> None:
        from scalestudy.training.trees import arrays, check_rows, count

        for split, examples in (("train", self.train), ("test", self.test)):
            if place := next(arrays(examples), None):
                remedy = "give torch tensors, such as torch.from_numpy(array)"
                raise DataError(f"data: {place} of the {split} set is an array, and no tensor", remedy)
            if not count(examples):
                raise DataError(f"data: the {split} set has no examples", "give tensors with a row an example")
            check_rows(examples, count(examples), split)

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors."""
        from scalestudy.training.trees import tensors

        return sum(tensor.nbytes for _, tensor in tensors((self.train, self.test)))

    def to(self, device: torch.device) -> TensorSplits:
        """Return the same data on the device."""
        from scalestudy.training.trees import moved

        return replace(self, train=moved(self.train, device), test=moved(self.test, device))

    def test_examples(self, most: int) -> Tree:
        """Return a copy of at most so many of the first test examples, as a batch."""
        from scalestudy.training.trees import mapped

        return mapped(lambda tensor: tensor[:most].clone(), self.test)

    def train_examples(self, most: int) -> Tree:
        """Return at most so many training examples from all over the set, as a batch."""
        from scalestudy.training.trees import count, mapped

        places = evenly(count(self.train), most)
        return mapped(lambda tensor: tensor[places], self.train)


def evenly(examples: int, most: int) -> list[int]:
    """Return the places of at most `count` examples, evenly spaced: a set may be sorted."""
    chosen = min(most, examples)
    return [number * examples // chosen for number in range(chosen)]


def scaled(inputs: torch.Tensor) -> torch.Tensor:
    """Scale inputs of bytes to float32 from 0 to 1; return others as they are."""
    return inputs.float() / 255 if str(inputs.dtype) == "torch.uint8" else inputs


def check_alike(train: torch.Tensor, test: torch.Tensor) -> None:
    """Raise DataError for inputs of the two sets that differ in their number format."""
    if train.dtype != test.dtype:
        raise DataError(f"data: train inputs are {train.dtype} and test inputs {test.dtype}", "give both alike")


def check_inputs(split: str, inputs: torch.Tensor) -> None:
    """Raise DataError for formats that layers of float32 refuse. Bytes are scaled on the device."""
    if inputs.is_floating_point() and str(inputs.dtype) != "torch.float32":
        raise DataError(f"data: {split} inputs are {inputs.dtype}", "give torch.float32, as the parameters are")


def check_targets(split: str, targets: torch.Tensor, num_classes: int) -> None:
    """Raise DataError unless targets (N, …) are classes below K = num_classes, or numbers, K an example."""
    if targets.is_floating_point():
        if targets.shape[1:] != (num_classes,) and (targets.dim(), num_classes) != (1, 1):
            raise DataError(
                f"data: {split} targets {tuple(targets.shape)} are not {num_classes} numbers an example",
                "for classes give targets.long(); for numbers to predict set num_classes to how many",
            )
        return
    if targets.dim() != 1 or str(targets.dtype) != "torch.int64":
        raise DataError(
            f"data: {split} targets are {targets.dtype} of shape {tuple(targets.shape)}",
            "give class numbers (n,) of torch.int64, or floating-point numbers to predict",
        )
    if not len(targets):
        return
    low, high = (int(bound) for bound in targets.aminmax())
    if low < 0 or high >= num_classes:
        raise DataError(
            f"data: {split} targets are {low} to {high}, and {num_classes} classes are numbered 0 to {num_classes - 1}",
            "correct the labels or num_classes",
        )


def _examples(split: str, dataset: Dataset[Any]) -> Dataset[Any] | Passes:
    """Return the data set; an iterable one by passes. Raises DataError unless it is iterable or not empty."""
    from torch.utils.data import IterableDataset

    from scalestudy.training.data.streams import Passes

    if isinstance(dataset, IterableDataset):
        return Passes(dataset, f"the {split} set")
    size = len(dataset) if hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__") else 0
    if not size:
        raise DataError(
            f"data: the {split} data set is a {type(dataset).__name__} without a length or without examples",
            "give a map-style torch Dataset, or an IterableDataset",
        )
    return dataset


def _first(dataset: Dataset[Any] | Passes, most: int) -> list[Any]:
    """Return at most so many of the first examples."""
    from scalestudy.training.data.streams import Passes

    if isinstance(dataset, Passes):
        return dataset.first(most)
    return [dataset[index] for index in range(min(most, len(dataset)))]  # type: ignore[arg-type]


def _channels(split: str, dataset: Dataset[Any] | Passes) -> int:
    """Return C of the first example. Raises DataError for another form of example."""
    [example] = _first(dataset, 1)
    if not isinstance(example, tuple | list) or len(example) != 2 or not getattr(example[0], "shape", ()):
        form = f"a {type(example).__name__}"
        if isinstance(example, tuple | list):
            form = f"({', '.join(type(part).__name__ for part in example)})"
        raise DataError(
            f"data: a {split} example is {form}",
            "return (input, target), the input a tensor (C, ...), with images by transform=ToTensor()",
        )
    return int(example[0].shape[0])
