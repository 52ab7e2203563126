"""What the study cost."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalestudy.experiments.analysis.measures.targets import critical_path_seconds, study_cost


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
