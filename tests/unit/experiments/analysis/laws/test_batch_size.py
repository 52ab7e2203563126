"""The law of steps over batch sizes."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalestudy.experiments.analysis.laws.batch_size import fit_batch_law, regime_of
from scalestudy.experiments.analysis.laws.least_squares import NoLawError

SIZES = np.array([32.0, 64, 128, 256, 512, 1024])


def steps(s_min, b_crit, sizes=SIZES):
    return s_min * (1 + b_crit / sizes)


def test_three_points_on_the_law():
    # 100 · (1 + 50/25) = 300, 100 · (1 + 50/50) = 200, 100 · (1 + 50/100) = 150; E_min = 100 · 50
    law = fit_batch_law([25, 50, 100], [300, 200, 150])
    assert law.s_min.value == pytest.approx(100)
    assert law.b_crit.value == pytest.approx(50)
    assert law.e_min.value == pytest.approx(5000)
    assert law.steps(200) == pytest.approx(125)  # 100 · (1 + 50/200)
    assert [law.regime(size) for size in (12, 50, 201)] == ["perfect scaling", "diminishing returns", "flat"]


def test_a_t_interval_with_one_degree_of_freedom():
    # residuals r of log S, J = ∂ log S / ∂ log (S_min, E_min) = the shares that the two terms have in S
    sizes, measured = np.array([25.0, 50, 100]), np.array([306.0, 200, 150])
    law = fit_batch_law(sizes, measured)
    s_min, e_min = law.s_min.value, law.e_min.value
    whole = s_min + e_min / sizes
    slopes = np.stack([s_min / whole, e_min / sizes / whole], axis=1)
    residuals = np.log(measured / whole)
    error = math.sqrt(np.linalg.inv(slopes.T @ slopes)[0, 0] * (residuals @ residuals))
    half = 6.3138 * error  # t at 95 %, one degree of freedom
    assert law.s_min.low == pytest.approx(s_min * math.exp(-half), rel=1e-3)
    assert law.s_min.high == pytest.approx(s_min * math.exp(half), rel=1e-3)


@given(st.floats(1, 1e5), st.floats(40, 800), st.integers(0, 1000))
def test_units_do_not_matter(scale, b_crit, seed):
    noise = np.exp(0.03 * np.random.default_rng(seed).standard_normal(len(SIZES)))
    law = fit_batch_law(SIZES, steps(100, b_crit) * noise)
    scaled = fit_batch_law(SIZES * 8, steps(100, b_crit) * noise * scale)
    assert scaled.s_min.value == pytest.approx(law.s_min.value * scale, rel=1e-4)
    assert scaled.b_crit.value == pytest.approx(law.b_crit.value * 8, rel=1e-4)
    assert scaled.b_crit.low == pytest.approx(law.b_crit.low * 8, rel=1e-3)


@given(st.floats(10, 1e4), st.floats(20, 2000), st.integers(0, 1000))
def test_what_holds_for_every_law(s_min, b_crit, seed):
    noise = np.exp(0.05 * np.random.default_rng(seed).standard_normal(len(SIZES)))
    law = fit_batch_law(SIZES, steps(s_min, b_crit) * noise)
    taken = [law.steps(size) for size in SIZES]
    assert sorted(taken, reverse=True) == taken
    examples = [size * law.steps(size) for size in SIZES]
    assert sorted(examples) == examples
    if law.s_min.value:
        assert law.b_crit.value == pytest.approx(law.e_min.value / law.s_min.value)
    for estimate in (law.s_min, law.e_min, law.b_crit):
        assert estimate.low is None or estimate.low <= estimate.value
        assert estimate.high is None or estimate.value <= estimate.high
        assert estimate.identified or estimate.why
    order = ["perfect scaling", "diminishing returns", "flat"]
    regimes = [order.index(regime) for size in SIZES if (regime := law.regime(size))]
    assert sorted(regimes) == regimes


def test_perfect_scaling_all_the_way_leaves_the_fewest_steps_open():
    law = fit_batch_law(SIZES, 1e5 / SIZES * np.array([1.02, 0.97, 1.03, 1.0, 1.01, 0.98]))
    assert not law.s_min.identified
    assert law.s_min.low == 0
    assert law.e_min.identified
    assert law.e_min.value == pytest.approx(1e5, rel=0.03)
    assert not law.b_crit.identified
    assert law.b_crit.high is None
    assert law.b_crit.low > 4 * max(SIZES)
    assert {law.regime(size) for size in SIZES} == {"perfect scaling"}


def test_steps_that_do_not_fall_leave_the_fewest_examples_open():
    law = fit_batch_law(SIZES, 400 * np.array([0.99, 1.02, 1.0, 0.98, 1.01, 1.02]))
    assert law.s_min.identified
    assert not law.e_min.identified
    assert not law.b_crit.identified
    assert law.b_crit.high < min(SIZES) / 4
    assert {law.regime(size) for size in SIZES} == {"flat"}


def test_a_regime_is_not_told_where_it_hangs_on_what_is_not_identified():
    law = fit_batch_law([64, 128, 256], [1000, 800, 300])
    assert not law.b_crit.identified
    assert law.regime(128) is None


@given(st.floats(1, 1e6), st.floats(1e-3, 1e6))
def test_regimes_in_order(size, b_crit):
    regime = regime_of(size, b_crit)
    assert (regime == "flat") == (size >= 4 * b_crit)
    assert (regime == "perfect scaling") == (size <= b_crit / 4)
    assert regime_of(size, math.inf) == "perfect scaling"
    assert regime_of(size, 0.0) == "flat"


def test_what_makes_no_law():
    with pytest.raises(NoLawError, match="2 batch sizes"):
        fit_batch_law([32, 64], [10, 5])
    with pytest.raises(ValueError, match="there once"):
        fit_batch_law([32, 32, 64], [10, 10, 5])
    with pytest.raises(ValueError, match="above 0"):
        fit_batch_law([0, 32, 64], [10, 10, 5])
    with pytest.raises(ValueError, match="above 0"):
        fit_batch_law([16, 32, 64], [10, math.inf, 5])
