"""What a data set's callable returns: four tensors, or two torch data sets (no torch here).

Shapes: n training and m test examples, C channels, K classes or numbers to predict. Inputs (n, C, …).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from scalestudy.training.data.files import DataError

if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset


@dataclass(frozen=True)
class Splits:
    """A training and a test set, whole, on one device.

    Targets are class numbers 0 … K - 1, (n,) int64, or numbers to predict, (n,) with K = 1 or (n, K), float.
    """

    train_inputs: torch.Tensor  # (n, C, …) float
    train_targets: torch.Tensor
    test_inputs: torch.Tensor  # (m, C, …) float
    test_targets: torch.Tensor
    num_classes: int  # K

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

    @staticmethod
    def from_datasets(
        train: Dataset[Any], test: Dataset[Any], *, num_classes: int, in_channels: int | None = None
    ) -> DatasetSplits:
        """Take torch's map-style data sets in place of tensors. Examples are (input (C, …) float, target).

        `in_channels`: None: that of the first training example. Raises DataError for another form of data sets or
        examples.
        """
        found = _channels("train", train)
        _channels("test", test)
        return DatasetSplits(train, test, num_classes, found if in_channels is None else in_channels)

    @property
    def in_channels(self) -> int:
        """C, the second dimension of the inputs."""
        return self.train_inputs.shape[1]

    @property
    def size_bytes(self) -> int:
        """Bytes of all four tensors."""
        return sum(tensor.nbytes for _, *pair in self._pairs() for tensor in pair)

    def to(self, device: torch.device) -> Splits:
        """The same data on the device."""
        names = ("train_inputs", "train_targets", "test_inputs", "test_targets")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    @property
    def test_count(self) -> int:
        """m."""
        return len(self.test_inputs)

    def test_examples(self, count: int) -> torch.Tensor:
        """A copy of the first test inputs, (count, C, …)."""
        return self.test_inputs[:count].clone()

    def _pairs(self) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
        yield "train", self.train_inputs, self.train_targets
        yield "test", self.test_inputs, self.test_targets


@dataclass(frozen=True)
class DatasetSplits:
    """A training and a test set, read example by example; made by `Splits.from_datasets`."""

    train: Dataset[Any]
    test: Dataset[Any]
    num_classes: int  # K
    in_channels: int  # C

    @property
    def test_count(self) -> int:
        """m."""
        return len(self.test)  # type: ignore[arg-type]

    def test_examples(self, count: int) -> torch.Tensor:
        """The first test inputs, (count, C, …)."""
        import torch

        return torch.stack([torch.as_tensor(self.test[index][0]) for index in range(count)])


def check_inputs(split: str, inputs: torch.Tensor) -> None:
    """Raise DataError for bytes, which no layer takes, and for formats that layers of float32 refuse."""
    if str(inputs.dtype) == "torch.uint8":
        raise DataError(f"data: {split} inputs are torch.uint8", "give floating-point numbers, such as inputs / 255")
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


def _channels(split: str, dataset: Dataset[Any]) -> int:
    """C of the first example. Raises DataError for another form of data set or example."""
    size = len(dataset) if hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__") else 0
    if not size:
        raise DataError(
            f"data: the {split} data set is a {type(dataset).__name__} without a length or without examples",
            "give a map-style torch Dataset",
        )
    example = dataset[0]
    if not isinstance(example, tuple | list) or len(example) != 2 or not getattr(example[0], "shape", ()):
        form = f"a {type(example).__name__}"
        if isinstance(example, tuple | list):
            form = f"({', '.join(type(part).__name__ for part in example)})"
        raise DataError(
            f"data: a {split} example is {form}",
            "return (input, target), the input a tensor (C, ...), with images by transform=ToTensor()",
        )
    return int(example[0].shape[0])
