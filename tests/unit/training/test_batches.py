"""The arithmetic of batches: exact numbers, and properties over random inputs."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scalestudy.training.batches import (
    batch_bounds,
    even_weights,
    fewest_in_a_shard,
    micro_batch_sizes,
    shard_bounds,
    shard_sizes,
    steps_per_epoch,
)

weight_lists = st.lists(st.floats(0, 1e300, allow_subnormal=False), min_size=1, max_size=9).filter(any)


@pytest.mark.parametrize(
    ("batch", "weights", "expected"),
    [
        (256, (1, 1), (128, 128)),
        (250, (1, 1, 1, 1), (63, 63, 62, 62)),  # 62.5 each: the lower ranks round up
        (3, (1, 1, 1, 1), (1, 1, 1, 0)),
        (10, (3, 1), (8, 2)),  # 7.5 and 2.5: equal remainders, rank 0 first
        (100, (0.5, 0.3, 0.2, 0), (50, 30, 20, 0)),
        (7, (0, 2, 1), (0, 5, 2)),  # 4.67 and 2.33
        (0, (1, 1), (0, 0)),
        (4, (1e308, 1e308), (2, 2)),
    ],
)
def test_shard_sizes(batch: int, weights: tuple[float, ...], expected: tuple[int, ...]) -> None:
    assert shard_sizes(batch, weights) == expected


@pytest.mark.parametrize(
    ("samples", "batch", "weights", "expected"),
    [
        (64, 32, (1, 1), 16),
        (65, 32, (1, 1), 0),  # the last batch has one example
        (69, 32, (1, 1), 2),  # 5 = 3 + 2
        (64, 32, (3, 1), 8),
        (64, 32, (1, 0), 0),
        (20, 32, (1, 1), 10),  # one batch, smaller
    ],
)
def test_the_smallest_shard_of_an_epoch(samples: int, batch: int, weights: tuple[float, ...], expected: int) -> None:
    assert fewest_in_a_shard(samples, batch, weights) == expected


@pytest.mark.parametrize("weights", [(0, 0), (), (-1, 2), (math.nan, 1), (math.inf, 1)])
def test_impossible_weights_are_refused(weights: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="shards: weights"):
        shard_sizes(8, weights)


@given(st.integers(0, 10**7), weight_lists)
def test_shards_cover_the_batch_in_proportion(batch: int, weights: list[float]) -> None:
    sizes = shard_sizes(batch, weights)
    largest = max(weights)
    total = math.fsum(weight / largest for weight in weights)
    assert sum(sizes) == batch
    for size, weight in zip(sizes, weights, strict=True):
        share = batch * (weight / largest) / total
        assert math.floor(share) <= size <= math.floor(share) + 1


@given(st.integers(0, 10**6), st.integers(1, 64))
def test_even_shards_differ_by_at_most_one(batch: int, world_size: int) -> None:
    sizes = shard_sizes(batch, even_weights(world_size))
    assert max(sizes) - min(sizes) <= 1
    assert sorted(sizes, reverse=True) == list(sizes)


@given(st.integers(1, 500), st.integers(1, 100), weight_lists)
def test_every_example_is_trained_exactly_once_an_epoch(samples: int, batch_size: int, weights: list[float]) -> None:
    seen: list[int] = []
    for step in range(steps_per_epoch(samples, batch_size)):
        first, end = batch_bounds(samples, batch_size, step)
        assert 0 < end - first <= batch_size
        for rank in range(len(weights)):
            start, stop = shard_bounds(end - first, weights, rank)
            seen.extend(range(first + start, first + stop))
    assert seen == list(range(samples))


@given(st.integers(1, 10**6), st.integers(1, 10**5), st.integers(1, 100))
def test_only_the_last_batch_is_smaller(samples: int, batch_size: int, step: int) -> None:
    steps = steps_per_epoch(samples, batch_size)
    assume(step < steps)
    first, end = batch_bounds(samples, batch_size, step)
    assert (end - first == batch_size) or step == steps - 1


def test_steps_per_epoch() -> None:
    assert steps_per_epoch(60000, 256) == 235  # 234 whole batches and one of 96
    assert batch_bounds(60000, 256, 234) == (59904, 60000)
    assert steps_per_epoch(512, 256) == 2


@pytest.mark.parametrize(
    ("shard", "parts", "keep_empty", "sizes"),
    [
        (10, 3, False, (4, 3, 3)),
        (2, 3, False, (1, 1)),
        (0, 3, False, (0,)),
        (0, 3, True, (0, 0, 0)),
        (2, 3, True, (1, 1, 0)),
        (5, 1, False, (5,)),
        (0, 1, False, (0,)),
        (0, 1, True, (0,)),
    ],
)
def test_micro_batches(shard: int, parts: int, keep_empty: bool, sizes: tuple[int, ...]) -> None:
    assert micro_batch_sizes(shard, parts, keep_empty=keep_empty) == sizes
