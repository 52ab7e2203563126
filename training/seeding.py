"""The seeds of every generator, taken from the trial, so that a used process trains like a fresh one.

Independent of the world size: initial parameters, order of examples, augmentation, and the random numbers of a user's
data set (both keyed by example; an iterable set's by its pass). Dependent on it: random numbers inside the model, above
all dropout. Each rank draws its masks from its own generator, seeded anew for each (seed, rank, period): repeatable at
one world size, different at another.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

_PARAMETERS, _ORDER, _STEPS, _AUGMENTATION, _EXAMPLES, _PASSES, _LOADING = range(7)  # one independent stream each

Generators = tuple[Any, Any, torch.Tensor]
"""States of the CPU's global generators: Python's, NumPy's and PyTorch's."""


def seed_loading() -> None:
    """Seed before a data set is loaded, for all trials alike: it serves trials of several seeds. CPU alone."""
    _seed_cpu(_derive(0, _LOADING))


def seed_parameters(seed: int) -> None:
    """Seed before the model is built: every rank then draws the same parameters."""
    _seed_generators(_derive(seed, _PARAMETERS))


def seed_steps(seed: int, rank: int, period: int) -> None:
    """Seed before a period's first step. Each rank draws its own numbers: dropout depends on the world size."""
    _seed_generators(_derive(seed, _STEPS, rank, period))


def epoch_order(samples: int, seed: int, epoch: int) -> torch.Tensor:
    """Return the epoch's permutation of 0 … samples - 1, (samples,) int64 on the CPU.

    A function of (samples, seed, epoch) alone: equal at any world size and on any device.
    """
    generator = torch.Generator().manual_seed(_derive(seed, _ORDER, epoch))
    return torch.randperm(samples, generator=generator)


def augmentation_key(seed: int, epoch: int) -> int:
    """Return 63 bits that give, with an example's index, the random numbers of an epoch's augmentation."""
    return _derive(seed, _AUGMENTATION, epoch)


def seed_example(seed: int, epoch: int, example: int) -> None:
    """Seed before a user's data set reads an example (its index): its random numbers then belong to the example.

    Only the CPU's generators are seeded: a GPU's belongs to the model.
    """
    _seed_cpu(_derive(seed, _EXAMPLES, epoch, example))


def seed_pass(seed: int, epoch: int) -> None:
    """Seed before a pass over a user's iterable data set: from 1 in training, 0 in an evaluation. CPU alone."""
    _seed_cpu(_derive(seed, _PASSES, epoch))


@contextmanager
def generators_kept() -> Iterator[None]:
    """Restore the CPU's generators after what is drawn or seeded inside."""
    states = cpu_generators()
    try:
        yield
    finally:
        set_cpu_generators(states)


def cpu_generators() -> Generators:
    """Return the states of the CPU's generators."""
    return random.getstate(), np.random.get_state(legacy=True), torch.get_rng_state()


def set_cpu_generators(states: Generators) -> None:
    """Put the CPU's generators back to these states."""
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


def plain_generators(states: Generators) -> dict[str, Any]:
    """Return the states as data for `pack`."""
    (version, internal, gauss_next), (name, words, position, has_gauss, gauss), torch_state = states
    return {
        "torch": torch_state,
        "numpy": [
            str(name),
            torch.from_numpy(np.asarray(words, dtype=np.int64)),
            int(position),
            int(has_gauss),
            float(gauss),
        ],
        "python": [version, torch.tensor(internal, dtype=torch.int64), gauss_next],
    }


def generators_from(plain: Mapping[str, Any]) -> Generators:
    """Read what `plain_generators` gave."""
    name, words, *rest = plain["numpy"]
    version, internal, gauss_next = plain["python"]
    return (
        (version, tuple(internal.tolist()), gauss_next),
        (name, words.numpy().astype(np.uint32), *rest),
        plain["torch"],
    )


def _derive(seed: int, *stream: int) -> int:
    """Return 63 well mixed bits: neighbouring seeds give unrelated streams."""
    return int(np.random.SeedSequence((seed, *stream)).generate_state(1, np.uint64)[0] >> 1)


def _seed_cpu(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)


def _seed_generators(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)  # users' modules draw from the global one
    torch.manual_seed(seed)
