"""The arithmetic of batches and shards: pure functions (docs/formulas.md §1).

A global batch of B examples is a slice of the epoch's permutation. Worker i trains the i-th piece of it, b_i examples,
Σ b_i = B. Nothing is dropped or padded: the last batch of an epoch may be smaller, and b_i may be 0.

Weights: an update follows the mean over its own batch, so each example weighs 1/B, with the B of that batch. Every
worker multiplies the sum of its losses by 1/B before backward (`GradientSync.factor`), and gradients are summed; so
neither shards of unequal size nor micro-batches need a weight. An epoch's smaller last batch makes a whole update, in
which each of its examples weighs more. The losses that an epoch reports are means over examples, where each counts
once. A user's task gives weights in place of B, which are known only after the sum (`GradientSync.divide_by_weight`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from scalestudy.training.exceptions import InputError

SUM_TOLERANCE = 0.01  # weights of at most 1 are shares, which sum to 1 apart from rounding


def steps_per_epoch(samples: int, batch_size: int) -> int:
    """Return ⌈samples ÷ batch_size⌉: the last, smaller batch is kept."""
    return math.ceil(samples / batch_size)


def batch_bounds(samples: int, batch_size: int, step: int) -> tuple[int, int]:
    """Return first and one-past-last position, in the epoch's permutation, of the global batch of `step` (from 0)."""
    start = step * batch_size
    return start, min(start + batch_size, samples)


def shard_sizes(batch: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Split `batch` examples over workers in proportion to their weights (largest remainder; ties to lower ranks).

    The sizes sum to `batch`. Each is its exact share, rounded down or up, so equal weights give sizes that differ by at
    most one. Raises ValueError unless the weights are finite, at least 0 and not all 0.
    """
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights) or not any(weights):
        raise InputError(f"shards: weights {list(weights)} must be finite, at least 0 and not all 0", "correct them")
    largest = max(weights)
    relative = [weight / largest for weight in weights]  # a sum of huge weights could overflow
    total = math.fsum(relative)
    shares = [batch * weight / total for weight in relative]
    sizes = [math.floor(share) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda rank: sizes[rank] - shares[rank])
    for rank in by_remainder[: batch - sum(sizes)]:
        sizes[rank] += 1
    return tuple(sizes)


def wrong_sum(weights: Sequence[float]) -> float | None:
    """Return the sum of weights that look like shares of 1 (fractions, none above 1) but do not sum to it; else None.

    Such a list is most often a slip, which proportions would hide.
    """
    total = math.fsum(weights)
    are_shares = max(weights) <= 1 and any(0 < weight < 1 for weight in weights)
    return total if are_shares and abs(total - 1) > SUM_TOLERANCE else None


def shard_bounds(batch: int, weights: Sequence[float], rank: int) -> tuple[int, int]:
    """Return first and one-past-last position, in the global batch, of this rank's shard; equal if it has none."""
    ends = (0, *itertools.accumulate(shard_sizes(batch, weights)))
    return ends[rank], ends[rank + 1]


def fewest_in_a_shard(samples: int, batch_size: int, weights: Sequence[float]) -> int:
    """Return the examples of an epoch's smallest shard, of a whole batch or of the last, smaller one."""
    last = steps_per_epoch(samples, batch_size) - 1
    batches = {end - start for start, end in (batch_bounds(samples, batch_size, step) for step in (0, last))}
    return min(min(shard_sizes(batch, weights)) for batch in batches)


def even_weights(world_size: int) -> tuple[float, ...]:
    """Return the same weight for each worker."""
    return (1.0,) * world_size


def micro_batch_sizes(shard: int, parts: int, *, keep_empty: bool = False) -> tuple[int, ...]:
    """Split a shard into at most `parts` micro-batches, as evenly as possible, the larger ones first.

    An empty shard gives one empty micro-batch. `keep_empty`: exactly `parts`, so that all ranks make the same number.
    """
    if parts == 1:
        return (shard,)  # most steps
    sizes = shard_sizes(shard, even_weights(parts))
    filled = tuple(size for size in sizes if size)
    return sizes if keep_empty else filled or (0,)
