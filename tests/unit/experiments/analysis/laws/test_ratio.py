"""The ratio of two means, and Fieller's interval."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalestudy.experiments.analysis.laws.ratio import ratio_of_means


def test_denominators_without_scatter_give_the_t_interval():
    # mean 3, standard deviation √2, of the mean √2/√2 = 1; t with one degree of freedom at 95 % is 6.3138
    found = ratio_of_means([2, 4], [1, 1])
    assert found.value == 3
    assert (found.low, found.high) == pytest.approx((0, 9.3138), abs=1e-4)  # 3 − 6.3138 lies below zero


def test_fieller():
    # a: mean 5, b: mean 2. With R at an end, mean(a − R·b) is t standard errors from 0
    above, below = np.array([4.0, 5, 6, 5, 5]), np.array([2.1, 1.9, 2.0, 2.2, 1.8])
    found = ratio_of_means(above, below)
    assert found.value == 2.5
    for end in (found.low, found.high):
        differences = above - end * below
        error = differences.std(ddof=1) / np.sqrt(5)
        assert abs(differences.mean()) == pytest.approx(2.1318 * error, rel=1e-4)  # t at 95 %, 4 degrees of freedom


@given(st.lists(st.tuples(st.floats(0.5, 2), st.floats(0.5, 2)), min_size=2, max_size=20), st.floats(0.01, 100))
def test_the_interval_holds_the_ratio_and_scales_with_it(pairs, factor):
    above, below = np.array(pairs).T
    found, scaled = ratio_of_means(above, below), ratio_of_means(above * factor, below)
    assert found.value == pytest.approx(above.mean() / below.mean())
    assert scaled.value == pytest.approx(found.value * factor)
    if found.identified:
        assert 0 <= found.low <= found.value * (1 + 1e-9)
        assert found.value <= found.high * (1 + 1e-9)


def test_means_and_not_the_mean_of_ratios():
    # 2/4 and 2/1: (2 + 2)/(4 + 1) = 0.8, where the mean of ratios is (0.5 + 2)/2 = 1.25
    assert ratio_of_means([2, 2], [4, 1]).value == pytest.approx(0.8)


def test_what_can_not_be_told():
    assert ratio_of_means([], []) is None
    assert ratio_of_means([1, 2], [1, -1.5]) is None
    assert ratio_of_means([-1, 0.5], [1, 1]) is None
    alone = ratio_of_means([3], [2])
    assert (alone.value, alone.low, alone.identified) == (1.5, None, False)
    unsure = ratio_of_means([1, 2, 1], [3, -1, 0.1])
    assert (unsure.high, unsure.identified) == (None, False)
    assert "whether the denominator is zero" in unsure.why
