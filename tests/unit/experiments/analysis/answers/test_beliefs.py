"""What is believed of all cells: their times from steps and seconds, near the best or not, and where seeds are lost."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from scalestudy.experiments.analysis.answers.beliefs import LOST, Beliefs, Place, Recipe, Size
from tests.support.looks import TEXT, Looking
from tests.support.synthetic_studies import spec_of


def beliefs_of(steps, seconds, **changes):
    """Of one batch size with two rates, on one worker and on two. steps, seconds: of rates, and of workers."""
    recipes, sizes = (Recipe(32, 0.1, 1), Recipe(32, 0.2, 1)), (Size(1, 32), Size(2, 32))
    places = tuple(Place(count, 32, rate) for count, rate in itertools.product((1, 2), (0.1, 0.2)))
    known = {"places": places, "recipes": recipes, "sizes": sizes, "scatter": 0.05, "noise": 0.02}
    more = {"lost": np.zeros_like(steps, dtype=float), "latest": np.full(2, np.inf), **known, **changes}
    return Beliefs(steps=np.log(steps), seconds=np.log(seconds), **more)


STEPS = [[100.0, 80.0], [100.0, 120.0], [100.0, 90.0], [100.0, 103.0]]
SECONDS = [[1.0, 0.6], [1.0, 0.6], [1.0, 0.6], [1.0, 1.0]]


def test_a_cell_takes_the_steps_of_its_recipe_times_the_seconds_of_its_size():
    found = np.exp(beliefs_of(STEPS, SECONDS).times)
    assert found[0] == pytest.approx([100, 80, 60, 48])
    assert found[3] == pytest.approx([100, 103, 100, 103])


def test_a_cost_is_a_time_for_each_worker():
    found = np.exp(beliefs_of(STEPS, SECONDS, by_cost=True).logs)
    assert found[0] == pytest.approx([100, 80, 120, 96])


def test_a_cell_counts_as_slow_in_the_draws_in_which_half_of_its_seeds_miss_the_target():
    """The second rate needs 80 to 120 steps. By 100 most of its trainings end without in the second draw and the last.

    Where a quarter of the seeds is lost besides, half of them miss it at 98 steps: none of the other draws is so near.
    """
    slow = [False, True, False, True]
    for lost in (0.0, 0.25):
        beliefs = beliefs_of(STEPS, SECONDS, latest=np.log([1000.0, 100.0]), lost=np.full((4, 2), lost))
        assert (beliefs.times - beliefs.reaching)[:, 1] == pytest.approx(LOST * np.array(slow))
        assert not np.any((beliefs.times - beliefs.reaching)[:, 0])


def test_a_training_arrives_with_the_chance_that_its_steps_fit_and_that_its_seed_is_not_lost():
    """Of a recipe that needs just as many as there are, every second training arrives."""
    for beyond, chance in ((0.0, 0.5), (1.0, 0.1587), (-2.0, 0.9772)):
        beliefs = beliefs_of(100 * np.exp(0.05 * beyond) * np.ones((4, 2)), SECONDS, latest=np.log([100.0, 100.0]))
        assert beliefs.arriving == pytest.approx(chance, abs=1e-4)
        lost = np.repeat([[1.0], [0.0]], 2, axis=0) * np.ones((4, 2))  # in half of the draws
        assert replace(beliefs, lost=lost).arriving == pytest.approx(chance * 0.5, abs=1e-4)


def test_a_cell_is_near_the_best_in_the_draws_in_which_it_is_within_the_share():
    """Of two workers: 60 to 48, 60 to 72, 60 to 54, and 100 to 103."""
    beliefs = beliefs_of(STEPS, SECONDS)
    assert beliefs.near(2, 0.05).tolist() == [False, True, False, True]
    assert beliefs.near(3, 0.05).tolist() == [True, False, True, True]
    assert beliefs.near(2, 0.12).tolist() == [False, True, True, True]


# --- of a study ---------------------------------------------------------------------------------------------------
RATES = (0.05, 0.1, 0.2, 0.4, 0.8)


@pytest.fixture(scope="module")
def known():
    """The lines of a search of which the first trainings have reached the target at rates of 0.1 and 0.2."""
    search = Looking(spec=spec_of(TEXT, f"sweep.learning_rate={list(RATES)}", "budget.trials=13"))
    search.run()
    return search


def means(search, lines):
    """Mean log steps by rate, over batch sizes, with what they count longer where seeds are lost."""
    beliefs = Looking(spec=search.spec, lines=lines, asked=search.asked).analysis.evidence.beliefs
    found = {}
    for recipe, mean in zip(beliefs.recipes, (beliefs.steps + beliefs.leap).mean(axis=0), strict=True):
        found.setdefault(recipe.learning_rate, []).append(float(mean))
    return np.array([np.mean(found[rate]) for rate in RATES])


def lost_at(search, rate):
    """The line of a training that diverged at a rate."""
    like = next(line for line in search.lines if line["kind"] == "training")
    params = {**like["params"], "learning_rate": rate, "seed": 90}
    look = {**like["look"], "number": 90}
    epochs = [like["epochs"][0], {**like["epochs"][1], "test_accuracy": None}]
    return {**like, "trial_id": "f" * 12, "params": params, "status": "diverged", "epochs": epochs, "look": look}


def test_places_at_and_above_a_rate_where_a_seed_diverged_are_believed_worse(known):
    before, after = means(known, known.lines), means(known, [*known.lines, lost_at(known, 0.8)])
    trained = max(line["params"]["learning_rate"] for line in known.lines if line["kind"] == "training")
    later = after - before
    assert later[RATES.index(0.8)] > 0.4 * LOST
    assert all(later[RATES.index(rate)] < 0.2 * LOST for rate in RATES if rate <= trained)
    assert np.all(np.diff(later) > -0.02), "the higher the rate, the worse"


def test_what_has_reached_the_target_at_a_rate_speaks_for_all_lower_ones(known):
    """It diverged at a rate where another seed arrived: the limit is near, and not far below."""
    trained = max(line["params"]["learning_rate"] for line in known.lines if line["kind"] == "training")
    later = means(known, [*known.lines, lost_at(known, trained)]) - means(known, known.lines)
    assert later[0] < 0.1 * LOST
    assert later[RATES.index(trained)] > later[0]


def test_where_nothing_diverged_nothing_is_assumed_of_high_rates(known):
    evidence = Looking(spec=known.spec, lines=known.lines, asked=known.asked).analysis.evidence
    learnt = evidence.posterior.learnt(evidence.combination, evidence.target)
    drawn = learnt.found.draws[:, [learnt.places[recipe] for recipe in evidence.beliefs.recipes]]
    assert np.array_equal(evidence.beliefs.steps, drawn)


def test_all_stated_cells_are_believed_of_tried_or_not(known):
    beliefs = known.evidence.beliefs
    assert len(beliefs.places) == 2 * 3 * len(RATES)
    assert np.isfinite(beliefs.times).all()
    assert 0 < beliefs.scatter < 0.5
    assert 0 < beliefs.noise < 0.5
    assert math.isfinite(beliefs.means[beliefs.best])
