"""The search for the largest batch, and real steps under a real limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalestudy.training.exceptions import is_out_of_memory
from scalestudy.training.loop.memory_fit import RESOLUTION, find_max_batch, largest_that_fits
from tests.support.training.helpers import ALONE, make_config

MIB = 2**20
GIB = 2**30


@given(st.integers(0, 10_000), st.integers(1, 10_000))
def test_the_search_ends_at_the_limit(limit: int, most: int) -> None:
    asked: list[int] = []

    def fits(batch: int) -> bool:
        asked.append(batch)
        return batch <= limit

    found = largest_that_fits(fits, most)
    exact = min(limit, most)
    assert found <= exact <= found + found // RESOLUTION
    assert found == exact or exact >= RESOLUTION
    assert max(asked) <= most
    assert len(asked) == len(set(asked)) <= 2 * most.bit_length() + 1


def test_a_step_that_fits_is_found_under_a_real_limit() -> None:
    """LeNet's activations: some 0.2 MB an example. A little more memory, a larger batch: no try takes up room."""
    less, more = (
        find_max_batch(make_config(model="lenet", model_args={}), ALONE, limit_bytes=mib * MIB, most=2**12)
        for mib in (540, 580)
    )
    assert 256 < less.batch < more.batch < 2**12
    for found in (less, more):
        assert not found.at_least
        assert any(not each.fits for each in found.tries)
        assert found.batch == max(each.batch for each in found.tries if each.fits)
        assert all(each.batch > found.batch for each in found.tries if not each.fits)
    assert less.to_dict()["limit_bytes"] == 540 * MIB


def test_more_may_fit_where_the_search_ends_first() -> None:
    found = find_max_batch(make_config(), ALONE, limit_bytes=2 * GIB, most=8)
    assert (found.batch, found.at_least) == (8, True)
    assert [each.batch for each in found.tries] == [2, 4, 8]


@pytest.mark.parametrize(
    ("limit", "message"), [(None, "on a CPU the limit has to be stated"), (2**26, "too little to load the data set")]
)
def test_a_limit_that_is_none_is_refused(limit: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_max_batch(make_config(), ALONE, limit_bytes=limit)


def test_a_mistake_is_no_lack_of_memory() -> None:
    config = make_config(model="tests.support.training.workloads:RaisingNet", model_args={})
    with pytest.raises(ValueError, match="the user's own mistake"):
        find_max_batch(config, ALONE, limit_bytes=GIB)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried …"), True),
        (RuntimeError("CUDA out of memory. Tried to allocate"), True),
        (RuntimeError("could not create a primitive"), True),
        (RuntimeError("could not create a primitive descriptor for the convolution"), False),
        (RuntimeError("shapes do not fit"), False),
    ],
)
def test_what_counts_as_out_of_memory(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) is expected
