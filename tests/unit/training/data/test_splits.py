"""What a data set's callable may return, and what is said about anything else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from scalestudy.training.data import DataError, Splits
from tests.unit.training.data.datasets import Images, Returning

IMAGES, LABELS = torch.zeros(4, 1, 2, 2), torch.tensor([0, 1, 2, 0])


def splits(inputs: torch.Tensor = IMAGES, targets: torch.Tensor = LABELS, num_classes: int = 3) -> Splits:
    """The same tensors for training and test."""
    return Splits(inputs, targets, inputs, targets, num_classes)


def test_tensors_of_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(DataError, match="train inputs"):
        Splits(IMAGES, LABELS[:3], IMAGES, LABELS, 3)
    with pytest.raises(DataError, match="test inputs"):
        Splits(IMAGES, LABELS, IMAGES[:0], LABELS[:0], 3)


@pytest.mark.parametrize(
    ("targets", "num_classes", "found"),
    [
        (LABELS, 2, "train targets are 0 to 2, and 2 classes are numbered 0 to 1; correct the labels or num_classes"),
        (LABELS - 1, 3, "train targets are -1 to 1, and 3 classes are numbered 0 to 2; "),
        (LABELS.int(), 3, "train targets are torch.int32 .*; give class numbers"),
        (LABELS.unsqueeze(1), 3, r"of shape \(4, 1\); give class numbers"),
        (torch.zeros(4), 3, r"train targets \(4,\) are not 3 numbers an example; for classes give"),
        (torch.zeros(4, 2), 3, r"train targets \(4, 2\) are not 3 numbers"),
    ],
)
def test_targets_that_do_not_fit_are_refused(targets: torch.Tensor, num_classes: int, found: str) -> None:
    with pytest.raises(DataError, match=found):
        splits(targets=targets, num_classes=num_classes)


def test_bytes_are_taken_and_examples_are_scaled() -> None:
    found = splits(inputs=torch.full((4, 1, 2, 2), 51, dtype=torch.uint8))
    assert found.train_inputs.dtype == torch.uint8
    assert found.test_examples(2)[0].unique().tolist() == [pytest.approx(0.2)]
    with pytest.raises(DataError, match=r"train inputs are torch\.uint8 and test inputs torch\.float32"):
        replace(found, test_inputs=found.test_inputs.float())


def test_numbers_to_predict_are_taken() -> None:
    assert splits(targets=torch.zeros(4), num_classes=1).num_classes == 1
    assert splits(targets=torch.zeros(4, 5), num_classes=5).num_classes == 5
    assert splits(inputs=torch.zeros(4, 7)).in_channels == 7


def test_size_and_examples() -> None:
    """4 images of 4 float32 and 4 labels of int64, twice: 2 · (64 + 32) bytes."""
    tensors = splits()
    assert tensors.size_bytes == 192
    examples, labels = tensors.test_examples(2)
    assert (examples.shape, labels.shape) == ((2, 1, 2, 2), (2,))
    assert examples.untyped_storage().data_ptr() != tensors.test_inputs.untyped_storage().data_ptr()


def test_datasets_tell_their_channels() -> None:
    found = Splits.from_datasets(Images(6), Images(3), num_classes=3)
    assert (found.num_classes, found.for_model) == (3, (3, 1))
    assert torch.equal(found.test_examples(2)[0], Images(3).images[:2])
    assert Splits.from_datasets(Images(6), Images(3), num_classes=3, in_channels=4).for_model == (3, 4)


def test_data_sets_of_any_form_name_what_the_model_is_told() -> None:
    found = Splits.from_datasets(Images(6), Images(3), for_model={"side": 2}, collate=len)
    assert (found.num_classes, found.for_model, found.test_examples(5)) == (None, {"side": 2}, 3)
    with pytest.raises(DataError, match="for_model and num_classes are both given"):
        Splits.from_datasets(Images(6), Images(3), for_model={}, num_classes=3)


def test_tensors_of_any_form_need_a_row_an_example() -> None:
    batch = {"ids": torch.zeros(4, 3), "mask": (torch.ones(4), 7)}
    found = Splits.from_tensors(batch, batch, for_model={"size": 3})
    assert (found.for_model, found.size_bytes) == ({"size": 3}, 2 * (4 * 3 + 4) * 4)
    assert found.test_examples(2)["mask"][0].shape == (2,)
    with pytest.raises(ValueError, match=r"data: batch\['mask'\] of the test set has shape \(3,\) for 4 examples"):
        Splits.from_tensors(batch, {**batch, "mask": torch.ones(3)})
    with pytest.raises(DataError, match=r"data: \['mask'\] of the train set is an array, and no tensor"):
        Splits.from_tensors({**batch, "mask": torch.ones(4).numpy()}, batch)
    with pytest.raises(DataError, match="the train set has no examples"):
        Splits.from_tensors({"ids": torch.zeros(0, 3)}, batch)


class Numbers(IterableDataset[int]):
    """An iterable data set of another form of examples."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))


def test_an_iterable_data_set_serves_training_or_test() -> None:
    numbers = Numbers(5)
    with pytest.raises(DataError, match="one iterable data set is given for training and test; make two of it"):
        Splits.from_datasets(numbers, numbers, for_model={})
    assert Splits.from_datasets(Numbers(5), Numbers(3), for_model={}).test_examples(9).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("dataset", "found"),
    [
        ([], "train data set is a list without a length .*; give a map-style torch Dataset, or an IterableDataset"),
        (Numbers(0), "the train set has no examples; give it examples"),
        (Numbers(5), r"a train example is a int; return \(input, target\)"),
        (Returning(None, count=0), "without a length or without examples"),
        (Returning(torch.zeros(3)), r"a train example is a Tensor; return \(input, target\)"),
        (Returning(("an image", 3)), r"a train example is \(str, int\); return .*transform=ToTensor\(\)"),
        (Returning((torch.tensor(1.0), 3)), r"a train example is \(Tensor, int\)"),
    ],
)
def test_datasets_of_another_form_are_refused(dataset: Dataset[object], found: str) -> None:
    with pytest.raises(DataError, match=found):
        Splits.from_datasets(dataset, Images(3), num_classes=3)
