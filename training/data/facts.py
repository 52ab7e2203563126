"""What a data set shows of itself: its size, and the form and values of a few examples."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch.utils.data import default_collate

from scalestudy.training.config import TrainConfig
from scalestudy.training.data.loading import AnySplits, make_splits
from scalestudy.training.data.readers import KeyedExamples
from scalestudy.training.data.splits import DatasetSplits, evenly
from scalestudy.training.data.streams import Passes
from scalestudy.training.fingerprint import DataFacts
from scalestudy.training.own_code import short_hash
from scalestudy.training.trees import Tree, count, form, mapped, tensors

FIRST = 8
"""Examples that are read from the beginning of a set, and as many from all over it."""
PLAIN = (str, bytes, int, float, bool, type(None))
"""Types of values beside tensors whose text is the same in every process."""


def read_twice(config: TrainConfig) -> DataFacts:
    """Return what two openings of the config's data set have in common. Exceptions of the user's code pass through.

    So what differs each time, such as a random order, does not count. Random numbers that reading an example takes from
    the process's generators are the same each time, as in a training.
    """
    first = facts_of(make_splits(config))
    return first.agreed(facts_of(make_splits(config)))


def facts_of(splits: AnySplits) -> DataFacts:
    """Return the facts of an opened data set."""
    (train, train_batch), (test, test_batch) = (_looked_at(splits, each) for each in (splits.train, splits.test))
    leaves = [*form(train_batch), *form(test_batch)]
    others = [(place, leaf if isinstance(leaf, PLAIN) else type(leaf)) for place, leaf in leaves if not _is_form(leaf)]
    return DataFacts(
        train=train,
        test=test,
        formats=_hash([(place, leaf[1]) for place, leaf in leaves if _is_form(leaf)]),
        shapes=_hash([(place, tuple(leaf[0][1:])) for place, leaf in leaves if _is_form(leaf)]),
        examples=_hash([others, _values(train_batch), _values(test_batch)]),
    )


def _looked_at(splits: AnySplits, examples: Any) -> tuple[int | None, Tree]:
    """Return the size of one of the two sets, None for a stream, and some of its examples as a batch."""
    if not isinstance(splits, DatasetSplits):
        size = count(examples)
        places = _places(size)
        return size, mapped(lambda tensor: tensor[places], examples)
    collate = splits.collate or default_collate
    if isinstance(examples, Passes):
        return None, collate(examples.first(FIRST))
    size = len(examples)
    return size, collate(KeyedExamples(examples, seed=0, epoch=0).read(_places(size)))


def _places(size: int) -> list[int]:
    return list(dict.fromkeys([*range(min(FIRST, size)), *evenly(size, FIRST)]))


def _is_form(leaf: Any) -> bool:
    """Whether a leaf of `form` stands for a tensor."""
    return isinstance(leaf, tuple)


def _values(batch: Tree) -> list[str]:
    """Return a hash of each tensor's bytes."""
    plain = (tensor.detach().cpu().contiguous().flatten().view(torch.uint8) for _, tensor in tensors(batch))
    return [hashlib.sha256(tensor.numpy().tobytes()).hexdigest() for tensor in plain]


def _hash(parts: list[Any]) -> str:
    return short_hash(repr(parts).encode("utf-8", "backslashreplace"))
