"""What one trial's record says; damaged lines of `trials.jsonl` do not stop a report."""

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalestudy.experiments.analysis import recommend, summarise
from scalestudy.experiments.analysis.measures.metric import ACCURACY, StudyMetric
from scalestudy.experiments.analysis.measures.trial import Epoch, Trial
from scalestudy.experiments.analysis.measures.usable import (
    best_value,
    curve,
    final_value,
    reached_at_once,
    time_to_target,
    usable,
)
from scalestudy.experiments.report import write_report
from tests.support.report_pages import check
from tests.support.synthetic_studies import folder_of, study_of, words_of

TEXT = """
    name: x
    train: {epochs: 5}
    targets: {accuracy: [0.3]}
    sweep: {num_gpus: [1, 2], batch_size: [32, 64], learning_rate: [0.1, 0.2], seed: [0, 1]}
"""


def without(key):
    def change(trial):
        del trial["params"][key]

    return change


def with_value(key, value):
    return lambda trial: trial["params"].update({key: value})


DAMAGES = {
    "no rate": without("learning_rate"),
    "no seed": without("seed"),
    "no workers": without("num_gpus"),
    "no batch": without("batch_size"),
    "rate in words": with_value("learning_rate", "high"),
    "rate null": with_value("learning_rate", None),
    "no whole workers": with_value("num_gpus", 1.5),
    "workers zero": with_value("num_gpus", 0),
    "seed in words": with_value("seed", "one"),
    "params null": lambda trial: trial.update(params=None),
    "params a list": lambda trial: trial.update(params=[1]),
    "unknown status": lambda trial: trial.update(status="lost"),
    "status null": lambda trial: trial.update(status=None),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_an_incomplete_record_is_left_out(damage):
    _, _, trials = study_of(TEXT)
    others = usable([*trials[:3], *trials[4:]])
    damage(trials[3])
    chosen = usable(trials)
    assert chosen.trials == others.trials
    assert chosen.left_out == 1
    assert trials[3]["trial_id"] in chosen.ended, "it is no trial that is still to run"


def test_that_a_record_is_left_out_is_told():
    spec, plan, trials = study_of(TEXT)
    kept = summarise(spec, plan, [*trials[:3], *trials[4:]])
    DAMAGES["params null"](trials[3])
    summary = summarise(spec, plan, trials)
    json.dumps(summary, allow_nan=False)
    assert summary["cells"] == kept["cells"]
    assert summary["timings"] == kept["timings"]
    assert (summary["trials"]["finished"], summary["trials"]["not_run"]) == (15, 0)
    assert words_of(summary)[0].startswith("1 record of trials.jsonl lacks")
    assert recommend(spec, plan, trials, accuracy=0.3)["choice"] == kept["recommendation"]["choice"]


def test_the_report_is_written_all_the_same(tmp_path):
    damages = iter([*DAMAGES.values(), lambda trial: trial["epochs"][1].pop("epoch")])

    def damage(trial):
        """A damage a trial; the others are whole."""
        next(damages, lambda _: None)(trial)

    text = TEXT.replace("seed: [0, 1]", "seed: [0, 1, 2, 3]")
    folder = folder_of(tmp_path / "x", text, change=damage)
    page = check(write_report(folder).read_text("utf-8"))
    assert f"{len(DAMAGES)} records of trials.jsonl lack" in page.shown


def test_whole_records_are_all_used():
    _, _, lines = study_of(TEXT)
    chosen = usable(lines)
    assert [trial.trial_id for trial in chosen.trials] == [line["trial_id"] for line in lines]
    assert (chosen.left_out, usable(chosen) is chosen) == (0, True)


@pytest.mark.parametrize("damage", [lambda epoch: epoch.pop("epoch"), lambda epoch: epoch.update(epoch=None)])
def test_epochs_without_a_number_have_that_of_their_place(damage):
    spec, plan, trials = study_of(TEXT)
    truth = summarise(spec, plan, trials)
    for trial in trials:
        for epoch in trial["epochs"]:
            damage(epoch)
    assert summarise(spec, plan, trials) == truth


def test_what_is_no_record_of_an_epoch_is_passed_over():
    (epoch,) = Trial.of({"epochs": [None, {"epoch": 2, "steps": 3}, 7]}).epochs
    assert (epoch.number, epoch.steps) == (2, 3)
    assert Trial.of({"epochs": None}).epochs == ()


# --- what one trial's record says -------------------------------------------------------------------------------------


ERROR = StudyMetric(name="error", mode="min", share=False)


def time_to_accuracy(points, target):
    return time_to_target(points, target, ACCURACY)


def trial_of(*epochs, **rest):
    return Trial.of({"epochs": [{"epoch": number, **epoch} for number, epoch in enumerate(epochs, start=1)], **rest})


def epoch_of(**record):
    return Epoch.of(record, 1)


def test_time_to_accuracy_is_interpolated():
    points = [(2.0, 0.5), (4.0, 0.7), (6.0, 0.9), (8.0, 0.95)]
    # 0.8 lies halfway between 0.7 (4 s) and 0.9 (6 s)
    assert time_to_accuracy(points, 0.8) == pytest.approx(5.0)
    # 0.55 is a quarter of the way from 0.5 (2 s) to 0.7 (4 s)
    assert time_to_accuracy(points, 0.55) == pytest.approx(2.5)
    assert time_to_accuracy(points, 0.9) == 6.0


def test_met_in_the_first_epoch_is_that_epochs_end():
    points = [(2.0, 0.5), (4.0, 0.45), (6.0, 0.1)]
    assert (time_to_accuracy(points, 0.4), reached_at_once(points, 0.4, ACCURACY)) == (2.0, True)
    assert not reached_at_once(points, 0.46, ACCURACY), "met by the first alone"
    assert not reached_at_once([], 0.4, ACCURACY)


def test_missed_is_infinite():
    assert time_to_accuracy([(2.0, 0.5)], 0.6) == math.inf
    assert time_to_accuracy([(2.0, 0.5)], 0.4) == math.inf, "met once, with no evaluation that confirms it"
    assert time_to_accuracy([], 0.6) == math.inf


def test_of_two_consecutive_evaluations_that_meet_it_the_first_counts():
    # 0.6 is met once at 2 s, and reached between 3 s (0.4) and 4 s (0.8), half way; the dip after that does not matter
    points = [(1.0, 0.5), (2.0, 0.7), (3.0, 0.4), (4.0, 0.8), (5.0, 0.6), (6.0, 0.1)]
    assert time_to_accuracy(points, 0.6) == pytest.approx(3.5)


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
    pairs = itertools.pairwise(points)
    met = next((index for index, pair in enumerate(pairs) if min(pair[0][1], pair[1][1]) >= low), None)
    if met is None:
        assert time == math.inf
    else:
        assert (points[met - 1][0] if met else points[0][0]) <= time <= points[met][0] + 1e-9


def test_the_first_epoch_is_left_out_of_timings_from_three_on():
    epochs = [{"train_seconds": seconds} for seconds in (9.0, 1.0, 2.0)]
    assert [epoch.train_seconds for epoch in trial_of(*epochs).timed] == [1.0, 2.0]
    assert [epoch.train_seconds for epoch in trial_of(*epochs[:2]).timed] == [9.0, 1.0]


def test_the_first_record_of_an_epoch_wins():
    epochs = [{"epoch": 2, "train_seconds": 2.0}, {"epoch": 1, "train_seconds": 1.0}, {"epoch": 2}]
    assert Trial.of({"epochs": epochs}).train_seconds == 3.0


@given(CURVES, st.floats(0, 1))
def test_a_falling_metric_is_a_rising_one_turned_over(steps, target):
    points = [(seconds * number, value) for number, (seconds, value) in enumerate(sorted(steps), start=1)]
    turned = [(seconds, -value) for seconds, value in points]
    assert time_to_target(turned, -target, ERROR) == time_to_accuracy(points, target)


def test_time_to_an_error_is_interpolated_as_it_falls():
    # 0.2 is met a third of the way from 0.3 (2 s) to 0.0 (8 s)
    assert time_to_target([(1.0, 0.9), (2.0, 0.3), (8.0, 0.0), (9.0, 0.1)], 0.2, ERROR) == pytest.approx(4.0)
    assert time_to_target([(1.0, 0.2), (2.0, 0.2)], 0.2, ERROR) == 1.0  # as much as the target is enough
    assert time_to_target([(1.0, 0.9)], 0.2, ERROR) == math.inf


def test_accuracies():
    trial = trial_of({"test_accuracy": 0.5}, {"test_accuracy": 0.9}, {"test_accuracy": 0.8}, {"test_accuracy": None})
    assert (final_value(trial, ACCURACY), best_value(trial, ACCURACY)) == (0.8, 0.9)
    assert (final_value(Trial.of({}), ACCURACY), best_value(trial_of({}), ACCURACY)) == (None, None)


def test_the_best_error_is_the_smallest():
    trial = trial_of({"test_error": 0.5, "test_accuracy": 0.1}, {"test_error": 0.1}, {"test_error": 0.2})
    assert (final_value(trial, ERROR), best_value(trial, ERROR)) == (0.2, 0.1)
    assert best_value(trial_of({"test_accuracy": 0.5}), ERROR) is None


@pytest.mark.parametrize("seconds", [0, -1.0, None, float("nan"), "1", True])
def test_what_is_no_duration_is_not_measured(seconds):
    trial = trial_of({"train_seconds": seconds, "test_accuracy": 0.5, "samples": 10})
    assert (trial.timed, curve(trial, ACCURACY), trial.train_seconds) == ((), [], 0.0)
    assert trial.epochs[0].samples_per_second is None


def test_steps_are_those_recorded_or_follow_from_the_examples():
    assert epoch_of(steps=7, samples=100).steps_at(32) == 7
    for lost in (None, 0, float("nan")):
        assert epoch_of(steps=lost, samples=100).steps_at(32) == 4  # 3 of 32, and one of 4
    assert epoch_of(samples=0).steps_at(32) is None


def test_throughput_as_recorded_or_from_the_epoch():
    assert epoch_of(samples_per_second=7.0, samples=10, train_seconds=2.0).samples_per_second == 7.0
    assert epoch_of(samples_per_second=None, samples=10, train_seconds=2.0).samples_per_second == 5.0


def test_tokens_a_second_as_recorded_or_from_the_rate():
    rated = {"samples_per_second": 7.0, "samples": 10}
    assert epoch_of(**rated, tokens=30, tokens_per_second=22.0).tokens_per_second == 22.0
    assert epoch_of(**rated, tokens=30, tokens_per_second=None).tokens_per_second == pytest.approx(21.0)  # 7 · 30 / 10
    assert epoch_of(**rated, tokens=None).tokens_per_second is None
    assert epoch_of(samples_per_second=None, samples=10, train_seconds=None, tokens=30).tokens_per_second is None


def test_phases_are_seconds_a_step():
    phases = {"data": 1.0, "forward_backward": 2.0, "gradient_sync": 0.0, "optimizer": 4.0}
    # an epoch of 10 steps
    expected = {"data": 0.1, "forward_backward": 0.2, "gradient_sync": 0.0, "optimizer": 0.4}
    assert epoch_of(phases=phases, steps=10).phases == expected
    assert epoch_of(phases={**phases, "data": None}, steps=10).phases is None
    assert epoch_of(phases=None, steps=10).phases is None
    assert epoch_of(phases=phases, steps=0).phases is None


KEYS = ("trial_id", "kind", "params", "status", "flags", "train_seconds", "world", "error", "details", "fingerprint")
KEYS += ("started_at", "ended_at")
EPOCH_KEYS = ("epoch", "train_seconds", "steps", "samples", "samples_per_second", "tokens", "phases", "test_accuracy")
DAMAGED = (None, "x", [], {}, True, float("nan"), float("inf"), -1, 0, 7)


@given(
    st.dictionaries(st.sampled_from(KEYS), st.sampled_from(DAMAGED)),
    st.dictionaries(st.sampled_from(EPOCH_KEYS), st.sampled_from(DAMAGED)),
)
def test_any_value_may_be_damaged(line, epoch):
    trial = Trial.of({**line, "epochs": [epoch]})
    assert trial.train_seconds >= 0
    (read,) = trial.epochs
    rates = [read.samples_per_second, read.tokens_per_second]
    measured = [read.train_seconds, read.steps, read.samples, *rates, *read.tested.values()]
    assert all(math.isfinite(value) for value in measured if value is not None)
