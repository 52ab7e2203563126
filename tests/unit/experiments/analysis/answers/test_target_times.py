"""Times to a target, the Pareto front of times and costs, and what is near enough to the fastest."""

import itertools
import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalestudy.experiments.analysis.answers.posterior import Posterior, Times
from scalestudy.experiments.analysis.answers.target_times import (
    Compared,
    pareto,
    times_to,
)
from scalestudy.experiments.analysis.measures.cells import gather
from scalestudy.experiments.analysis.measures.metric import ACCURACY, StudyMetric
from scalestudy.experiments.plan.plan import cell_of, label
from tests.support.synthetic_studies import study_of
from tests.support.worlds import TARGET, World


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


def compared(draws, workers, *, means=None, unknown=(), sizes=(), tolerance=0.1, confidence=0.5):
    """Options a, b … with these seconds in each draw and these workers.

    means: logarithms; None: the draws'. unknown: seconds of a cell that is no option. sizes: batch sizes, by default an
    octave apart.
    """
    seconds = np.array(draws, dtype=float)
    labels = tuple("abcdefgh"[: seconds.shape[1]])
    means = np.log(seconds).mean(axis=0) if means is None else means
    octaves = [2**power for power in range(5, 5 + len(labels))]
    options = [
        {
            "label": label,
            "seconds": math.exp(mean),
            "worker_seconds": math.exp(mean) * count,
            "params": {"num_gpus": count, "batch_size": size, "learning_rate": 0.1},
        }
        for label, mean, count, size in zip(labels, means, workers, sizes or octaves, strict=True)
    ]
    if len(unknown):
        labels, seconds = ("unknown", *labels), np.column_stack([unknown, seconds])
    logs = np.log(seconds)
    noise = np.full(len(labels), 0.1)
    learnt = tuple((logs, place, 0.0) for place in range(len(labels)))
    times = Times(labels=labels, mean=logs.mean(axis=0), draws=logs, learnt=learnt, of_training=noise, of_run=noise)
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


def test_of_equal_costs_the_faster_is_chosen():
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


def in_doubt(chance, *, seeds=3, noise=0.1, share=1.0, draws=2000):
    """Two cells, b with that chance of being near enough, whose times are known as well as so many seeds tell them.

    share: of the variance that the steps cause; the rest is that of the seconds of a step.
    """
    normal, generator = NormalDist(), np.random.default_rng(3)
    learnt, timed = (
        math.sqrt(part * noise**2 / seeds) * generator.normal(size=(draws, 2)) for part in (share, 1 - share)
    )
    # b − a has the variance 2 · noise² / seeds
    learnt[:, 1] += math.log(1.1) - normal.inv_cdf(chance) * math.sqrt(2 * noise**2 / seeds)
    spreads = [np.full(2, noise * math.sqrt(part)) for part in (share, 1 - share)]
    times = Times(
        labels=("a", "b"),
        mean=learnt.mean(axis=0),
        draws=learnt + timed,
        learnt=((learnt, 0, 0.0), (learnt, 1, 0.0)),
        of_training=spreads[0],
        of_run=spreads[1],
    )
    options = [
        {"label": label, "seconds": 1, "worker_seconds": 1, "params": {"batch_size": size, "learning_rate": 0.1}}
        for label, size in zip(times.labels, (32, 64), strict=True)
    ]
    return Compared.of(options, times, tolerance=0.1, confidence=0.5)


def to_settle(found, *, steps_alone=False):
    return found.seeds_to_settle(found.options[1], found.options[0], steps_alone=steps_alone)


def by_formula(chance, seeds):
    """Of a normal variable, of which so many more seeds than `seeds` leave seeds / (seeds + more) of the variance."""
    normal = NormalDist()
    now, edge = normal.inv_cdf(chance), normal.inv_cdf(0.9)

    def settled(more):
        left = seeds / (seeds + more)
        ends = [(sign * edge * math.sqrt(left) - now) / math.sqrt(1 - left) for sign in (-1, 1)]
        return normal.cdf(ends[0]) + normal.cdf(-ends[1])

    return next(more for more in itertools.count(1) if settled(more) >= 0.5)


@pytest.mark.parametrize(("chance", "seeds"), [(0.5, 3), (0.5, 8), (0.25, 3), (0.75, 5), (0.87, 3)])
@pytest.mark.parametrize("share", [1.0, 0.4])
def test_the_seeds_that_settle_it_are_those_of_the_formula(chance, seeds, share):
    """Of two cells of which nothing else is known, and whether seeds tell the steps alone or also the seconds of one.

    With a chance of 0.5 half of what may be shown settles it where 0.6745 · √(1 − left) = 1.2816 · √left: left is
    0.217, after 3.6 times as many seeds.
    """
    found = in_doubt(chance, seeds=seeds, share=share)
    expected = by_formula(chance, seeds)
    assert to_settle(found) == pytest.approx(expected, abs=max(1.5, 0.25 * expected))


def test_seeds_settle_nothing_that_timings_alone_decide():
    assert to_settle(in_doubt(0.5, share=0.4), steps_alone=True) is None
    assert to_settle(in_doubt(0.5, share=1e-6), steps_alone=True) is None
    assert to_settle(in_doubt(0.5, share=0.97), steps_alone=True) > to_settle(in_doubt(0.5, share=0.97))


def test_more_seeds_than_are_worth_advising_are_none():
    assert to_settle(in_doubt(0.5, seeds=20)) is None


def seen_on(world, trials):
    """The times that trials of a world tell."""
    return times_to(Posterior(world.spec, gather(world.plan, trials, ACCURACY)), [TARGET])[TARGET]


def test_a_finer_range_of_batch_sizes_changes_no_answer():
    """Beside each size three more that take 1 % longer: the least of all would come down by what the draws scatter."""
    generator = np.random.default_rng(0)
    coarse = np.exp(np.log([10.0, 10.6]) + 0.05 * generator.standard_normal((4000, 2)))
    fine = [coarse[:, :1]]
    fine += [10.1 * np.exp(0.05 * generator.standard_normal((4000, 3))), coarse[:, 1:]]
    few = compared(coarse, (2, 1), sizes=(64, 128))
    many = compared(np.hstack(fine), (2, 2, 2, 2, 1), sizes=(64, 72, 88, 104, 128))
    cheap = few.probability["b"]
    assert many.probability["e"] == pytest.approx(cheap, abs=0.02)
    least = np.hstack(fine).min(axis=1)
    assert (coarse[:, 1] <= 1.1 * least).mean() < cheap - 0.1
    assert many.recommended["label"] == "e"


@pytest.mark.chaos
def test_on_drawn_worlds_so_many_seeds_settle_it_about_as_often_as_not():
    """Three seeds, and then as many more of two cells; the tolerance is such that a cheaper cell is in doubt."""
    passed = []
    for draw in range(60):
        drawn = World.draw(np.random.default_rng([78, draw]), noise=0.1, seeds=33)
        world = replace(drawn, workers=(1, 2, 4), batches=drawn.batches[:3], rates=drawn.rates[:3])
        trials = world.trials()
        early = [trial for trial in trials if trial["params"]["seed"] < 3]
        times = seen_on(world, early)
        found = Compared.of(times.options, times.times, tolerance=0.1, confidence=0.5)
        cheaper = [each for each in found.options if each["worker_seconds"] < found.fastest["worker_seconds"]]
        if not cheaper:
            continue
        option = min(cheaper, key=lambda each: each["seconds"])
        over = found.times.only([option["label"]]).draws[:, 0] - found.times.draws.min(axis=1)
        found = replace(found, tolerance=math.expm1(np.quantile(over, (0.2, 0.8)[draw % 2])))
        rival = found.rival(option)
        more = found.seeds_to_settle(option, rival, steps_alone=False)
        if more is None or more > 30:
            continue
        two = (option["label"], rival["label"])
        late = [
            trial
            for trial in trials
            if 3 <= trial["params"]["seed"] < 3 + more and label(cell_of(trial["params"])) in two
        ]
        times = seen_on(world, early + late)
        after = Compared.of(times.options, times.times, tolerance=found.tolerance, confidence=0.5)
        passed.append(not 0.1 < after.probability[option["label"]] < 0.9)
    assert len(passed) >= 15
    assert 0.3 <= np.mean(passed) <= 0.8, passed
