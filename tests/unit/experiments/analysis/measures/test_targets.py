"""Time to a target over seeds, and what the study cost."""

import math
import statistics
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalestudy.experiments.analysis.measures.cells import gather
from scalestudy.experiments.analysis.measures.metric import ACCURACY
from scalestudy.experiments.analysis.measures.targets import (
    cost_of,
    critical_path_seconds,
    median_time,
    study_cost,
    target_row,
)
from scalestudy.experiments.analysis.measures.trial import Trial
from tests.support.batch_studies import BatchTruth
from tests.support.batch_summaries import study
from tests.support.trials import Law, slow_down

NO_SCATTER = BatchTruth(noise=0.0)
ONE = {"batches": "[256]", "rates": "[0.4]"}


def row_of(*, factors, law=None, epochs=60, drop=(), diverged=()):
    """The row of one cell.

    factors: of each seed's epoch times. drop: seeds that end after two epochs. diverged: seeds that do.
    """
    endings = {f"workers=1 batch=256 lr=0.4 seed={seed}": "diverged" for seed in diverged}
    _, plan, trials = study(NO_SCATTER, seeds=list(range(len(factors))), epochs=epochs, law=law, endings=endings, **ONE)
    for trial, factor in zip(trials, factors, strict=True):
        slow_down(trial, factor)
        if trial["params"]["seed"] in drop:
            trial["epochs"] = trial["epochs"][:2]
    (cell,) = gather(plan, trials, ACCURACY)
    return target_row(cell, 0.8)


def seconds(steps):
    """Of so many steps of batch 256 on one worker."""
    return steps * sum(Law().phases(1, 256).values())


@pytest.mark.parametrize(
    ("factors", "median"), [([1.0, 1.2, 4.0], 1.2), ([1.4, 1.0, 1.2, 1.1, 9.0], 1.2), ([1.0, 1.2], 1.1)]
)
def test_the_time_is_the_median_over_seeds_however_many(factors, median):
    row = row_of(factors=factors)
    assert row["seconds"] == pytest.approx(median * seconds(800))
    assert (row["reached"], row["censored"], row["upper_bound"]) == (len(factors), 0, False)


def test_a_seed_that_ended_before_the_target_says_no_more_than_that_it_took_longer():
    # it ended after two epochs, before the others had arrived: the median is that of the two others
    row = row_of(factors=[1.0, 1.2, 1.0], drop=(2,))
    assert row["seconds"] == pytest.approx(1.1 * seconds(800))
    assert (row["n_seeds"], row["reached"], row["censored"], row["cut"]) == (3, 2, 1, 0)


def test_a_diverged_seed_never_arrives():
    row = row_of(factors=[1.0, 1.2, 1.0], diverged=(2,))
    assert row["seconds"] == pytest.approx(1.2 * seconds(800))  # the middle one of 1, 1.2 and never
    assert (row["n_seeds"], row["reached"], row["censored"]) == (3, 2, 0)
    row = row_of(factors=[1.0, 1.2, 1.0, 1.0], diverged=(2, 3))
    assert row["seconds"] is None
    assert row["why"] == "2 of 4 seeds did not reach 0.8"


def test_met_within_the_first_epoch_is_its_end_and_marked():
    law = Law(samples=256_000)  # 1,000 steps an epoch, of which the target takes 800
    row = row_of(factors=[1.0, 1.0], law=law, epochs=2)
    assert row["seconds"] == pytest.approx(seconds(1000))
    assert row["upper_bound"]


def test_where_nobody_came_so_far_the_time_is_not_extrapolated():
    row = row_of(factors=[1.0, 1.5], epochs=3)
    assert row["seconds"] is None
    assert (row["n_seeds"], row["reached"], row["censored"]) == (2, 0, 2)
    within = seconds(1.5 * 3 * 80)  # steps an epoch of batch 256
    assert row["why"] == f"2 of 2 seeds did not reach 0.8 within {within:.3g} s"
    assert not row["upper_bound"]


# --- Kaplan and Meier's median ----------------------------------------------------------------------------------------


def test_the_median_of_times_some_of_which_were_cut_off():
    # five: an event at 1 leaves 4/5, one of three left at 3 leaves 4/5 · 2/3 = 8/15, one of two at 4 leaves 4/15
    assert median_time([(1.0, True), (2.0, False), (3.0, True), (4.0, True), (5.0, False)]) == 4.0
    # four: 3/4 at 1, exactly half at 2; the median is the middle of 2 and the next event, at 4
    assert median_time([(1.0, True), (2.0, True), (3.0, False), (4.0, True)]) == 3.0
    # an event and an end at one time: the event is first, so that it counts among two: half; no later event
    assert median_time([(2.0, False), (2.0, True)]) == math.inf
    assert median_time([(1.0, True), (2.0, True), (math.inf, True)]) == 2.0
    assert median_time([(1.0, True), (math.inf, True), (math.inf, True)]) == math.inf
    assert median_time([(1.0, True), (2.0, False), (3.0, False)]) == math.inf  # two thirds outlast what was seen
    assert median_time([]) == math.inf


TIMES = st.lists(st.floats(0.1, 100), min_size=1, max_size=12)


@given(TIMES)
def test_with_every_event_known_it_is_the_ordinary_median(times):
    assert median_time([(time, True) for time in times]) == pytest.approx(statistics.median(times))


@given(TIMES, st.data())
def test_to_be_cut_off_never_makes_it_earlier(times, data):
    cut = data.draw(st.lists(st.booleans(), min_size=len(times), max_size=len(times)))
    known = median_time([(time, True) for time in times])
    assert median_time([(time, not ends) for time, ends in zip(times, cut, strict=True)]) >= known * (1 - 1e-12)


# --- what the study cost ----------------------------------------------------------------------------------------------


def trial(start, end, train, gpus=1):
    def at(seconds):
        return (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")

    times = {} if start is None else {"started_at": at(start), "ended_at": at(end)}
    return Trial.of({"train_seconds": train, "params": {"num_gpus": gpus}, **times})


def test_one_at_a_time_the_critical_path_is_the_sum():
    assert critical_path_seconds([trial(0, 10, 8.0), trial(10, 15, 4.0), trial(16, 20, 3.0)]) == 15.0


def test_of_trials_side_by_side_the_heavier_chain_counts():
    # 0–10 and 10–20 after one another: 8 + 7; beside them 0–20: 12
    assert critical_path_seconds([trial(0, 10, 8.0), trial(0, 20, 12.0), trial(10, 20, 7.0)]) == 15.0
    assert critical_path_seconds([trial(0, 10, 8.0), trial(0, 20, 18.0), trial(10, 20, 7.0)]) == 18.0


def test_trials_without_times_count_one_after_the_other():
    assert critical_path_seconds([trial(None, None, 2.0), trial(0, 5, 4.0)]) == 6.0


SPANS = st.lists(st.tuples(st.floats(0, 100), st.floats(1, 50), st.floats(0, 1)), min_size=1, max_size=12)


@given(SPANS)
def test_the_path_lies_between_the_longest_trial_and_the_sum(spans):
    trials = [trial(start, start + length, length * share) for start, length, share in spans]
    seconds = [each.train_seconds for each in trials]
    path = critical_path_seconds(trials)
    assert max(seconds) - 1e-9 <= path <= sum(seconds) + 1e-9
    assert path == pytest.approx(critical_path_seconds(trials[::-1]))


def test_cost_and_overhead():
    cost = study_cost([trial(0, 10, 8.0, gpus=2), trial(10, 15, 4.0)], 18.0, 3.6)
    # training 8 + 4 = 12; worker-seconds 8 · 2 + 4 = 20; 18 / 12 = 1.5; 20 s at 0.001 a second
    assert (cost["train_seconds"], cost["worker_seconds"], cost["overhead_ratio"]) == (12.0, 20.0, 1.5)
    assert cost["cost"] == pytest.approx(0.02)


def test_without_a_wall_time_the_trials_own_span_is_used():
    assert study_cost([trial(0, 10, 8.0), trial(10, 16, 4.0)], None)["wall_seconds"] == 16.0


def test_nothing_trained_has_a_why():
    cost = study_cost([], 3.0)
    assert (cost["overhead_ratio"], cost["why"]) == (None, "no trial trained")
    assert "not known" in study_cost([trial(None, None, 2.0)], None)["why"]


def test_cost():
    # 1800 worker-seconds are half an hour, at 2.5 an hour
    assert cost_of(1800.0, 2.5) == 1.25
    assert cost_of(None, 2.5) is None
    assert cost_of(1.0, None) is None
