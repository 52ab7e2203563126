"""What is known of a data set after two readings: of one that is the same, grows, or is random in some way."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from scalestudy.training.config import TrainConfig
from scalestudy.training.data import Splits
from scalestudy.training.data.facts import FIRST, facts_of, read_twice

HERE = "tests.unit.training.data.test_facts"


def splits(examples=60, classes=3, shift=0.0):
    inputs = torch.arange(examples * 4, dtype=torch.float32).view(examples, 1, 2, 2) + shift
    targets = torch.arange(examples) % classes
    return Splits(inputs, targets, inputs[:12], targets[:12], num_classes=classes)


class Augmented(Dataset):
    """Adds noise to each example: from one of the process's generators, or from one of its own."""

    def __init__(self, noise, examples=60):
        self.noise, self.examples = noise, examples

    def __len__(self):
        return self.examples

    def __getitem__(self, index):
        return torch.full((1, 2, 2), float(index)) + self.noise(), index % 3


class Numbers(IterableDataset):
    def __iter__(self):
        return ((torch.full((2,), float(number)), number) for number in range(20))


def augmented(noise, examples=60):
    return Splits.from_datasets(Augmented(noise, examples), Augmented(noise, 12), num_classes=3)


OWN_GENERATOR = np.random.default_rng()
NOISES = {
    "torch": lambda: torch.rand(()),
    "numpy": lambda: float(np.random.rand()),
    "random": random.random,
    "own": lambda: float(OWN_GENERATOR.random()),
}


def load(root, kind="same", examples=60):
    """A user's data set, as a config names it."""
    if kind == "same":
        return splits(examples)
    if kind == "shuffled":
        mixed = splits(examples)
        order = random.SystemRandom().sample(range(examples), examples)
        return replace(mixed, train_inputs=mixed.train_inputs[order], train_targets=mixed.train_targets[order])
    if kind == "any form":
        train = {"text": torch.arange(examples), "pair": (torch.zeros(examples, 2), ["a"])}
        return Splits.from_tensors(train, train)
    if kind == "stream":
        return Splits.from_datasets(Numbers(), Numbers(), num_classes=20)
    return augmented(NOISES[kind], examples)


def read(kind="same", **arguments):
    return read_twice(
        TrainConfig(data=f"{HERE}:load", data_args={"kind": kind, **arguments}, batch_size=8, learning_rate=0.1)
    )


def known(facts):
    return {name for name in ("train", "test", "formats", "shapes", "examples") if getattr(facts, name) is not None}


ALL = {"train", "test", "formats", "shapes", "examples"}


@pytest.mark.parametrize(
    ("kind", "known_of_it"),
    [
        ("same", ALL),
        ("any form", ALL),
        ("stream", ALL - {"train", "test"}),
        ("torch", ALL),
        ("numpy", ALL),
        ("random", ALL),
        ("own", ALL - {"examples"}),
        ("shuffled", ALL - {"examples"}),
    ],
)
def test_what_differs_from_reading_to_reading_is_left_out_and_the_rest_is_the_same_each_time(kind, known_of_it):
    facts = read(kind)
    assert known(facts) == known_of_it
    torch.rand(3), random.random(), np.random.rand()
    assert read(kind) == facts


def test_a_data_set_that_grew():
    for kind in ("same", "own"):
        assert read(kind, examples=80).changes_since(read(kind)) == ["60 -> 80 examples"]


@pytest.mark.parametrize("place", [0, FIRST - 1, -8])
def test_other_values_of_one_of_the_first_examples_or_of_one_far_behind(place):
    before, changed = splits(), splits()
    changed.train_inputs[place] += 1
    assert facts_of(changed).changes_since(facts_of(before)) == ["other examples"]


def test_another_form():
    before = facts_of(splits())
    other = splits()
    wider = replace(other, train_inputs=torch.zeros(60, 1, 3, 3), test_inputs=torch.zeros(12, 1, 3, 3))
    numbers = replace(other, train_targets=torch.rand(60, 3), test_targets=torch.rand(12, 3))
    for changed in (wider, numbers):
        assert facts_of(changed).changes_since(before) == ["examples of another form"]


def test_text_beside_tensors_counts_and_other_objects_by_their_type():
    def of(extra):
        train = {"ids": torch.arange(6), "extra": extra}
        return facts_of(Splits.from_tensors(train, train))

    assert of("a") != of("b")
    assert of(object()) == of(object())
    assert of(torch.zeros(6, dtype=torch.bfloat16)) != of(torch.ones(6, dtype=torch.bfloat16))
