"""What a user's loop is called with, the stamps of its reports, and what they come to over the ranks."""

import time

import pytest
from ray.train import Checkpoint
from ray.train.v2._internal.execution import train_fn_utils

from scalestudy.orchestration.groups import user_loop
from scalestudy.orchestration.groups.events import LoopReport
from scalestudy.orchestration.groups.ray_train import NotWantedError
from scalestudy.orchestration.groups.user_loop import (
    STAMP,
    OwnDataset,
    StampedReports,
    _found,
    loop_config,
    reduced,
    run_loop,
)
from scalestudy.training.config import GIVEN_TO_LOOP, TrainConfig
from scalestudy.training.exceptions import InputError
from scalestudy.training.pulse import Pulse
from scalestudy.training.steps import METER, step

CONFIG = TrainConfig.from_dict(
    {
        "loop": "my_code:loop",
        "loop_args": {"hidden": 64},
        "metrics": {"accuracy": "eval_acc", "samples": "seen"},
        "batch_size": 96,
        "learning_rate": 0.1,
        "seed": 3,
        "epochs": 4,
    }
)


@pytest.fixture
def rays(monkeypatch):
    """What reaches Ray's own functions: the metrics and the checkpoint of each report."""
    reports = []

    def report(self, metrics, checkpoint=None, *_, **__):
        reports.append((metrics, checkpoint))

    monkeypatch.setattr(train_fn_utils.DistributedTrainFnUtils, "report", report)
    monkeypatch.setattr(train_fn_utils.DistributedTrainFnUtils, "get_checkpoint", lambda self: "Ray's")
    METER.take()
    return reports


def stamped(checkpoint=None):
    return StampedReports(CONFIG, Pulse(), checkpoint)


def stamp_of(reports):
    return reports[-1][0][STAMP]


def test_a_loop_gets_ray_s_config():
    assert loop_config(CONFIG, 2) == {
        "hidden": 64,
        "num_gpus": 2,
        "batch_size": 96,
        "batch_size_per_worker": 48,
        "learning_rate": 0.1,
        "seed": 3,
        "epochs": 4,
    }


def test_the_keys_that_a_trial_sets_are_those_that_loop_args_may_not_repeat():
    assert loop_config(CONFIG, 2).keys() - CONFIG.loop_args.keys() == set(GIVEN_TO_LOOP)


def test_a_report_reaches_ray_with_a_stamp(rays):
    loop = stamped()
    time.sleep(0.02)
    loop.report({"eval_acc": 0.5, "seen": 100, "more": "text"}, "a checkpoint")
    (metrics, checkpoint) = rays[0]
    stamp = metrics.pop(STAMP)
    assert (metrics, checkpoint) == ({"eval_acc": 0.5, "seen": 100, "more": "text"}, "a checkpoint")
    assert (stamp["values"], stamp["seen"], stamp["keys"]) == ({"accuracy": 0.5}, 100.0, ["eval_acc", "more", "seen"])
    assert 0.02 <= stamp["seconds"] < 1


def test_a_stamp_counts_the_steps_since_the_report_before(rays):
    loop = stamped()
    step(8)
    step(8)
    loop.report({"eval_acc": 0.5})
    assert (stamp_of(rays)["steps"], stamp_of(rays)["samples"]) == (2, 16)
    loop.report({"eval_acc": 0.5})
    assert stamp_of(rays)["steps"] == 0


def test_a_metric_that_is_none_is_absent(rays):
    stamped().report({"eval_acc": None})
    assert stamp_of(rays)["values"] == {}


@pytest.mark.parametrize("value", ["0.5", [0.5], object])
def test_a_metric_that_is_no_number_is_refused(rays, value):
    with pytest.raises(InputError, match=r"ray.train.report: eval_acc: .* is no number; report a float"):
        stamped().report({"eval_acc": value})


def test_an_earlier_attempt_s_checkpoint_is_given_until_there_is_another(rays):
    earlier = Checkpoint("/earlier")
    loop = stamped(earlier)
    loop.report({"eval_acc": 0.5})
    assert stamp_of(rays)["resumed"] is False
    assert loop.get_checkpoint() is earlier
    loop.report({"eval_acc": 0.5}, "a later one")
    assert stamp_of(rays)["resumed"] is True
    assert loop.get_checkpoint() == "Ray's"


def test_without_one_there_is_none_until_this_attempt_has_reported_one(rays):
    """Ray's own would be of another attempt."""
    loop = stamped()
    assert loop.get_checkpoint() is None
    loop.report({"eval_acc": 0.5}, "one")
    assert (stamp_of(rays)["resumed"], loop.get_checkpoint()) == (False, "Ray's")


@pytest.mark.parametrize("seen", [float("nan"), float("inf")])
def test_a_count_of_examples_that_is_none_is_refused(rays, seen):
    with pytest.raises(InputError, match=r"ray.train.report: seen: .* counts no examples"):
        stamped().report({"eval_acc": 0.5, "seen": seen})


def test_a_checkpoint_that_is_gone_is_none(tmp_path):
    (tmp_path / "there").mkdir()
    assert _found(str(tmp_path / "there")).path == str(tmp_path / "there")
    assert _found(str(tmp_path / "gone")) is None
    assert _found(None) is None


class Told:
    """A pool that notes what is said of data sets."""

    def __init__(self):
        self.errors = []
        self.datasets_failed = self

    def remote(self, group_id, error):
        self.errors.append((group_id, error))


def broken():
    raise ValueError("no data")


def waits():
    time.sleep(5)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("broken", "ValueError: no data"),
        ("waits", "did not return within 0.1 s"),
        ("absent", "has no callable 'absent'"),
    ],
)
def test_a_data_set_that_can_not_be_made_is_told(monkeypatch, name, words):
    pool = Told()
    monkeypatch.setattr("ray.get", lambda *_, **__: None)
    if name == "waits":
        monkeypatch.setattr(user_loop, "DATASET_SECONDS", 0.1)
    with pytest.raises(NotWantedError):
        OwnDataset(pool, "group-1", f"{__name__}:{name}")()
    ((group_id, error),) = pool.errors
    assert (group_id, error.kind) == ("group-1", "exception")
    assert error.message.startswith(f"workload.datasets: {__name__}:{name}: ")
    assert words in error.message


def numbers():
    return [1, 2]


def test_a_data_set_is_made():
    assert OwnDataset(Told(), "group-1", f"{__name__}:numbers")() == [1, 2]


def test_the_pulse_tells_a_report(monkeypatch):
    pulse, seen = Pulse(), []
    monkeypatch.setattr(
        train_fn_utils.DistributedTrainFnUtils, "report", lambda *_, **__: seen.append(pulse.stage.activity)
    )
    StampedReports(CONFIG, pulse, None).report({})
    assert (seen, pulse.stage.activity) == (["at a report"], "loading")


SEEN = []


def looks_at_its_pulse(config):
    SEEN.append((config["epochs"], config["pulse"].stage.activity))


def test_while_the_loop_runs_the_pulse_says_so(monkeypatch):
    monkeypatch.setattr(user_loop, "set_train_fn_utils", lambda utils: None)
    monkeypatch.setattr(user_loop, "wait_for_reports", lambda: None)
    pulse = Pulse()
    run_loop(CONFIG.replace(loop=f"{__name__}:looks_at_its_pulse", loop_args={"pulse": pulse}), 2, None, pulse)
    assert SEEN == [(4, "in the user's loop")]


def test_stamps_are_reduced_over_the_ranks():
    first = {"seconds": 1.0, "keys": ["a"], "values": {"accuracy": 0.5}, "seen": 90.0, "resumed": False, "steps": 3}
    first |= {"samples": 30.0, "timed_samples": 20.0, "timed_seconds": 0.2}
    other = {**first, "seconds": 1.5, "values": {"accuracy": 0.9}, "seen": 10.0, "timed_seconds": 0.4, "steps": 2}
    assert reduced([first, {**other, "resumed": True}], "there") == LoopReport(
        seconds=1.0,  # of rank 0
        keys=("a",),
        values={"accuracy": 0.5},  # of rank 0
        seen=90.0,
        steps=3,
        samples=60.0,
        timed_samples=40.0,
        timed_seconds=0.4,
        resumed=True,
        checkpoint="there",
    )
