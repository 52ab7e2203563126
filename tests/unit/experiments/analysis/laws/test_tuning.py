"""Laws of steps and of step times: what they say of a cell of which only its neighbours were measured."""

import itertools

import numpy as np
import pytest

from scalestudy.experiments.analysis.laws.shrinkage import shrink
from scalestudy.experiments.analysis.laws.tuning import law_of_step_seconds, law_of_steps

BATCHES, RATES = (32, 64, 128, 256, 512), (0.05, 0.1, 0.2, 0.4, 0.8)
PLACES = np.array([(batch, rate, 1.0) for batch, rate in itertools.product(BATCHES, RATES)])


def steps(batch, rate):
    """log S of the law: S_min 100, B_crit 200, best rate 0.1 · (B/64)^0.5, curvature 0.2 in octaves squared."""
    off = np.log2(rate) - np.log2(0.1) - 0.5 * np.log2(batch / 64)
    return np.log(100 * (1 + 200 / batch)) + 0.2 * off**2


def step_seconds(workers, batch):
    """A fixed part, one for each example, and a sum of gradients that grows with the workers."""
    several = (workers > 1) * (0.004 + 0.001 * (workers - 1))
    return 0.01 + 0.0002 * batch / workers + several


def beyond(law, truth, measured, scatter=0.01):
    """How far what is said of all places is from the truth, in logarithms. measured: places, each three times."""
    cells = np.repeat(measured, 3)
    values = truth[cells] + scatter * np.random.default_rng(0).standard_normal(len(cells))
    return np.abs(shrink(values, cells, law(values, cells)).mean - truth)


def test_steps_of_cells_that_were_not_trained_are_those_of_the_law():
    truth = steps(*PLACES.T[:2])
    measured = np.arange(0, len(PLACES), 2)  # every other one
    off = beyond(lambda values, cells: law_of_steps(PLACES, values, cells), truth, measured)
    assert off.max() < 0.1
    assert np.median(off) < 0.03


def test_a_batch_size_without_any_training_lies_between_its_neighbours():
    truth = steps(*PLACES.T[:2])
    measured = np.flatnonzero(PLACES[:, 0] != 128)
    off = beyond(lambda values, cells: law_of_steps(PLACES, values, cells), truth, measured)
    assert off.max() < 0.1


def test_where_workers_learn_differently_their_doublings_have_an_effect():
    places = np.array([(64.0, rate, workers) for rate in RATES for workers in (1, 2, 4)])
    truth = steps(*places.T[:2]) + 0.15 * np.log2(places[:, 2])
    measured = np.flatnonzero((places[:, 2] < 4) | (places[:, 1] < 0.1))
    off = beyond(lambda values, cells: law_of_steps(places, values, cells), truth, measured)
    assert off.max() < 0.1


def test_one_place_is_enough():
    for place in (PLACES[:1], PLACES[:2]):
        law = law_of_steps(place, np.array([7.0]), np.array([0]))
        assert np.isfinite(law.features).all()
        found = shrink(np.array([7.0]), np.array([0]), law)
        assert found.mean[0] == pytest.approx(7.0, abs=0.1)
    law = law_of_step_seconds(np.array([(1.0, 64.0)]), np.array([-4.0]), np.array([0]))
    assert shrink(np.array([-4.0]), np.array([0]), law).mean == pytest.approx([-4.0], abs=0.05)


def test_seconds_of_a_step_are_shrunk_to_the_law_of_all_places():
    places = np.array([(workers, batch) for workers in (1.0, 2.0, 4.0, 8.0) for batch in (64.0, 256.0, 1024.0)])
    truth = np.log(step_seconds(*places.T))
    generator = np.random.default_rng(1)
    alone, together = [], []
    for _ in range(40):
        values = truth + 0.1 * generator.standard_normal(len(places))  # a run a place, 10 % off
        cells = np.arange(len(places))
        alone.append(values - truth)
        together.append(shrink(values, cells, law_of_step_seconds(places, values, cells)).mean - truth)
    assert np.std(together) < 0.85 * np.std(alone)
    assert abs(np.mean(together)) < 0.02


def test_without_scatter_the_law_is_met_exactly():
    places = np.array([(workers, batch) for workers in (1.0, 2.0, 4.0, 8.0) for batch in (64.0, 256.0, 1024.0)])
    values = np.log(step_seconds(*places.T))
    law = law_of_step_seconds(places, values, np.arange(len(places)))
    assert law.offset == pytest.approx(values, abs=1e-6)
    # slopes by the logarithms of the parts: of the first two, their shares of a step
    seconds = np.exp(values)
    assert law.features[:, 0] == pytest.approx(0.01 / seconds, rel=1e-4)
    assert law.features[:, 1] == pytest.approx(0.0002 * places[:, 1] / places[:, 0] / seconds, rel=1e-4)
