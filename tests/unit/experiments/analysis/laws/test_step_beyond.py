"""Where nothing near was timed: intervals that hold the truth, and are narrow."""

import statistics

import numpy as np
import pytest
from scipy import stats

from scalestudy.experiments.analysis.laws.step_beyond import interval_beyond
from scalestudy.experiments.analysis.laws.step_choice import Timings
from scalestudy.experiments.analysis.laws.step_terms import Constants, features_of
from scalestudy.experiments.analysis.laws.step_time import fit_step_time
from tests.bench.beyond import WIDEST, predictions, timed
from tests.support.known_laws import timings
from tests.support.step_worlds import KINDS, StepWorld


def test_the_interval_holds_the_nearest_law_and_grows_with_the_noise():
    law = Constants(alpha_c=0.004, beta_c=5e-5, launch=0.0026, linear=0.0004)
    seen, at = Timings.of(timings(law, np.random.default_rng(0), noise=0.0)), features_of(16, 64.0, 1)
    truth = float(law.step_seconds(16, 64)) + 0.01
    low, high = interval_beyond(seen, at, 0.01, noise=0.03, t=1.7)
    assert low < truth < high
    lower, higher = interval_beyond(seen, at, 0.01, noise=0.06, t=1.7)
    assert lower < low
    assert higher > high


def test_a_ring_that_saturates_is_no_line():
    """The error of a term linear in workers: +36 % at 128, +539 % at 1,024."""
    generator = np.random.default_rng(0)
    for _ in range(3):
        world = StepWorld.draw(generator, "ring")
        times = fit_step_time(timed(world, generator)).times
        for workers in (128, 256):
            found = times.beyond(workers, 1024 / workers, nodes=world.nodes(workers))
            assert found.low <= world.seconds(workers, 1024) <= found.high
            assert found.high < 2 * found.low


KIND_DRAWS = 25


@pytest.mark.parametrize("kind", ["ring", "tree", "log-latency", "spine", "stragglers"])
def test_beyond_the_sizes_timed_intervals_hold_the_truth_and_are_narrow(kind):
    """Nominal 90 %, at least 80 % promised; `make bench BENCH=beyond` has 300 draws a kind."""
    found = predictions(kind, KIND_DRAWS, seed=16)
    for told in (found.twice, found.four_times):
        assert binomial(0.80) <= sum(told.held)
        assert all(width > 1.01 for width in told.widths)  # no interval without an end
    assert statistics.fmean(width <= WIDEST for width in found.twice.widths) >= 0.8
    assert found.four_times.width <= 3
    assert len(found.twice.widths) > 0.8 * KIND_DRAWS


def binomial(share):
    """Fewer than so many of the draws have a chance of one in a hundred where each has this chance."""
    return int(stats.binom.ppf(0.01, KIND_DRAWS, share))


def test_over_all_kinds_intervals_are_not_too_wide_either():
    found = [predictions(kind, 10, seed=3) for kind in KINDS]
    held = [each for outcome in found for each in outcome.twice.held]
    assert 0.8 <= statistics.fmean(held) <= 0.97
    assert statistics.fmean(each for outcome in found for each in outcome.refused) < 0.08
