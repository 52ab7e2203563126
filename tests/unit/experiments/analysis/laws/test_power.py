"""Power laws through values known to within a range; ratios of means."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalestudy.experiments.analysis.laws.least_squares import NoLawError
from scalestudy.experiments.analysis.laws.power import fit_power, ratio_of_means

HALVED = math.log(2)


def test_an_interval_from_the_grid():
    # on a line of slope 1 there is no scatter; each value lies anywhere in a range of log 2. With x − mean = −2, −1, 0,
    # 1, 2 log 2, their squares 10 log² 2: variance of the slope = (log² 2 / 12) / (10 · log² 2) = 1/120;
    # 1.6449 / √120 = 0.1502
    law = fit_power([32, 64, 128, 256, 512], [0.05, 0.1, 0.2, 0.4, 0.8], [HALVED] * 5)
    assert law.exponent.value == pytest.approx(1)
    assert law.exponent.low == pytest.approx(0.8498, abs=1e-4)
    assert law.exponent.high == pytest.approx(1.1502, abs=1e-4)
    assert law.by_resolution
    assert law.exponent.identified
    assert law.value(1024) == pytest.approx(1.6)


def test_of_three_values_the_outer_two_may_both_be_off():
    # by log 2 / 2 either way over a distance of 2 log 2
    law = fit_power([64, 128, 256], [0.1, 0.2, 0.4], [HALVED] * 3)
    assert (law.exponent.low, law.exponent.high) == pytest.approx((0.5, 1.5))
    assert law.exponent.identified


def test_an_interval_from_scatter():
    # in units of log 2: y = 0, 1, 0 over x = −1, 0, 1; slope 0, residuals −1/3, 2/3, −1/3, their squares 2/3, one
    # degree of freedom; error √(2/3 / 2) = 0.5774, times 6.3138 = 3.645
    law = fit_power([1, 2, 4], [1, 2, 1], [0, 0, 0])
    assert law.exponent.value == pytest.approx(0)
    assert (law.exponent.low, law.exponent.high) == pytest.approx((-3.645, 3.645), abs=1e-3)
    assert not law.by_resolution
    assert not law.exponent.identified
    assert "-3.65 to 3.65" in law.exponent.why


@given(st.floats(-2, 2), st.floats(1e-4, 10), st.floats(0.1, 2), st.integers(3, 8))
def test_a_line_is_found_and_a_coarser_grid_says_less(exponent, factor, width, count):
    x = 32.0 * 2 ** np.arange(count)
    fine = fit_power(x, factor * x**exponent, [width] * count)
    coarse = fit_power(x, factor * x**exponent, [2 * width] * count)
    assert fine.exponent.value == pytest.approx(exponent, abs=1e-8)
    assert fine.factor == pytest.approx(factor, rel=1e-6)
    assert coarse.exponent.high - coarse.exponent.low == pytest.approx(2 * (fine.exponent.high - fine.exponent.low))


@given(st.lists(st.floats(0.01, 1), min_size=4, max_size=4), st.floats(0.1, 10), st.floats(0.1, 10))
def test_units_do_not_matter(y, across, along):
    x = np.array([1.0, 2, 4, 8])
    law, scaled = fit_power(x, y, [0.5] * 4), fit_power(x * across, np.array(y) * along, [0.5] * 4)
    assert scaled.exponent.value == pytest.approx(law.exponent.value, abs=1e-9)
    assert scaled.exponent.low == pytest.approx(law.exponent.low, abs=1e-9)


def test_what_makes_no_law():
    with pytest.raises(NoLawError, match="2 points"):
        fit_power([1, 2], [1, 2], [0, 0])
    with pytest.raises(NoLawError, match="the same"):
        fit_power([2, 2, 2], [1, 2, 3], [0, 0, 0])
    with pytest.raises(ValueError, match="above 0"):
        fit_power([1, 2, 4], [1, 2, 0], [0, 0, 0])


# --- ratios of means --------------------------------------------------------------------------------------------------


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
