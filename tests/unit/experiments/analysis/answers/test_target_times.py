"""Times to a target, the Pareto front of times and costs, and what is near enough to the fastest."""

import itertools
import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalestudy.experiments.analysis.answers.posterior import Posterior, Times
from scalestudy.experiments.analysis.answers.target_times import (
    MOST_SEEDS,
    Compared,
    pareto,
    seeds_to_settle,
    times_to,
)
from scalestudy.experiments.analysis.measures.cells import gather
from scalestudy.experiments.analysis.measures.metric import StudyMetric
from tests.support.synthetic_studies import study_of


def option(seconds, worker_seconds):
    return {"seconds": seconds, "worker_seconds": worker_seconds}


def test_the_front_leaves_out_what_is_beaten():
    options = [option(4, 4), option(2, 5), option(3, 6), option(5, 4), option(1, 9)]
    assert pareto(options) == [option(1, 9), option(2, 5), option(4, 4)]


POINTS = st.lists(st.tuples(st.floats(0.1, 100), st.floats(0.1, 100)), min_size=1, max_size=20)


@given(POINTS)
def test_the_front_dominates_everything_and_nothing_in_itself(points):
    options = [option(*point) for point in points]
    front = pareto(options)
    assert front[0]["seconds"] == min(point[0] for point in points)
    assert front[-1]["worker_seconds"] == min(point[1] for point in points)
    for each in options:
        assert any(f["seconds"] <= each["seconds"] and f["worker_seconds"] <= each["worker_seconds"] for f in front)
    for before, after in itertools.pairwise(front):
        assert before["seconds"] < after["seconds"]
        assert before["worker_seconds"] > after["worker_seconds"]


@given(POINTS, st.floats(0.1, 10), st.floats(0.1, 10), st.randoms())
def test_the_front_does_not_hang_on_units_or_order(points, time, cost, shuffler):
    front = pareto([option(*point) for point in points])
    shuffled = [option(seconds * time, spent * cost) for seconds, spent in points]
    shuffler.shuffle(shuffled)
    assert [each["seconds"] * time for each in front] == pytest.approx([each["seconds"] for each in pareto(shuffled)])


def test_a_median_that_only_its_own_seeds_give_is_refused_by_those_that_missed():
    """One of two seeds arrives after the other has ended: measured alone that is a median, but half of them missed."""
    spec, plan, trials = study_of("name: x\ntrain: {epochs: 4}\nsweep: {batch_size: [32, 64], seed: [0, 1]}")
    for trial, values, seconds in zip(
        trials, ([0.1, 0.2, 0.9, 0.9], [0.1, 0.2, 0.9, 0.1], [0.1] * 4, [0.1] * 4), (2.0, 1.0, 1.0, 1.0), strict=True
    ):
        for epoch, value in zip(trial["epochs"], values, strict=True):
            epoch |= {"test_accuracy": value, "train_seconds": seconds}
    cells = gather(plan, trials, StudyMetric.of(spec.workload))
    row, _ = times_to(Posterior(spec, cells), [0.8])[0.8].rows
    assert row["measured_seconds"] is not None
    assert (row["seconds"], row["why"]) == (None, "1 of 2 seeds did not reach 0.8")


# --- what is near enough ----------------------------------------------------------------------------------------------


def compared(draws, workers, *, means=None, unknown=(), tolerance=0.1, confidence=0.5):
    """Options a, b … with these seconds in each draw and these workers.

    means: logarithms; None: the draws'. unknown: seconds of a cell that is no option.
    """
    seconds = np.array(draws, dtype=float)
    labels = tuple("abcdefgh"[: seconds.shape[1]])
    means = np.log(seconds).mean(axis=0) if means is None else means
    options = [
        {
            "label": label,
            "seconds": math.exp(mean),
            "worker_seconds": math.exp(mean) * count,
            "params": {"num_gpus": count},
        }
        for label, mean, count in zip(labels, means, workers, strict=True)
    ]
    if len(unknown):
        labels, seconds = ("unknown", *labels), np.column_stack([unknown, seconds])
    logs = np.log(seconds)
    times = Times(labels=labels, mean=logs.mean(axis=0), draws=logs, learnt=logs)
    return Compared.of(options, times, tolerance=tolerance, confidence=confidence)


FOUR = [[10, 10.5], [10, 10.5], [10, 12], [10, 9]]  # b has half the workers, and is within 10 % of the least in three


def test_the_cheapest_cell_is_chosen_that_is_near_enough_in_so_many_draws():
    found = compared(FOUR, (2, 1))
    assert found.probability == {"a": 0.75, "b": 0.75}  # in the last draw a takes 10/9 of b
    assert (found.fastest["label"], found.recommended["label"]) == ("a", "b")
    assert found.ratio(found.recommended) == pytest.approx((10.5 * 10.5 * 12 * 9) ** 0.25 / 10)
    assert compared(FOUR, (2, 1), confidence=0.75).recommended["label"] == "b"
    assert compared(FOUR, (2, 1), confidence=0.8).recommended["label"] == "a"
    assert compared(FOUR, (2, 1), tolerance=0.2).probability == {"a": 1.0, "b": 1.0}


def test_the_fastest_is_recommended_where_nothing_is_near_enough():
    """The least time is another cell's in each draw, so that none is near it in half of them."""
    found = compared([[10, 13, 13], [13, 10, 13], [14, 14, 10]], (3, 2, 1))
    assert set(found.probability.values()) == {1 / 3}
    assert (found.fastest["label"], found.recommended["label"]) == ("c", "c")
    dear = compared([[10, 13, 13], [13, 10, 13], [14, 14, 10]], (1, 2, 3))
    assert (dear.fastest["label"], dear.recommended["label"]) == ("c", "c"), "no cheaper one is"


def test_nothing_is_recommended_that_is_slower_and_dearer_than_the_fastest():
    """a has the least mean, and is near the least in two draws of five; b is always, and costs more."""
    found = compared([[5, 10, 12], [5, 10, 12], [12, 10, 12], [12, 10, 12], [12, 10, 12]], (1, 2, 2), tolerance=1.0)
    assert found.recommended["label"] == found.fastest["label"] == "a"
    found = compared([[7, 10], [7, 10], [12, 10], [12, 10], [12, 10]], (1, 2), tolerance=0.1)
    assert found.probability == {"a": 0.4, "b": 0.6}
    assert found.recommended["label"] == found.fastest["label"] == "a"


def test_of_equal_costs_the_faster_is_chosen_and_of_equal_cells_the_first():
    found = compared([[10, 9.5, 9.5]], (9.5, 10, 10), tolerance=0.1)
    assert found.options[0]["worker_seconds"] == pytest.approx(found.options[1]["worker_seconds"])
    assert found.recommended["label"] == "b"


def test_one_cell_is_near_enough_to_itself():
    found = compared([[10], [20]], (4,), tolerance=0.0)
    assert found.probability == {"a": 1.0}
    assert found.recommended is found.fastest is found.options[0]
    assert found.rival(found.fastest) is None
    assert found.ties(found.fastest, "fastest") == []


def test_a_cell_that_may_not_be_chosen_is_not_the_fastest_of_any_draw():
    """It has too many workers, or so many of its seeds are lost that its median is not known."""
    assert compared(FOUR, (2, 1), unknown=[1, 1, 1, 1]).probability == {"a": 0.75, "b": 0.75}
    assert compared(FOUR, (2, 1), unknown=[1, 1, 1, 1]).recommended["label"] == "b"


def test_the_rival_is_the_fastest_of_most_draws_in_which_a_cell_is_not_near_enough():
    found = compared([[20, 10, 15], [20, 10, 15], [20, 15, 10], [20, 30, 30], [20, 30, 31]], (1, 2, 2))
    assert found.rival(found.options[0])["label"] == "b"
    assert found.rival(found.options[1])["label"] == "a", "twice, and c once"


def test_noise_that_two_cells_share_does_not_part_them():
    shared = np.exp(np.random.default_rng(1).normal(0, 0.5, (1000, 1)))
    assert compared(shared * [10, 10.5], (2, 1)).probability == {"a": 1.0, "b": 1.0}


@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.tuples(st.integers(0, 8), st.integers(1, 16)), min_size=1, max_size=6),
    st.floats(0.0, 3.0),
    st.floats(0.0, 3.0),
    st.floats(0.5, 0.99),
    st.booleans(),
)
def test_more_noise_never_makes_the_choice_cheaper(seed, cells, noise, more, confidence, common):
    """Means fixed, from a confidence of 0.5 on, all noise scaled alike, symmetric about the means, of any correlation.

    A cell c is near enough where c − b ≤ log(1 + tolerance) for every other cell b. If one of these differences has a
    mean above that, symmetry keeps its chance below 0.5. If none has, each condition c − b − mean ≤ a with a ≥ 0 is met
    by fewer draws the wider the noise is. So fewer cells are near enough the more noise there is; the fastest, by the
    means, always counts.
    """
    generator = np.random.default_rng(seed)
    # no difference of two means is log(1.1) itself
    means, workers = np.array([0.03 * steps for steps, _ in cells]), [count for _, count in cells]
    half = generator.normal(size=(200, len(cells))) @ generator.normal(size=(len(cells), len(cells)))
    half += generator.normal(size=(200, 1)) * (5 if common else 0)
    symmetric = np.vstack([np.zeros((1, len(cells))), half, -half])

    def cost(scale):
        draws = np.exp(means + 0.1 * scale * symmetric)
        found = compared(draws, workers, means=means, confidence=confidence)
        return found.recommended["worker_seconds"]

    assert cost(noise + more) >= cost(noise) * (1 - 1e-9)


def test_below_a_half_noise_may_make_the_choice_cheaper():
    """A cell beyond the tolerance: the more uncertain, the likelier near enough, and never as likely as not."""
    noise = np.random.default_rng(1).normal(size=(1001, 1))
    noise = np.vstack([[[0.0]], noise, -noise])
    chances = []
    for scale in (0.01, 0.1, 0.4):
        draws = np.hstack([np.full_like(noise, 10.0), 12 * np.exp(scale * noise)])
        quiet, found = (compared(draws, (2, 1), confidence=confidence) for confidence in (0.5, 0.3))
        assert quiet.recommended["label"] == "a"
        chances.append((found.probability["b"], found.recommended["label"]))
    assert chances[0][0] < chances[1][0] < chances[2][0] < 0.5
    assert (chances[0][1], chances[2][1]) == ("a", "b")


# --- the seeds that settle it -----------------------------------------------------------------------------------------


def settled(chance, seeds, more, narrowed, draws=200_000):
    """The share of drawn futures in which a chance leaves 0.1 to 0.9 after so many more seeds."""
    generator = np.random.default_rng(2)
    lost = narrowed * more / (seeds + more)
    normal = NormalDist()
    mean = -normal.inv_cdf(chance)  # the chance that a variable of variance 1 about it is below 0
    after = np.abs(mean + math.sqrt(lost) * generator.normal(size=draws)) / math.sqrt(1 - lost)
    return float((after >= normal.inv_cdf(0.9)).mean())


@given(st.floats(0.11, 0.89), st.integers(1, 10), st.floats(0.05, 1.0))
def test_the_seeds_that_settle_it_are_the_fewest_that_are_likely_to(chance, seeds, narrowed):
    more = seeds_to_settle(chance, seeds, narrowed)
    if more is None:
        assert settled(chance, seeds, MOST_SEEDS, narrowed, 10_000) < 0.52
        return
    assert settled(chance, seeds, more, narrowed, 10_000) > 0.48
    if more > 1:
        assert settled(chance, seeds, more - 1, narrowed, 10_000) < 0.52


def test_seeds_settle_nothing_that_timings_alone_decide():
    assert seeds_to_settle(0.5, 3, 0.0) is None
    # half of what lies open needs |z| · √lost ≥ 1.2816 · √(1 − lost), with |z| at its median 0.6745: lost = 0.783
    assert seeds_to_settle(0.5, 3, 1.0) == math.ceil(3 * 0.783 / (1 - 0.783))
    assert seeds_to_settle(0.5, 3, 0.78) is None
    assert seeds_to_settle(0.88, 3, 1.0) == 1
