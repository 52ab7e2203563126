"""Order of examples and seeds."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from scalestudy.training.seeding import epoch_order, seed_parameters, seed_steps


@given(st.integers(1, 300), st.integers(0, 2**64), st.integers(1, 100))
def test_the_order_is_a_permutation_and_depends_on_seed_and_epoch_only(samples: int, seed: int, epoch: int) -> None:
    order = epoch_order(samples, seed, epoch)
    torch.rand(3)  # the global generator has no part in it
    assert sorted(order.tolist()) == list(range(samples))
    assert torch.equal(order, epoch_order(samples, seed, epoch))


def test_epochs_and_seeds_differ() -> None:
    orders = [tuple(epoch_order(100, seed, epoch).tolist()) for seed in (0, 1) for epoch in (1, 2)]
    assert len(set(orders)) == 4


def test_parameters_are_drawn_alike_and_steps_differ_by_rank() -> None:
    drawn = []
    for rank in (0, 1):
        seed_parameters(7)
        parameters = torch.rand(4).tolist()
        seed_steps(7, rank, period=1)
        drawn.append((parameters, torch.rand(4).tolist()))
    assert drawn[0][0] == drawn[1][0]
    assert drawn[0][1] != drawn[1][1]
