"""The nearest law to timings, and which of its terms stay."""

import numpy as np
import pytest

from scalestudy.experiments.analysis.laws.step_choice import Timings, choose
from scalestudy.experiments.analysis.laws.step_terms import COEFFICIENTS, Constants
from tests.support.known_laws import timings

LAW = Constants(alpha_c=0.004, beta_c=5e-5, launch=0.0026, linear=0.0004, gamma=1.5)


def seen(noise, seed=0):
    return Timings.of(timings(LAW, np.random.default_rng(seed), noise=noise))


@pytest.mark.parametrize("gamma", [1.0, 1.5, 5.0])
def test_the_nearest_law_to_exact_timings_is_their_own(gamma):
    law = Constants(alpha_c=0.004, beta_c=5e-5, launch=0.0026, linear=0.0004, gamma=gamma)
    exact = Timings.of(timings(law, np.random.default_rng(0), noise=0.0))
    found = exact.by_overlap()
    assert min(found, key=lambda overlap: exact.squares(found[overlap], overlap)) == gamma
    assert exact.squares(found[gamma], gamma) < 1e-6


def test_terms_that_are_not_worth_a_constant_are_left_out():
    chosen = []
    for seed in range(10):
        few, start = choose(seen(0.03, seed), overlap=True)
        assert all(getattr(start, name) == 0 for name in COEFFICIENTS if name not in few)
        chosen.append((set(few), set(choose(seen(0.03, seed), overlap=True, fewest=False)[0])))
    own = {"alpha_c", "beta_c", "launch", "linear", "gamma"}
    assert sum(few == own for few, _ in chosen) >= 8
    assert all(few <= more for few, more in chosen)
    assert any(few < more for few, more in chosen)


def test_without_an_overlap_gamma_is_no_constant():
    names, start = choose(seen(0.03), overlap=False)
    assert "gamma" not in names
    assert start.gamma == 1


def test_a_law_has_fewer_constants_than_places():
    workers, shares = (1, 2, 4), (64, 256)
    short = Timings.of(timings(LAW, np.random.default_rng(0), workers, shares, noise=0.03))
    names, _ = choose(short, overlap=False, fewest=False)
    assert len(names) < len(workers) * len(shares)


def test_a_place_beside_moves_the_nearest_law_to_itself_and_one_left_out_does_not_count():
    short = seen(0.0)
    further = short.beside(short.features[:, -1], 1.0, 0.0)
    assert len(further.logs) == len(short.logs) + 1
    alike = further.without(len(short.logs))
    assert alike.logs == pytest.approx(short.logs)
    assert alike.features == pytest.approx(short.features)
