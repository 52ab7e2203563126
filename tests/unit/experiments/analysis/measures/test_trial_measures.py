"""What one trial's record says."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalestudy.experiments.analysis.measures.metric import ACCURACY, StudyMetric
from scalestudy.experiments.analysis.measures.records import (
    best_value,
    curve,
    epoch_phases,
    final_value,
    samples_per_second,
    time_to_target,
    timed_epochs,
    train_seconds,
)

ERROR = StudyMetric(name="error", mode="min", share=False)


def time_to_accuracy(points, target):
    return time_to_target(points, target, ACCURACY)


def trial_of(*epochs, **rest):
    return {"epochs": [{"epoch": number, **epoch} for number, epoch in enumerate(epochs, start=1)], **rest}


def test_time_to_accuracy_is_interpolated():
    points = [(2.0, 0.5), (4.0, 0.7), (6.0, 0.9)]
    # 0.8 lies halfway between 0.7 (4 s) and 0.9 (6 s)
    assert time_to_accuracy(points, 0.8) == pytest.approx(5.0)
    # 0.55 is a quarter of the way from 0.5 (2 s) to 0.7 (4 s)
    assert time_to_accuracy(points, 0.55) == pytest.approx(2.5)
    assert time_to_accuracy(points, 0.9) == 6.0


def test_met_in_the_first_epoch_is_that_epochs_end():
    assert time_to_accuracy([(2.0, 0.5)], 0.4) == 2.0


def test_missed_is_infinite():
    assert time_to_accuracy([(2.0, 0.5)], 0.6) == math.inf
    assert time_to_accuracy([], 0.6) == math.inf


def test_a_dip_does_not_matter_once_the_target_was_met():
    # 0.6 is met between 1 s (0.5) and 2 s (0.7), halfway
    assert time_to_accuracy([(1.0, 0.5), (2.0, 0.7), (3.0, 0.4)], 0.6) == pytest.approx(1.5)


CURVES = st.lists(st.tuples(st.floats(0.01, 10), st.floats(0, 1)), min_size=1, max_size=8)


@given(CURVES, st.floats(0, 1), st.floats(0, 1))
def test_a_higher_target_never_comes_sooner_and_lies_within_its_epoch(steps, first, second):
    elapsed, points = 0.0, []
    for seconds, accuracy in steps:
        elapsed += seconds
        points.append((elapsed, accuracy))
    low, high = sorted((first, second))
    assert time_to_accuracy(points, low) <= time_to_accuracy(points, high)
    time = time_to_accuracy(points, low)
    met = next((index for index, point in enumerate(points) if point[1] >= low), None)
    if met is None:
        assert time == math.inf
    else:
        assert (points[met - 1][0] if met else points[0][0]) <= time <= points[met][0] + 1e-9


def test_the_first_epoch_is_left_out_of_timings_from_three_on():
    epochs = [{"train_seconds": seconds} for seconds in (9.0, 1.0, 2.0)]
    assert [epoch["train_seconds"] for epoch in timed_epochs(trial_of(*epochs))] == [1.0, 2.0]
    assert [epoch["train_seconds"] for epoch in timed_epochs(trial_of(*epochs[:2]))] == [9.0, 1.0]


def test_the_first_record_of_an_epoch_wins():
    trial = {"epochs": [{"epoch": 2, "train_seconds": 2.0}, {"epoch": 1, "train_seconds": 1.0}, {"epoch": 2}]}
    assert train_seconds(trial) == 3.0


@given(CURVES, st.floats(0, 1))
def test_a_falling_metric_is_a_rising_one_turned_over(steps, target):
    points = [(seconds * number, value) for number, (seconds, value) in enumerate(sorted(steps), start=1)]
    turned = [(seconds, -value) for seconds, value in points]
    assert time_to_target(turned, -target, ERROR) == time_to_accuracy(points, target)


def test_time_to_an_error_is_interpolated_as_it_falls():
    # 0.2 is met a third of the way from 0.3 (2 s) to 0.0 (8 s)
    assert time_to_target([(1.0, 0.9), (2.0, 0.3), (8.0, 0.0)], 0.2, ERROR) == pytest.approx(4.0)
    assert time_to_target([(1.0, 0.2)], 0.2, ERROR) == 1.0  # as much as the target is enough
    assert time_to_target([(1.0, 0.9)], 0.2, ERROR) == math.inf


def test_accuracies():
    trial = trial_of({"test_accuracy": 0.5}, {"test_accuracy": 0.9}, {"test_accuracy": 0.8}, {"test_accuracy": None})
    assert (final_value(trial, ACCURACY), best_value(trial, ACCURACY)) == (0.8, 0.9)
    assert (final_value({}, ACCURACY), best_value({"epochs": None}, ACCURACY)) == (None, None)


def test_the_best_error_is_the_smallest():
    trial = trial_of({"test_error": 0.5, "test_accuracy": 0.1}, {"test_error": 0.1}, {"test_error": 0.2})
    assert (final_value(trial, ERROR), best_value(trial, ERROR)) == (0.2, 0.1)
    assert best_value(trial_of({"test_accuracy": 0.5}), ERROR) is None


@pytest.mark.parametrize("seconds", [0, -1.0, None, float("nan"), "1", True])
def test_what_is_no_duration_is_not_measured(seconds):
    trial = trial_of({"train_seconds": seconds, "test_accuracy": 0.5, "samples": 10})
    assert (timed_epochs(trial), curve(trial, ACCURACY), train_seconds(trial)) == ([], [], 0.0)
    assert samples_per_second(trial["epochs"][0]) is None


def test_throughput_as_recorded_or_from_the_epoch():
    assert samples_per_second({"samples_per_second": 7.0, "samples": 10, "train_seconds": 2.0}) == 7.0
    assert samples_per_second({"samples_per_second": None, "samples": 10, "train_seconds": 2.0}) == 5.0


def test_phases_are_seconds_a_step():
    phases = {"data": 1.0, "forward_backward": 2.0, "gradient_sync": 0.0, "optimizer": 4.0}
    # an epoch of 10 steps
    expected = {"data": 0.1, "forward_backward": 0.2, "gradient_sync": 0.0, "optimizer": 0.4}
    assert epoch_phases({"phases": phases, "steps": 10}) == expected
    assert epoch_phases({"phases": {**phases, "data": None}, "steps": 10}) is None
    assert epoch_phases({"phases": None, "steps": 10}) is None
    assert epoch_phases({"phases": phases, "steps": 0}) is None
