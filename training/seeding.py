"""Stage 5, training loop: every generator is seeded from the trial, so that a used process trains like a fresh one."""

from __future__ import annotations

import random

import numpy as np
import torch

_PARAMETERS, _ORDER, _STEPS = range(3)  # one independent stream each


def seed_parameters(seed: int) -> None:
    """Before the model is built: the same on every rank, so that all start alike."""
    _seed_generators(_derive(seed, _PARAMETERS))


def seed_steps(seed: int, rank: int) -> None:
    """Before the first step: each rank draws its own numbers (dropout, say)."""
    _seed_generators(_derive(seed, _STEPS, rank))


def epoch_order(samples: int, seed: int, epoch: int) -> torch.Tensor:
    """The epoch's permutation of 0 … samples - 1, (samples,) int64 on the CPU.

    A function of (samples, seed, epoch) only: the same at any world size and on any device.
    """
    generator = torch.Generator().manual_seed(_derive(seed, _ORDER, epoch))
    return torch.randperm(samples, generator=generator)


def _derive(seed: int, *stream: int) -> int:
    """63 well mixed bits (neighbouring seeds give unrelated streams)."""
    return int(np.random.SeedSequence((seed, *stream)).generate_state(1, np.uint64)[0] >> 1)


def _seed_generators(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)  # users' modules draw from the global one
    torch.manual_seed(seed)
