"""What draws say of the law of steps over batch sizes."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from scalestudy.experiments.analysis.laws.batch_size import BatchLaw, regime_of, steps_of_law
from scalestudy.experiments.analysis.laws.estimate import ENDS
from scalestudy.experiments.analysis.laws.steps_to_target import steps_to_target
from tests.support.arrivals import arrived

SIZES = np.array([32.0, 64, 128, 256, 512, 1024])
RATES = np.array([0.05, 0.1, 0.2, 0.4, 0.8])


def steps(s_min, b_crit, sizes=SIZES):
    return s_min * (1 + b_crit / sizes)


def law_of(
    taken, sizes=SIZES, rates=RATES, *, curvature=0.15, exponent=0.5, scatter=0.01, scale=1.0, deviation=0.0, seed=0
):
    """The law of trainings that take so many steps at the best rate, 0.2·(B/128)^exponent; three a batch size and rate.

    scale: of the batch sizes' unit, at the same rates. deviation: of the cells about the law, seed: of both scatters.
    """
    generator = np.random.default_rng(seed)
    best = 0.2 * (sizes / 128) ** exponent
    places = [(size * scale, rate, 1.0) for size in sizes for rate in rates]
    logs = np.log(taken)[:, None] + curvature * np.log2(rates / best[:, None]) ** 2
    cells = np.repeat(np.arange(len(places)), 3)
    values = logs.ravel()[cells] + scatter * generator.standard_normal(len(cells))
    values += deviation * generator.standard_normal(len(places))[cells]
    return BatchLaw.of(steps_to_target(np.array(places), arrived(values, cells), np.random.default_rng(0)))


def test_the_constants_are_medians_of_the_draws_and_make_the_steps():
    law = law_of(steps(100, 200))
    # S(200) = 100 · (1 + 200/200) = 200; 20 % more than perfect scaling at 200/5; best rate at 512: 0.2 · √4
    for estimate, truth in (
        (law.s_min, 100),
        (law.b_crit, 200),
        (law.e_min, 20_000),
        (law.near_perfect, 40),
        (law.steps(200), 200),
        (law.exponent, 0.5),
        (law.best_rate(512), 0.4),
    ):
        assert estimate.identified
        assert estimate.low < truth < estimate.high
        assert estimate.value == pytest.approx(truth, rel=0.03)
    assert law.s_min.value == pytest.approx(math.exp(np.median(law.log_s_min)))
    assert law.identified
    assert law.steps(300).value == steps_of_law(law.s_min.value, law.b_crit.value, 300)
    assert [law.regime(size) for size in (32, 200, 1024)] == ["perfect scaling", "diminishing returns", "flat"]


def test_twenty_percent_more_than_perfect_scaling():
    # S(B) · B = E_min (1 + B/B_crit), and perfect scaling keeps E_min: at 40 of 200 the examples are 1.2 · E_min
    law = law_of(steps(100, 200), scatter=0.001)
    batch = law.near_perfect.value
    assert law.steps(batch).value * batch == pytest.approx(1.2 * law.e_min.value, rel=0.01)


def test_a_batch_size_that_was_not_tried_has_the_interval_of_a_new_cell():
    # the chance that the interval holds a cell at twice the largest size, which lies off the law as all cells do
    truth, deviation, sizes = float(steps(100, 200, 1024)), 0.1, SIZES[1:5]

    def held(low, high):
        above, below = (math.log(end / truth) / deviation for end in (high, low))
        return special.ndtr(above) - special.ndtr(below)

    new, alone = [], []
    for seed in range(10):
        law = law_of(steps(100, 200, sizes), sizes, RATES[1:4], scatter=0.05, deviation=deviation, seed=seed)
        draws, told = law.untried(1024), law.steps(1024)
        assert np.median(draws) == pytest.approx(math.log(told.value), abs=0.02)
        new.append(held(*np.exp(np.quantile(draws, ENDS))))
        alone.append(held(told.low, told.high))
    assert 0.82 <= np.mean(new) <= 0.97
    assert np.mean(alone) <= np.mean(new) - 0.1


@settings(max_examples=8)
@given(st.floats(1, 1e5), st.floats(40, 800))
def test_units_do_not_matter(scale, b_crit):
    law = law_of(steps(100, b_crit), scatter=0.03)
    scaled = law_of(steps(100 * scale, b_crit), scatter=0.03, scale=8.0)
    for name, factor in (("s_min", scale), ("b_crit", 8)):
        found, other = getattr(law, name), getattr(scaled, name)
        for end in ("low", "value", "high"):
            assert getattr(other, end) == pytest.approx(getattr(found, end) * factor, rel=1e-3)
    assert scaled.exponent.value == pytest.approx(law.exponent.value, rel=1e-3)


@settings(max_examples=8)
@given(st.floats(10, 1e4), st.floats(20, 2000))
def test_what_holds_for_every_law(s_min, b_crit):
    law = law_of(steps(s_min, b_crit), scatter=0.05)
    taken = [law.steps(size).value for size in SIZES]
    assert sorted(taken, reverse=True) == taken
    examples = [size * law.steps(size).value for size in SIZES]
    assert sorted(examples) == examples
    for estimate in (law.s_min, law.e_min, law.b_crit, law.near_perfect, law.exponent, *map(law.steps, SIZES)):
        assert estimate.low <= estimate.value <= estimate.high
        assert estimate.identified or estimate.why
    order = ["perfect scaling", "diminishing returns", "flat"]
    regimes = [order.index(regime) for size in SIZES if (regime := law.regime(size))]
    assert sorted(regimes) == regimes


def test_perfect_scaling_all_the_way_leaves_the_fewest_steps_open():
    law = law_of(1e5 / SIZES * np.array([1.02, 0.97, 1.03, 1.0, 1.01, 0.98]))
    assert not law.s_min.identified
    assert "S_min may be anything" in law.s_min.why
    assert not law.identified
    assert law.e_min.identified
    assert law.e_min.value == pytest.approx(1e5, rel=0.03)
    assert not law.b_crit.identified
    assert law.b_crit.low > 4 * max(SIZES)
    assert {law.regime(size) for size in SIZES} == {"perfect scaling"}


def test_steps_that_do_not_fall_leave_the_fewest_examples_open():
    law = law_of(400 * np.array([0.99, 1.02, 1.0, 0.98, 1.01, 1.02]))
    assert law.s_min.identified
    assert not law.e_min.identified
    assert not law.b_crit.identified
    assert not law.near_perfect.identified
    assert law.b_crit.high < min(SIZES) / 4
    assert {law.regime(size) for size in SIZES} == {"flat"}


def test_a_regime_is_not_told_where_it_hangs_on_what_is_not_identified():
    sizes = np.array([64.0, 128, 256])
    law = law_of(np.array([1000, 800, 300]), sizes)
    assert not law.b_crit.identified
    assert law.regime(128) is None


def test_an_exponent_of_rates_that_are_all_as_good_is_not_identified():
    law = law_of(steps(100, 200)[:3], SIZES[:3], RATES[1:4], curvature=0.0, scatter=0.3)
    assert not law.exponent.identified
    assert "the interval of the exponent" in law.exponent.why
    assert law_of(steps(100, 200)[:3], SIZES[:3], RATES[1:4], scatter=0.01).exponent.identified


def test_where_each_batch_size_has_one_rate_the_steps_are_those_of_the_rates():
    law = law_of(steps(100, 200), rates=RATES[2:3], curvature=0.0)
    assert not law.compared
    assert not law.identified
    assert law.b_crit.value == pytest.approx(200, rel=0.1)


def test_where_workers_change_the_steps_the_law_is_told_for_some_of_them():
    places = np.array([(size, rate, workers) for size in SIZES for rate in RATES for workers in (1, 2, 4)])
    truth = np.log(steps(100, 200, places[:, 0])) + 0.15 * np.log2(places[:, 2])
    truth += 0.15 * np.log2(places[:, 1] / 0.2) ** 2
    cells = np.repeat(np.arange(len(places)), 2)
    found = steps_to_target(places, arrived(truth[cells], cells), np.random.default_rng(0))
    for workers in (1, 4):
        assert BatchLaw.of(found, workers).s_min.value == pytest.approx(100 * workers ** (0.15 / math.log(2)), rel=0.02)


@given(st.floats(1, 1e6), st.floats(1e-3, 1e6))
def test_regimes_in_order(size, b_crit):
    regime = regime_of(size, b_crit)
    assert (regime == "flat") == (size >= 4 * b_crit)
    assert (regime == "perfect scaling") == (size <= b_crit / 4)
    assert regime_of(size, math.inf) == "perfect scaling"
    assert regime_of(size, 0.0) == "flat"
