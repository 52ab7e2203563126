"""How a user's loop is counted: reports become epochs, and an attempt goes on from the checkpoint that it takes."""

import math
from dataclasses import replace

import pytest

from scalestudy.orchestration.groups.events import LoopCheckpoint, LoopReport
from scalestudy.orchestration.groups.loop_progress import LoopProgress, no_metric, wanted_keys
from scalestudy.training.config import TrainConfig

CONFIG = TrainConfig.from_dict(
    {
        "loop": "my_code:loop",
        "metrics": {"accuracy": "eval_acc", "samples": "seen", "f1": "eval_f1"},
        "batch_size": 100,
        "learning_rate": 0.1,
    }
)


def report(seconds, accuracy=0.5, **more):
    values = {} if accuracy is None else {"accuracy": accuracy}
    return LoopReport(seconds=seconds, keys=("eval_acc",), values={**values, **more.pop("values", {})}, **more)


def taken(*reports, progress=None):
    progress = progress or LoopProgress(CONFIG)
    return [record for each in reports if (record := progress.take(each))]


def test_an_epoch_s_seconds_are_those_since_the_report_before():
    records = taken(report(2.0, 0.1), report(5.0, 0.2), report(5.5, 0.3))
    assert [each.epoch for each in records] == [1, 2, 3]
    assert [each.train_seconds for each in records] == [2.0, 3.0, 0.5]
    assert [each.test_metric for each in records] == [0.1, 0.2, 0.3]


def test_what_is_not_measured_is_absent():
    (record,) = taken(report(1.0))
    assert (record.steps, record.samples, record.samples_per_second, record.phases) == (0, 0, None, {})
    assert math.isnan(record.eval_seconds)
    assert math.isnan(record.train_loss)
    assert (record.peak_memory_bytes, record.sync_bytes) == (None, None)


def test_examples_are_told_as_a_total_and_give_the_steps():
    records = taken(report(1.0, seen=950.0), report(2.0, seen=1_900.0))
    assert [(each.samples, each.steps) for each in records] == [(950, 10), (950, 10)]  # 950 / 100, rounded up


def test_steps_that_the_loop_counts_give_its_speed():
    counted = {"steps": 8, "samples": 800.0, "timed_samples": 700.0, "timed_seconds": 0.5}
    records = taken(report(1.0, **counted), report(2.0, None, **counted), report(3.0, **counted))
    assert [(each.samples, each.steps) for each in records] == [(800, 8), (1_600, 16)]
    assert [each.samples_per_second for each in records] == [1_400.0, 1_400.0]  # 700 / 0.5, both times


def test_other_metrics_have_the_study_s_names():
    (record,) = taken(report(1.0, values={"loss": 0.3, "train_loss": 0.4, "f1": 0.7}))
    assert (record.test_loss, record.train_loss, record.more) == (0.3, 0.4, {"f1": 0.7})


def test_a_report_without_the_metric_is_no_epoch_and_its_time_counts():
    records = taken(report(1.0), report(2.0, None), report(4.0))
    assert [(each.epoch, each.train_seconds) for each in records] == [(1, 1.0), (2, 3.0)]


def attempt_after(first, *, checkpoint):
    """A second attempt, after a first one with these reports."""
    progress = LoopProgress(CONFIG)
    past = taken(*first, progress=progress)
    assert progress.checkpoint == checkpoint
    return LoopProgress(CONFIG, past, checkpoint)


def test_an_attempt_goes_on_from_the_epoch_of_the_checkpoint_that_it_takes():
    first = [report(1.0, seen=100.0), report(2.0, seen=200.0, checkpoint="a/2"), report(3.0, seen=300.0)]
    again = attempt_after(first, checkpoint=LoopCheckpoint(address="a/2", epoch=2))
    records = taken(report(1.5, seen=300.0, resumed=True), report(2.5, seen=400.0, resumed=True), progress=again)
    assert [(each.epoch, each.samples, each.train_seconds) for each in records] == [(3, 100, 1.5), (4, 100, 1.0)]


def test_a_loop_that_counts_its_examples_anew_is_understood():
    first = [report(1.0, seen=100.0), report(2.0, seen=200.0, checkpoint="a/2")]
    again = attempt_after(first, checkpoint=LoopCheckpoint(address="a/2", epoch=2))
    assert [each.samples for each in taken(report(1.5, seen=100.0, resumed=True), progress=again)] == [100]


def test_an_attempt_that_takes_no_checkpoint_counts_from_the_first():
    first = [report(1.0, seen=100.0), report(2.0, seen=200.0, checkpoint="a/2")]
    again = attempt_after(first, checkpoint=LoopCheckpoint(address="a/2", epoch=2))
    assert [each.epoch for each in taken(report(1.0, seen=100.0), progress=again)] == [1]


def test_seconds_between_an_epoch_and_a_later_checkpoint_are_not_lost():
    first = [report(1.0), report(1.75, None, checkpoint="a/1")]
    again = attempt_after(first, checkpoint=LoopCheckpoint(address="a/1", epoch=1, seconds=0.75))
    (record,) = taken(report(0.5, resumed=True), progress=again)
    assert (record.epoch, record.train_seconds) == (2, 1.25)


def test_steps_between_an_epoch_and_a_later_checkpoint_are_not_lost():
    counted = {"steps": 4, "samples": 400.0}
    first = [report(1.0, **counted), report(1.75, None, checkpoint="a/1", **counted)]
    there = LoopCheckpoint(address="a/1", epoch=1, seconds=0.75, steps=4, samples=400.0)
    again = attempt_after(first, checkpoint=there)
    (record,) = taken(report(0.5, resumed=True, **counted), progress=again)
    assert (record.steps, record.samples) == (8, 800)


def test_an_evaluation_before_the_first_step_is_no_epoch():
    records = taken(report(1.0, 0.1, seen=0.0), report(2.0, 0.5, seen=100.0))
    assert [(each.epoch, each.test_metric, each.samples) for each in records] == [(1, 0.5, 100)]


def test_the_metric_s_key_is_its_name_unless_the_spec_says_otherwise():
    assert wanted_keys(CONFIG) == {"accuracy": "eval_acc", "samples": "seen", "f1": "eval_f1"}
    assert wanted_keys(CONFIG.replace(metrics={})) == {"accuracy": "accuracy"}


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ([], "my_code:loop has ended without a report; call ray.train.report with 'eval_acc', on every rank"),
        (
            ["loss", "acc"],
            "no report of my_code:loop has 'eval_acc': they have acc, loss; name one of them in workload.metrics",
        ),
    ],
)
def test_a_loop_without_the_metric_says_what_to_do(keys, words):
    assert no_metric(CONFIG, keys) == words


def test_keys_are_of_every_report():
    progress = LoopProgress(CONFIG)
    for keys in (("a",), ("b", "a")):
        progress.take(replace(report(1.0), keys=keys))
    assert progress.keys == {"a", "b"}
