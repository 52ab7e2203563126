"""What a look is worth, and what is believed after it."""

import math
import statistics

import numpy as np
import pytest

from scalestudy.experiments.analysis.answers.gain import (
    REPEATS,
    conditioned,
    gains,
    most_for_its_cost,
    variance_taken,
)

NORMAL = statistics.NormalDist()


def drawn(*sizes, count=2000, seed=0):
    """Columns of independent draws, each with exactly this mean and standard deviation."""
    chance = np.random.default_rng(seed).standard_normal((count, len(sizes)))
    chance, _ = np.linalg.qr(chance - chance.mean(axis=0))
    means, deviations = np.transpose(sizes)
    return means + chance * math.sqrt(count) * deviations


def closed_form(distance, moved):
    """s·φ(Δ/s) - Δ·Φ(-Δ/s): by how much the lesser of two means falls that lie Δ apart, if one moves by s (Frazier
    2009, section 3)."""
    return moved * NORMAL.pdf(distance / moved) - distance * NORMAL.cdf(-distance / moved)


def some(seed, cells=6, looks=4):
    """Cells and looks that hang together."""
    generator = np.random.default_rng(seed)
    both = generator.standard_normal((400, 5)) @ generator.standard_normal((5, cells + looks))
    both += generator.standard_normal(both.shape) + generator.uniform(-1, 1, cells + looks)
    return both[:, :cells], both[:, cells:], generator.uniform(0.1, 1, looks)


def test_of_two_cells_and_a_look_at_one():
    """Means 1.0, which is sure, and 1.3 ± 0.4; a look at the second scatters by 0.3.

    s = 0.4² ÷ √(0.4² + 0.3²) = 0.16 ÷ 0.5 = 0.32 and Δ = 0.3, so Δ/s = 0.9375, φ = 0.25707, Φ(-Δ/s) = 0.17425, and the
    look is worth 0.32 · 0.25707 - 0.3 · 0.17425 = 0.02999. By four repeats s = 0.16 ÷ √(0.16 + 0.0225) = 0.37453:
    Δ/s = 0.80100, φ = 0.28946, Φ = 0.21156, worth 0.37453 · 0.28946 - 0.3 · 0.21156 = 0.04494.
    """
    cells = drawn((1.0, 0.0), (1.3, 0.4))
    once, _, four_times, _ = gains(cells, cells[:, 1:], np.array([0.3]))[0]
    assert [once, four_times] == pytest.approx([0.02999, 0.04494], rel=0.05)
    assert [closed_form(0.3, 0.32), closed_form(0.3, 0.374529)] == pytest.approx([0.02999, 0.04494], rel=1e-3)


def test_of_two_cells_that_tie():
    """Δ = 0: worth s · φ(0) = 0.32 · 0.39894 = 0.12766, whichever of the two is looked at."""
    cells = drawn((2.0, 0.4), (2.0, 0.0))
    assert gains(cells, cells[:, :1], np.array([0.3]))[0, 0] == pytest.approx(0.12766, rel=0.05)


def test_what_cells_have_in_common_tells_them_not_apart():
    """A look that moves both cells alike lowers the least mean by nothing."""
    common = drawn((0.0, 0.4))
    cells = common + np.array([[1.0, 1.1]])
    assert gains(cells, common, np.array([0.1])) == pytest.approx(np.zeros((1, len(REPEATS))), abs=1e-12)


def test_a_look_may_also_add_the_cell_to_those_that_can_be_chosen():
    """Cell 1 has the lesser mean, 0.8 against 1.0, but can't be chosen before it is looked at.

    Then the least mean falls by 1.0 - 0.8 = 0.2 at once, and by closed_form(0.2, 0.32) beside.
    """
    cells, known = drawn((1.0, 0.0), (0.8, 0.4)), np.array([True, False])
    noise, look = np.array([0.3]), cells[:, 1:]
    opened = gains(cells, look, noise, known=known, opens=np.array([1]))
    assert opened[0, 0] == pytest.approx(0.2 + closed_form(0.2, 0.32), rel=0.05)
    assert gains(cells, look, noise, known=known) == pytest.approx(0, abs=1e-12)
    assert gains(cells, look, noise)[0, 0] == pytest.approx(closed_form(0.2, 0.32), rel=0.05)


@pytest.mark.parametrize("seed", range(20))
def test_more_repeats_are_worth_no_less_and_nothing_is_worth_less_than_nothing(seed):
    found = gains(*some(seed))
    assert (found >= 0).all()
    assert (np.diff(found, axis=1) >= -1e-12).all()
    assert (found[:, -1] > 0).any()


def test_of_looks_that_tell_as_much_the_cheaper_is_worth_most_and_one_beyond_the_budget_nothing():
    """4.0 ÷ (8 · 2) = 0.25 is less than 0.4 ÷ (1 · 1) = 0.4; at half the cost it is 0.5."""
    worth = np.array([[0.1, 0.2, 0.3, 4.0], [0.4, 0.5, 0.6, 0.7], [9.0, 9.0, 9.0, 9.0]])
    assert most_for_its_cost(worth, np.array([2.0, 1.0, np.inf])) == (1, 1, 0.4)
    assert most_for_its_cost(worth, np.array([1.0, 1.0, np.inf])) == (0, 8, 4.0)
    assert most_for_its_cost(np.array([[9.0] * 4, [0.0] * 4]), np.array([np.inf, 1.0])) == (1, 1, 0.0)


@pytest.mark.parametrize("seed", range(5))
def test_a_look_that_no_cell_hangs_together_with_is_worth_nothing(seed):
    columns = drawn(*[(1.0 + place / 10, 0.3) for place in range(5)], seed=seed)
    assert gains(columns[:, :4], columns[:, 4:], np.array([0.1])) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_cells_and_of_looks_changes_nothing(seed):
    cells, looks, noise = some(seed)
    order, of_looks = (np.random.default_rng(seed).permutation(part.shape[1]) for part in (cells, looks))
    known, opens = np.arange(cells.shape[1]) % 2 == 0, np.arange(looks.shape[1])
    moved = gains(
        cells[:, order],
        looks[:, of_looks],
        noise[of_looks],
        known=known[order],
        opens=np.argsort(order)[opens][of_looks],
    )
    assert moved == pytest.approx(gains(cells, looks, noise, known=known, opens=opens)[of_looks])


def test_draws_after_a_look_are_those_of_a_normal_posterior():
    """Of x with variance 4 and y = x/2 + e, e with variance 1, a look at x that scatters by 3 leaves the means.

    x: 4 - 4²/(4 + 9) = 2.7692. y has variance 2 and covariance 2 with x: 2 - 2²/13 = 1.6923. Both: 2 - 2·4/13 = 1.3846.
    """
    first, other = drawn((5.0, 2.0), (1.0, 1.0), count=200_000).T
    draws = np.stack([first, first / 2 + other], axis=1)
    after = conditioned(draws, first, 3.0, np.random.default_rng(1))
    assert after.mean(axis=0) == pytest.approx(draws.mean(axis=0), abs=0.01)
    assert np.cov(after.T, bias=True) == pytest.approx(np.array([[2.7692, 1.3846], [1.3846, 1.6923]]), rel=0.01)


def test_a_sure_look_leaves_no_doubt():
    draws = drawn((3.0, 1.0), (2.0, 1.0))
    after = conditioned(draws, draws[:, 0], 0.0, np.random.default_rng(0))
    assert after[:, 0] == pytest.approx(3.0)
    assert after[:, 1] == pytest.approx(draws[:, 1])


def test_a_look_takes_away_as_much_of_a_value_s_variance_as_draws_conditioned_on_it_lose():
    generator = np.random.default_rng(0)
    shared, own = generator.normal(0, 0.1, (40_000, 1)), generator.normal(0, 0.2, (40_000, 2))
    cells, noise = shared + own, np.array([0.1, 0.3])
    taken = variance_taken(cells[:, 0] - cells[:, 1], cells, noise)  # of a difference
    assert taken == pytest.approx([0.04**2 / (0.05 + 0.01), 0.04**2 / (0.05 + 0.09)], rel=0.03)
    for look in (0, 1):
        after = conditioned(cells, cells[:, look], float(noise[look]), generator)
        fall = np.var(cells[:, 0] - cells[:, 1]) - np.var(after[:, 0] - after[:, 1])
        assert fall == pytest.approx(taken[look], rel=0.1)
