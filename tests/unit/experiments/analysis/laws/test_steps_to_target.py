"""Draws of the steps to a target: against the law, against their own intervals, and by what little is known of some."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import special

from scalestudy.experiments.analysis.laws.shrinkage import (
    COMMON,
    DEVIATION_FACTOR,
    LENGTH,
    LIKELY_DEVIATION,
    LIKELY_NOISE,
    NOISE_FACTOR,
    SPREADS,
)
from scalestudy.experiments.analysis.laws.steps_to_target import (
    BEFOREHAND,
    BEST,
    CRITICAL,
    CURVATURE,
    DOUBLING,
    DRAWS,
    LEAST_DRAWS,
    LEVEL,
    RULE,
    Arrivals,
    Law,
    steps_to_target,
)
from tests.support.arrivals import arrived

BATCHES, RATES = (32, 64, 128, 256, 512), (0.05, 0.1, 0.2, 0.4, 0.8)
PLACES = np.array([(batch, rate, 1.0) for batch, rate in itertools.product(BATCHES, RATES)])


def steps(batch, rate):
    """log S of the law: S_min 100, B_crit 200, best rate 0.1 · (B/64)^0.5, curvature 0.2 in octaves squared."""
    off = np.log2(rate) - np.log2(0.1) - 0.5 * np.log2(batch / 64)
    return np.log(100 * (1 + 200 / batch)) + 0.2 * off**2


def told(places, arrivals, seed=0):
    return steps_to_target(np.asarray(places, dtype=float), arrivals, np.random.default_rng(seed))


def off(places, truth, measured, scatter=0.01):
    """How far what is said of all places is from the truth, in logarithms. measured: places, each three times."""
    cells = np.repeat(measured, 3)
    values = truth[cells] + scatter * np.random.default_rng(0).standard_normal(len(cells))
    return np.abs(told(places, arrived(values, cells)).mean - truth)


def test_the_law_is_made_linear_with_its_own_slopes():
    places = np.log2(np.array([(32, 0.1, 1), (64, 0.4, 2), (256, 0.1, 4), (512, 1.6, 1)], dtype=float))
    free = np.array([LEVEL, DOUBLING, CRITICAL, CURVATURE, BEST, RULE])
    usual = np.array([5.0, 1.0, -1.0, 0.3, 0.4, 0.0])
    law = Law(middle=places.mean(axis=0), span=(5, 9), usual=usual, free=free, exact=2, compared=True)
    at = usual + np.array([0.5, -1.0, 0.4, 0.8, -0.3, 0.2])
    found, step = law.near(places, at), 1e-5 * np.eye(len(at))
    differences = (law.values(places, at + step) - law.values(places, at - step)) / 2e-5
    assert found.features == pytest.approx(differences.T[:, free], rel=1e-6, abs=1e-8)
    assert found.offset + found.features @ (at - usual)[free] == pytest.approx(law.values(places, at))


def test_steps_of_cells_that_were_not_trained_are_those_of_the_law():
    truth = steps(*PLACES.T[:2])
    every_other = off(PLACES, truth, np.arange(0, len(PLACES), 2))
    assert every_other.max() < 0.1
    assert np.median(every_other) < 0.03


def test_a_batch_size_without_any_training_lies_between_its_neighbours():
    assert off(PLACES, steps(*PLACES.T[:2]), np.flatnonzero(PLACES[:, 0] != 128)).max() < 0.1


def test_where_workers_learn_differently_their_doublings_have_an_effect():
    places = np.array([(64.0, rate, workers) for rate in RATES for workers in (1, 2, 4)])
    truth = steps(*places.T[:2]) + 0.15 * np.log2(places[:, 2])
    assert off(places, truth, np.flatnonzero((places[:, 2] < 4) | (places[:, 1] < 0.1))).max() < 0.1


@pytest.mark.parametrize("places", [PLACES[:1], PLACES[:2], [(32, 0.1, 1), (64, 0.2, 1), (128, 0.4, 1)]])
def test_one_arrival_is_enough(places):
    found = told(places, arrived([7.0], [0]))
    assert found.mean[0] == pytest.approx(7.0, abs=0.02)
    assert found.worth >= LEAST_DRAWS


def test_the_constants_are_those_of_the_law():
    truth = steps(*PLACES.T[:2])
    cells = np.repeat(np.arange(len(PLACES)), 3)
    found = told(PLACES, arrived(truth[cells] + 0.03 * np.random.default_rng(1).standard_normal(len(cells)), cells))
    level, critical, _, best, rule, _ = found.constants.T
    batch, rate, _ = found.law.middle
    best_at_256 = rate + best + rule * (8 - batch)
    for draws, known in ((np.exp(level), 100), (2 ** (critical + batch), 200), (rule, 0.5), (2**best_at_256, 0.2)):
        low, high = np.quantile(draws, [0.005, 0.995])
        assert low < known < high
        assert np.median(draws) == pytest.approx(known, rel=0.1)


def test_the_same_arrivals_give_the_same_draws_in_the_order_of_the_generator():
    truth = steps(*PLACES.T[:2])
    arrivals = arrived(truth, np.arange(len(PLACES)))
    first, again, other = told(PLACES, arrivals), told(PLACES, arrivals), told(PLACES, arrivals, seed=1)
    assert (first.draws == again.draws).all()
    assert (first.draws != other.draws).any()
    assert (np.sort(first.draws, axis=0) == np.sort(other.draws, axis=0)).all()
    assert first.mean.tolist() == other.mean.tolist()


@pytest.fixture(scope="module")
def drawn_laws():
    """Of 20 drawn laws, 90 % intervals of all cells with their middles, less the truth, and the cells left out."""
    found = []
    for draw in range(20):
        generator = np.random.default_rng(draw)
        deviation = math.exp(math.log(0.05) + 0.8 * generator.standard_normal())
        noise = math.exp(math.log(0.12) + 0.8 * generator.standard_normal())
        truth = steps(*PLACES.T[:2]) + deviation * generator.standard_normal(len(PLACES))
        left_out = generator.choice(len(PLACES), 6, replace=False)
        cells = np.repeat(np.setdiff1d(np.arange(len(PLACES)), left_out), 3)
        draws = told(PLACES, arrived(truth[cells] + noise * generator.standard_normal(len(cells)), cells)).draws
        found.append((np.quantile(draws, [0.05, 0.5, 0.95], axis=0) - truth, left_out))
    return found


@pytest.mark.parametrize(("wider", "right"), [(1.0, True), (1 / 3, False), (3.0, False)])
def test_intervals_hold_trained_and_new_cells_as_often_as_they_say(drawn_laws, wider, right):
    """The wrong laws are intervals of a third, and of thrice the width."""
    trained, new = [], []
    for (low, middle, high), left_out in drawn_laws:
        held = (middle + wider * (low - middle) <= 0) & (middle + wider * (high - middle) >= 0)
        new.append(held[left_out].mean())
        trained.append(np.delete(held, left_out).mean())
    for shares in (trained, new):
        error = np.std(shares) / math.sqrt(len(shares))
        assert (0.85 - 2 * error <= np.mean(shares) <= 0.95 + error) == right, (np.mean(shares), error)


def test_the_best_rate_is_found_at_the_edge_of_a_few_trainings():
    """From the middle of the rates a search ends where the law fits badly, which then passes for noise."""
    tried = [(32, 0.05), (32, 0.1), (32, 0.2), (32, 0.4), (64, 0.1), (512, 0.2)]
    places = PLACES[PLACES[:, 1] < 0.8]
    cells = [places[:, :2].tolist().index(list(place)) for place in tried]
    found = told(places, arrived([10.03, 8.77, 8.05, 7.88, 8.99, 9.67], cells))
    assert found.scatter < 0.12


def test_little_is_known_and_the_draws_are_worth_enough_all_the_same():
    """A handful of arrivals leaves the constants to what is known beforehand, far from where the law is linear."""
    worths = []
    for draw in range(8):
        generator = np.random.default_rng([3, draw])
        cells = np.repeat(generator.choice(len(PLACES), 4, replace=False), 2)
        noise = generator.choice([0.05, 0.5])
        values = steps(*PLACES.T[:2])[cells] + noise * generator.standard_normal(len(cells))
        worths.append(told(PLACES, arrived(values, cells)).worth)
    assert min(worths) >= LEAST_DRAWS
    assert max(worths) <= DRAWS


def test_the_search_for_a_mode_takes_what_did_not_arrive_into_account():
    """Four in five trainings end before the target: those that arrived tell less of the law than those that did not."""
    places = np.array([(batch, 0.05 * 1.1**power, 1.0) for batch in BATCHES for power in range(30)])
    truth = steps(*places.T[:2])
    values = truth + 0.03 * np.random.default_rng(0).standard_normal(len(truth))
    late = values > np.quantile(values, 0.2)
    arrivals = arrived(values, np.arange(len(values)))
    arrivals = replace(
        arrivals,
        low=np.where(late, np.quantile(values, 0.2), arrivals.low),
        high=np.where(late, math.inf, arrivals.high),
        values=np.where(late, math.nan, arrivals.values),
    )
    found = told(places, arrivals)
    assert found.worth >= LEAST_DRAWS
    low, high = np.quantile(found.draws, [0.05, 0.95], axis=0)
    assert ((low <= truth) & (truth <= high))[~late].mean() > 0.8


@pytest.mark.parametrize("seed", range(2))
def test_the_draws_are_those_of_a_sum_over_all_constants_and_deviations(seed):
    """One rate, so that B_crit is the only constant that the law is not linear in: an exact sum is at hand."""
    batches = np.array([32.0, 64.0, 256.0, 1024.0])
    places = np.array([(batch, 0.1, 1.0) for batch in batches])
    generator = np.random.default_rng(seed)
    cells = np.array([0, 0, 1, 1, 2])
    values = np.log(1 + 200 / batches)[cells] + 5 + 0.1 * generator.standard_normal(len(cells))
    found = told(places, arrived(values, cells))

    octaves = np.log2(batches) - np.log2(batches).mean()
    apart = np.abs(octaves[:, None] - octaves)
    alike = COMMON * np.exp(-apart / LENGTH) + (1 - COMMON) * np.eye(len(batches))
    means, squares, logs = [], [], []
    for noise, spread in itertools.product(SPREADS, SPREADS):
        of_cells = spread**2 * alike + BEFOREHAND[LEVEL] ** 2
        inverse = np.linalg.inv(of_cells[np.ix_(cells, cells)] + noise**2 * np.eye(len(cells)))
        beforehand = [
            math.log(noise / LIKELY_NOISE) / NOISE_FACTOR,
            math.log(spread / LIKELY_DEVIATION) / DEVIATION_FACTOR,
        ]
        for critical in np.linspace(-12, 12, 49):
            law = values.mean() + np.logaddexp(0, math.log(2) * (critical - octaves))
            off = values - law[cells]
            logs.append(
                (np.linalg.slogdet(inverse)[1] - off @ inverse @ off) / 2
                - (np.square(beforehand).sum() + (critical / BEFOREHAND[CRITICAL]) ** 2) / 2
            )
            gain = of_cells[:, cells] @ inverse
            means.append(law + gain @ off)
            squares.append(np.diag(of_cells - gain @ of_cells[cells]) + means[-1] ** 2)
    weights = np.exp(np.array(logs) - max(logs))
    mean, square = (np.average(each, axis=0, weights=weights) for each in (means, squares))
    deviation = np.sqrt(square - mean**2)
    assert (np.abs(found.mean - mean) < 0.1 * deviation).all()
    assert (np.abs(found.draws.mean(axis=0) - mean) < 0.1 * deviation).all()
    assert found.draws.std(axis=0) == pytest.approx(deviation, rel=0.1)


# --- arrivals of which only an interval is known ----------------------------------------------------------------------


def within(low, high, chance=1.0):
    """One training of one cell, of which two more are known to have taken e⁵ steps, but for 10 % noise."""
    known = 5 + 0.1 * special.ndtri((np.arange(10) + 0.5) / 10)
    count = len(known) + 1
    return Arrivals(
        places=np.array([0] * count),
        seeds=None,
        low=np.append(known, low),
        high=np.append(known, high),
        chance=np.append(np.ones(len(known)), chance),
        values=np.append(known, math.nan),
        extra=np.zeros(count),
    )


def mean_with(*interval):
    return float(told(PLACES[:1], within(*interval)).mean[0])


def test_an_interval_says_what_it_says():
    nothing = mean_with(-math.inf, 9.0)
    assert nothing == pytest.approx(5.0, abs=0.005), "it would have come before in any case"
    assert mean_with(1.0, math.inf) == pytest.approx(nothing, abs=0.005), "it would have come later in any case"
    assert mean_with(-math.inf, 4.9) < nothing - 0.005 < nothing + 0.005 < mean_with(5.1, math.inf)
    assert mean_with(5.2, 5.2 + 1e-4) == pytest.approx(
        float(told(PLACES[:1], arrived([*5 + 0.1 * special.ndtri((np.arange(10) + 0.5) / 10), 5.2], [0] * 11)).mean[0]),
        abs=0.003,
    ), "a narrow one is a value"


def test_an_unconfirmed_arrival_lies_between_a_sure_one_and_none():
    sure, maybe, none = mean_with(4.7, 4.8), mean_with(4.7, 4.8, 0.8), mean_with(4.8, math.inf)
    assert sure < maybe < none


def test_the_derivatives_of_an_interval_s_likelihood_are_those_of_its_value():
    """At the mean that it was made for, a value has the slope and the curvature of the log likelihood."""
    low, high, chance = 4.9, 5.05, 0.7
    ends = {name: np.array([each]) for name, each in (("low", low), ("high", high), ("chance", chance))}
    arrivals = Arrivals(places=np.array([0]), seeds=None, values=np.array([math.nan]), extra=np.zeros(1), **ends)
    scatter, at, step = 0.1, 5.1, 1e-3

    def likelihood(mean):
        inside = special.ndtr((high - mean) / scatter) - special.ndtr((low - mean) / scatter)
        return math.log(chance * inside + (1 - chance) * special.ndtr((mean - high) / scatter))

    value, extra = arrivals.seen(np.array([at]), scatter)
    slope = (likelihood(at + step) - likelihood(at - step)) / (2 * step)
    bend = (likelihood(at + step) - 2 * likelihood(at) + likelihood(at - step)) / step**2
    variance = scatter**2 + extra[0]
    assert (value[0] - at) / variance == pytest.approx(slope, rel=1e-3)
    assert -1 / variance == pytest.approx(bend, rel=1e-2)
