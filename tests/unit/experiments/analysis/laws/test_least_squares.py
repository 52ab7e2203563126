"""Fits of positive laws."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from scalestudy.experiments.analysis.laws.least_squares import NoLawError, Parameter, fit, with_interval

SLOPE = Parameter(name="slope", low=0.01, high=10, starts=(1.0,))
POWER = [Parameter(name="level", low=1e-9, high=1e9, starts=(1.0,)), SLOPE]
LINE = [Parameter(name=name, low=0.0, high=math.inf, starts=(1.0,)) for name in ("fixed", "each")]


def level(value=1.0):
    return [Parameter(name="level", low=1e-9, high=1e9, starts=(value,))]


def test_one_level_is_the_geometric_mean_with_the_t_interval_of_logs():
    # logs 0, ln 2, ln 4: mean ln 2, s² = (2 · ln²2)/2, s/√3 = 0.400188, t(0.95, 2) = 2.919986: half 1.168543
    found = fit(lambda values: np.repeat(values, 3), [1.0, 2.0, 4.0], level())
    estimate = found.estimate("level")
    assert estimate.value == pytest.approx(2)
    assert found.noise == pytest.approx(math.log(2))
    assert found.spare == 2
    half = 2.919986 * math.log(2) / math.sqrt(3)
    assert with_interval(2.0, 2 * half, "level", low=1e-9).low == pytest.approx(2 * math.exp(-1.168543), rel=1e-5)
    assert (estimate.low, estimate.high) == (pytest.approx(2 * math.exp(-half)), pytest.approx(2 * math.exp(half)))
    assert not estimate.identified  # e^(2 · 1.17) = 10.4: not even the order of magnitude


def test_repeats_weigh_as_many_places():
    places = [1.0, 1.0, 1.3, 2.0, 2.0, 2.2]
    apart = fit(lambda values: values[0] * np.repeat([1.0, 2.0], 3) ** values[1], places, POWER)
    together = fit(lambda values: values[0] * np.array([1.0, 2.0]) ** values[1], [places[:3], places[3:]], POWER)
    assert together.values == pytest.approx(apart.values, rel=1e-6)
    assert together.covariance == pytest.approx(apart.covariance, rel=1e-4)
    assert (together.noise, together.spare) == (pytest.approx(apart.noise), 4)


def test_a_law_through_all_its_points_has_no_interval():
    found = fit(lambda values: values[0] * np.array([1.0, 2.0]) ** values[1], [3.0, 6.0], POWER)
    estimate = found.estimate("slope")
    assert estimate.value == pytest.approx(1)
    assert (estimate.low, estimate.high, estimate.identified) == (None, None, False)
    assert "spare" in estimate.why


def test_what_no_measurement_depends_on_is_not_identified_and_the_rest_is():
    parameters = [*level(), Parameter(name="ghost", low=1e-9, high=1e9, starts=(1.0,))]
    found = fit(lambda values: np.repeat(values[0], 6), [1.0, 1.1, 0.9, 1.0, 1.05, 0.95], parameters)
    assert found.estimate("level").identified
    assert not found.estimate("ghost").identified


def test_two_that_cannot_be_told_apart():
    found = fit(lambda values: np.repeat(values.sum(), 6), [1.0, 1.1, 0.9, 1.0, 1.05, 0.95], LINE)
    assert not found.estimate("fixed").identified
    assert not found.estimate("each").identified


def test_a_parameter_may_vanish():
    at = np.array([1.0, 2.0, 4.0, 8.0])
    rising = [place * np.exp([0.01, -0.01, 0.0]) for place in 3 * at]
    found = fit(lambda values: values[0] + values[1] * at, rising, LINE)
    fixed = found.estimate("fixed")
    assert fixed.value == pytest.approx(0, abs=0.05)
    assert fixed.low == 0
    assert 0 < fixed.high < 0.3
    assert fixed.identified  # too small to matter at any place
    assert found.estimate("each").value == pytest.approx(3, rel=0.02)
    falling = [3 * at - 0.5]
    assert fit(lambda values: values[0] + values[1] * at, falling[0], LINE).values[0] == 0


def test_misfit_is_told_from_noise():
    at = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    off = np.exp([0.2, -0.2, 0.2, -0.2, 0.2])  # the same for all repeats of a place
    generator = np.random.default_rng(0)
    repeats = [value * np.exp(generator.normal(0, 0.01, 5)) for value in 3 * at * off]
    found = fit(lambda values: values[0] * at ** values[1], repeats, POWER)
    assert found.misfit
    assert found.spare == 3  # places minus parameters, not 25 minus 2
    noisy = [value * np.exp(generator.normal(0, 0.2, 5)) for value in 3 * at]
    assert not fit(lambda values: values[0] * at ** values[1], noisy, POWER).misfit


def test_repeats_that_are_all_alike_reject_no_law_that_they_nearly_lie_on():
    at = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    for off, misfit in ((1.0001, False), (1.01, True)):
        alike = [[value] * 3 for value in 3 * at * np.array([1, off, 1, 1, 1])]
        assert fit(lambda values: values[0] * at ** values[1], alike, POWER).misfit is misfit


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_measurements_that_are_none(bad):
    with pytest.raises(ValueError, match="above 0"):
        fit(lambda values: np.repeat(values, 2), [1.0, bad], level())


def test_too_few_places():
    with pytest.raises(NoLawError, match="1 places can't fix 2"):
        fit(lambda values: values[:1], [1.0], POWER)


@given(st.floats(1e-6, 1e6), st.floats(0.05, 5), st.integers(0, 1000))
def test_a_power_law_is_linear_in_logarithms(scale, slope, seed):
    """SciPy's linear regression of logarithms gives the same parameters and the same interval."""
    at = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
    measured = scale * at**slope * np.exp(np.random.default_rng(seed).normal(0, 0.1, 6))
    parameters = [Parameter(name="level", low=1e-12, high=1e12, starts=(1.0,)), SLOPE]
    found = fit(lambda values: values[0] * at ** values[1], measured, parameters)
    straight = stats.linregress(np.log(at), np.log(measured))
    if 0.02 < straight.slope < 9:
        assert found.values == pytest.approx([math.exp(straight.intercept), straight.slope], rel=1e-4)
        half = found.quantile * straight.stderr
        assert found.quantile * math.sqrt(found.covariance[1, 1]) == pytest.approx(half, rel=1e-3)
        assert found.quantile == pytest.approx(stats.t.ppf(0.95, 4))


@given(st.floats(1e-6, 1e6), st.floats(0, 1e7))
def test_intervals_hold_their_value_and_stay_above_zero(value, half):
    for low in (0.0, value / 1e3):
        found = with_interval(value, half, "x", low=low)
        assert low <= found.low <= value
        assert found.high is None or found.high >= value
        assert found.identified == (not found.why)
