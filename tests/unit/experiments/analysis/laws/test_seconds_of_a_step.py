"""The law of seconds a step: what it says of a place of which only its neighbours were timed."""

import numpy as np
import pytest

from scalestudy.experiments.analysis.laws.seconds_of_a_step import law_of_step_seconds
from scalestudy.experiments.analysis.laws.shrinkage import shrink


def step_seconds(workers, batch):
    """A fixed part, one for each example, and a sum of gradients that grows with the workers."""
    several = (workers > 1) * (0.004 + 0.001 * (workers - 1))
    return 0.01 + 0.0002 * batch / workers + several


def test_one_place_is_enough():
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
