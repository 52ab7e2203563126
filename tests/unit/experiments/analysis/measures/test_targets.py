"""Time to a target over seeds, and what the study cost."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalestudy.experiments.analysis.measures.cells import gather
from scalestudy.experiments.analysis.measures.metric import ACCURACY
from scalestudy.experiments.analysis.measures.targets import (
    cost_of,
    critical_path_seconds,
    study_cost,
    target_row,
)
from scalestudy.experiments.analysis.measures.trial import Trial
from tests.support.batch_studies import BatchTruth
from tests.support.batch_summaries import study
from tests.support.trials import Law, slow_down

NO_SCATTER = BatchTruth(noise=0.0)
ONE = {"batches": "[256]", "rates": "[0.4]"}


def row_of(*, factors, law=None, epochs=60, drop=(), met_last=(), diverged=(), confirmed=0.8):
    """The row of one cell.

    factors: of each seed's epoch times. drop: seeds that end after two epochs. met_last: seeds whose last epoch is the
    first that meets the target. diverged: seeds that do.
    """
    endings = {f"workers=1 batch=256 lr=0.4 seed={seed}": "diverged" for seed in diverged}
    _, plan, trials = study(NO_SCATTER, seeds=list(range(len(factors))), epochs=epochs, law=law, endings=endings, **ONE)
    for trial, factor in zip(trials, factors, strict=True):
        slow_down(trial, factor)
        if trial["params"]["seed"] in drop:
            trial["epochs"] = trial["epochs"][:2]
        if trial["params"]["seed"] in met_last:
            met = [epoch["test_accuracy"] >= 0.8 for epoch in trial["epochs"]].index(True)
            trial["epochs"] = trial["epochs"][: met + 1]
    (cell,) = gather(plan, trials, ACCURACY)
    return target_row(cell, 0.8, confirmed)


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


def test_a_seed_that_met_it_at_its_last_evaluation_alone_counts_by_the_chance_of_a_confirmation():
    # 1, 1.1 and 1.2 if it was there at 1.1; else 1, 1.2 and some time later
    likely, unlikely = (row_of(factors=[1.0, 1.2, 1.1], met_last=(2,), confirmed=chance) for chance in (0.8, 0.1))
    assert likely["seconds"] == pytest.approx(1.1 * seconds(800))
    assert unlikely["seconds"] == pytest.approx(1.2 * seconds(800))
    assert (likely["n_seeds"], likely["reached"], likely["met_last"], likely["censored"]) == (3, 2, 1, 1)
    row = row_of(factors=[1.0, 1.2], met_last=(1,))  # one of two is no half
    assert row["seconds"] is None
    assert row["why"] == "1 of 2 seeds met 0.8 at the last evaluation only, 1 before"


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
