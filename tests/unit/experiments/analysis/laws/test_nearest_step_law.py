"""The nearest law to timings."""

import numpy as np
import pytest

from scalestudy.experiments.analysis.laws.nearest_step_law import Timings
from tests.support.known_laws import Constants, timings

LAW = Constants(alpha_c=0.004, beta_c=5e-5, launch=0.0026, linear=0.0004, gamma=1.5)


def seen(noise, seed=0, law=LAW):
    places = timings(law, np.random.default_rng(seed), noise=noise)
    return Timings.of(places, np.array([np.log(place.seconds).mean() for place in places]), np.full(len(places), 5.0))


@pytest.mark.parametrize("gamma", [1.0, 1.5, 5.0])
def test_the_nearest_law_to_exact_timings_is_their_own(gamma):
    exact = seen(0.0, law=Constants(alpha_c=0.004, beta_c=5e-5, launch=0.0026, linear=0.0004, gamma=gamma))
    found = exact.by_overlap()
    assert min(found, key=lambda overlap: exact.squares(found[overlap], overlap)) == gamma
    assert exact.squares(found[gamma], gamma) < 1e-6


def test_no_coefficient_is_below_zero_and_none_nearby_is_nearer():
    noisy = seen(0.05)
    found = noisy.nearest(1.5, LAW.coefficients)
    assert (found >= 0).all()
    least = noisy.squares(found, 1.5)
    generator = np.random.default_rng(1)
    for _ in range(200):
        tried = np.maximum(found * (1 + 0.02 * generator.standard_normal(len(found))), 0.0)
        assert noisy.squares(tried, 1.5) >= least * (1 - 1e-6)


def test_several_draws_are_fitted_as_one_by_one():
    noisy = seen(0.05)
    generator = np.random.default_rng(2)
    logs = noisy.logs + 0.05 * generator.standard_normal((6, len(noisy.logs)))
    weights = generator.uniform(1, 9, (6, 1)) * noisy.weights
    gammas = np.array([1.0, 1.2, 1.5, 2.0, 3.0, 10.0])
    together = noisy.nearest_to(logs, weights, gammas, np.tile(LAW.coefficients, (6, 1)), 1e-7)[0]
    for draw, (gamma, found) in enumerate(zip(gammas, together, strict=True)):
        alone = noisy.nearest_to(logs[[draw]], weights[[draw]], gammas[[draw]], LAW.coefficients[None], 1e-7)[0][0]
        assert noisy.seconds(found, gamma) == pytest.approx(noisy.seconds(alone, gamma), rel=1e-6)


def test_the_overlap_is_fitted_too_if_asked():
    exact = seen(0.0)
    sure, start = np.full((1, len(exact.logs)), 1e8), np.array([3.0])
    law, gamma = exact.nearest_to(exact.logs[None], sure, start, LAW.coefficients[None], 1e-9, overlap=True)
    assert gamma == pytest.approx([1.5], rel=1e-3)
    assert exact.squares(law[0], float(gamma[0])) < 1e-6
    _, kept = exact.nearest_to(exact.logs[None], sure, start, law, 1e-9)
    assert kept == pytest.approx([3.0])


def test_an_overlap_that_no_timing_tells_stays_as_it_is_taken_beforehand():
    alone = timings(LAW, np.random.default_rng(0), workers=(1,), noise=0.0)
    exact = Timings.of(alone, np.array([np.log(place.seconds).mean() for place in alone]), np.ones(len(alone)))
    _, kept = exact.nearest_to(
        exact.logs[None], exact.weights[None], np.array([3.0]), LAW.coefficients[None], 1e-9, overlap=True
    )
    assert kept == pytest.approx([3.0])


def test_many_places_are_fitted_as_few():
    """More rows than twice the coefficients are first made fewer."""
    generator = np.random.default_rng(0)
    shares = np.geomspace(8, 4096, 40).tolist()
    places = timings(LAW, generator, shares=shares, seeds=1, noise=0.0)
    many = Timings.of(places, np.array([np.log(place.seconds[0]) for place in places]), np.ones(len(places)))
    found = many.nearest(1.5, LAW.coefficients * 1.5)
    assert many.seconds(found, 1.5) == pytest.approx(np.exp(many.logs), rel=1e-6)


def test_a_place_left_out_does_not_count():
    short = seen(0.0)
    spoilt = Timings(features=short.features, logs=short.logs.copy(), weights=short.weights, data=short.data)
    spoilt.logs[3] += 1.0
    assert spoilt.without(3).logs == pytest.approx(short.without(3).logs)
    assert spoilt.without(3).features == pytest.approx(short.without(3).features)
