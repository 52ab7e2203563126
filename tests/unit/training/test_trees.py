"""Batches of any form: mapped, listed, cut and checked."""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from scalestudy.training.trees import arrays, check_rows, count, mapped, part, rows, split, tensors

Pair = namedtuple("Pair", "left right")


@dataclass(frozen=True)
class Batch:
    """A user's dataclass."""

    ids: torch.Tensor
    name: str = "words"


class Encoding(UserDict[str, Any]):
    """As a tokenizer's `BatchEncoding`: a mapping with an attribute of its own."""

    def __init__(self, data: dict[str, Any], language: str = "en") -> None:
        super().__init__(data)
        self.language = language


LINE = torch.arange(6)
TREE = {"pair": Pair(LINE, (LINE + 1, [LINE + 2])), "batch": Batch(LINE), "encoded": Encoding({"ids": LINE}), "n": 6}


def test_the_form_and_types_stay() -> None:
    found = mapped(lambda tensor: tensor * 2, TREE)
    assert torch.equal(found["pair"].right[1][0], 2 * (LINE + 2))
    assert (type(found["pair"]), type(found["pair"].right[1]), found["n"]) == (Pair, list, 6)
    assert (found["batch"].name, torch.equal(found["batch"].ids, 2 * LINE)) == ("words", True)
    assert (type(found["encoded"]), found["encoded"].language) == (Encoding, "en")
    assert torch.equal(found["encoded"]["ids"], 2 * LINE)
    assert torch.equal(TREE["encoded"]["ids"], LINE), "the original is as it was"


class Strict(OrderedDict[str, Any]):
    """As a `ModelOutput`: it takes items, and refuses `update`."""

    def update(self, *values: Any, **named: Any) -> None:
        raise AttributeError("you can not use update")


def test_a_mapping_that_refuses_update_is_mapped() -> None:
    tree = Strict()
    tree["logits"] = LINE
    found = mapped(lambda tensor: tensor + 1, tree)
    assert (type(found), found["logits"].tolist(), tree["logits"].tolist()) == (
        Strict,
        [1, 2, 3, 4, 5, 6],
        LINE.tolist(),
    )


def test_arrays_have_places_too() -> None:
    assert list(arrays({"ids": LINE, "mask": [np.zeros(3), "text", 2.0]})) == ["['mask'][0]"]


def test_tensors_have_places() -> None:
    places = [place for place, _ in tensors(TREE)]
    assert places == ["['pair'][0]", "['pair'][1][0]", "['pair'][1][1][0]", "['batch'].ids", "['encoded']['ids']"]


def test_pieces_are_the_whole() -> None:
    first, second, empty = split(TREE, [2, 4, 0])
    assert (count(first), count(second), count(empty)) == (2, 4, 0)
    assert torch.equal(torch.cat([first["batch"].ids, second["batch"].ids]), LINE)
    assert split(TREE, [6])[0] is TREE
    assert torch.equal(part(TREE, 1, 3)["pair"].left, LINE[1:3])
    assert torch.equal(rows(TREE, torch.tensor([5, 0]))["encoded"]["ids"], torch.tensor([5, 0]))


@pytest.mark.parametrize(
    ("batch", "found"),
    [
        (
            {"ids": torch.zeros(4, 2), "mask": torch.zeros(3)},
            r"data: batch\['mask'\] of the train set has shape \(3,\)",
        ),
        ((torch.zeros(4), torch.tensor(1.0)), r"batch\[1\] of the train set has shape \(\) for 4 examples"),
        ({"n": 3}, "a train batch has no tensors"),
        (torch.tensor(1.0), r"batch of the train set has shape \(\)"),
    ],
)
def test_every_tensor_needs_a_row_an_example(batch: Any, found: str) -> None:
    with pytest.raises(ValueError, match=found):
        check_rows(batch, 4, "train")
    with pytest.raises(ValueError, match="no tensors"):
        count({})
    with pytest.raises(ValueError, match=r"batch\['n'\] is a single number"):
        count({"n": torch.tensor(1)})
