"""Times to a target, and the Pareto front of times and costs."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalestudy.experiments.analysis.answers.posterior import Posterior
from scalestudy.experiments.analysis.answers.target_times import pareto, times_to
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
