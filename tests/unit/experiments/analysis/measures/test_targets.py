"""Time to a target over seeds, and what the study cost."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalestudy.experiments.analysis.measures.cells import gather
from scalestudy.experiments.analysis.measures.metric import ACCURACY
from scalestudy.experiments.analysis.measures.targets import critical_path_seconds, study_cost, target_row
from tests.support.batch_studies import BatchTruth
from tests.support.batch_summaries import study
from tests.support.trials import Law

NO_SCATTER = BatchTruth(noise=0.0)
ONE = {"batches": "[256]", "rates": "[0.4]"}


def row_of(*, factors, law=None, epochs=60, drop=()):
    """The row of one cell; factors: of each seed's epoch times; drop: seeds that stop before the target."""
    _, plan, trials = study(NO_SCATTER, seeds=list(range(len(factors))), epochs=epochs, law=law, **ONE)
    for trial, factor in zip(trials, factors, strict=True):
        for epoch in trial["epochs"]:
            epoch["train_seconds"] *= factor
        if trial["params"]["seed"] in drop:
            trial["epochs"] = trial["epochs"][:2]
    (cell,) = gather(plan, trials, ACCURACY)
    return target_row(cell, 0.8, 3600.0)


def seconds(steps):
    """Of so many steps of batch 256 on one worker."""
    return steps * sum(Law().phases(1, 256).values())


def test_below_five_seeds_median_and_range():
    row = row_of(factors=[1.0, 1.2, 4.0])
    whole = seconds(800)
    assert row["seconds"] == pytest.approx(1.2 * whole)
    assert row["interval"] == {"kind": "range", "low": pytest.approx(whole), "high": pytest.approx(4 * whole)}
    assert row["cost"] == pytest.approx(row["gpu_seconds"])  # 3,600 an hour
    assert not row["upper_bound"]


def test_from_five_seeds_the_mean_of_the_inner_ones_and_a_t_interval():
    row = row_of(factors=[1.0, 1.1, 1.2, 1.3, 1.4])
    assert row["seconds"] == pytest.approx(1.2 * seconds(800))  # of 1.1, 1.2 and 1.3
    assert row["interval"]["kind"] == "t"
    # logarithms of the factors: mean 0.1755, standard deviation 0.1328; 2.1318 · 0.1328 / √5 = 0.1266
    assert row["interval"]["low"] == pytest.approx(seconds(800) * 1.0501, rel=1e-3)
    assert row["interval"]["high"] == pytest.approx(seconds(800) * 1.3526, rel=1e-3)


def test_one_miss_is_dropped_as_the_slowest_and_two_make_the_cell_invalid():
    row = row_of(factors=[1.0, 1.1, 1.2, 1.3, 1.4], drop=(4,))
    assert row["seconds"] == pytest.approx(1.2 * seconds(800))
    assert (row["reached"], row["n_seeds"]) == (4, 5)
    assert row["interval"] == {"kind": "order", "low": pytest.approx(seconds(800)), "high": None}
    row = row_of(factors=[1.0, 1.1, 1.2, 1.3, 1.4], drop=(3, 4))
    assert (row["seconds"], row["cost"]) == (None, None)
    assert row["why"] == "2 of 5 seeds did not reach 0.8"


def test_the_interval_always_holds_the_typical_time():
    # logarithms of 1, 1, 1, 1, K, K have their t interval below (1 + 1 + 1 + K)/4 for a large K
    row = row_of(factors=[1.0, 1.0, 1.0, 1.0, 1e6, 1e6])
    assert row["interval"]["low"] <= row["seconds"] <= row["interval"]["high"]


def test_met_within_the_first_epoch_is_its_end_and_marked():
    law = Law(samples=256_000)  # 1,000 steps an epoch, of which the target takes 800
    row = row_of(factors=[1.0, 1.0], law=law, epochs=2)
    assert row["seconds"] == pytest.approx(seconds(1000))
    assert row["upper_bound"]


def test_nobody_came_so_far():
    row = row_of(factors=[1.0, 1.0], epochs=3)
    assert row["seconds"] is None
    assert row["interval"] == {"kind": "range", "low": None, "high": None}
    assert not row["upper_bound"]


# --- what the study cost ----------------------------------------------------------------------------------------------


def trial(start, end, train, gpus=1):
    def at(seconds):
        return (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")

    times = {} if start is None else {"started_at": at(start), "ended_at": at(end)}
    return {"train_seconds": train, "params": {"num_gpus": gpus}, **times}


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
    seconds = [each["train_seconds"] for each in trials]
    path = critical_path_seconds(trials)
    assert max(seconds) - 1e-9 <= path <= sum(seconds) + 1e-9
    assert path == pytest.approx(critical_path_seconds(trials[::-1]))


def test_cost_and_overhead():
    cost = study_cost([trial(0, 10, 8.0, gpus=2), trial(10, 15, 4.0)], 18.0, 3.6)
    # training 8 + 4 = 12; GPU-seconds 8 · 2 + 4 = 20; 18 / 12 = 1.5; 20 s at 0.001 a second
    assert (cost["train_seconds"], cost["gpu_seconds"], cost["overhead_ratio"]) == (12.0, 20.0, 1.5)
    assert cost["cost"] == pytest.approx(0.02)


def test_without_a_wall_time_the_trials_own_span_is_used():
    assert study_cost([trial(0, 10, 8.0), trial(10, 16, 4.0)], None)["wall_seconds"] == 16.0


def test_nothing_trained_has_a_why():
    cost = study_cost([], 3.0)
    assert (cost["overhead_ratio"], cost["why"]) == (None, "no trial trained")
    assert "not known" in study_cost([trial(None, None, 2.0)], None)["why"]
