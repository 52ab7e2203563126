"""Every generator is seeded from the trial, so that a used process trains like a fresh one.

What does not depend on the world size: initial parameters, order of examples, augmentation and the random numbers that
a user's data set draws (both keyed by example). What does: numbers drawn inside the model, dropout above all. Its mask
comes from the rank's own generator, seeded anew for each (seed, rank, epoch): repeatable at one world size, and
another draw at another.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

_PARAMETERS, _ORDER, _STEPS, _AUGMENTATION, _EXAMPLES = range(5)  # one independent stream each


def seed_parameters(seed: int) -> None:
    """Before the model is built: the same on every rank, so that all start alike."""
    _seed_generators(_derive(seed, _PARAMETERS))


def seed_steps(seed: int, rank: int, epoch: int) -> None:
    """Before an epoch's first step: each rank draws its own numbers, so that dropout depends on the world size."""
    _seed_generators(_derive(seed, _STEPS, rank, epoch))


def epoch_order(samples: int, seed: int, epoch: int) -> torch.Tensor:
    """The epoch's permutation of 0 … samples - 1, (samples,) int64 on the CPU.

    A function of (samples, seed, epoch) only: the same at any world size and on any device.
    """
    generator = torch.Generator().manual_seed(_derive(seed, _ORDER, epoch))
    return torch.randperm(samples, generator=generator)


def augmentation_key(seed: int, epoch: int) -> int:
    """What the random numbers of an epoch's augmentation are made from, with each example's index; 63 bits."""
    return _derive(seed, _AUGMENTATION, epoch)


def seed_example(seed: int, epoch: int, example: int) -> None:
    """Before a user's data set reads an example (its index), so that its random numbers belong to the example.

    The CPU's generators only: a GPU's belongs to the model.
    """
    derived = _derive(seed, _EXAMPLES, epoch, example)
    random.seed(derived)
    np.random.seed(derived % 2**32)
    torch.default_generator.manual_seed(derived)


@contextmanager
def generators_kept() -> Iterator[None]:
    """What is drawn or seeded inside leaves the CPU's generators as they were."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


def _derive(seed: int, *stream: int) -> int:
    """63 well mixed bits (neighbouring seeds give unrelated streams)."""
    return int(np.random.SeedSequence((seed, *stream)).generate_state(1, np.uint64)[0] >> 1)


def _seed_generators(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)  # users' modules draw from the global one
    torch.manual_seed(seed)
