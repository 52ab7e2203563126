"""A training of `max_steps`: it ends after so many steps, is never evaluated, and its steps are those of any other."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from scalestudy.training.batches import steps_made
from scalestudy.training.config import TrainConfig
from scalestudy.training.distributed import Worker
from scalestudy.training.loop.train import train
from tests.support.gloo import GlooPool
from tests.support.training.helpers import ALONE, make_config, run_training, same_bits, state_of

EIGHT_STEPS = {"epochs": 5}  # 256 examples in batches of 32


def records_of(worker: Worker, config: TrainConfig) -> list[dict[str, Any]]:
    return [record.to_dict() for record in train(config, worker).records]


@pytest.mark.parametrize(
    ("max_steps", "made"), [(1, [1, 0, 0]), (8, [8, 0, 0]), (11, [8, 3, 0]), (24, [8, 8, 8]), (None, [8, 8, 8])]
)
def test_the_steps_of_each_epoch(max_steps: int | None, made: list[int]) -> None:
    assert [steps_made(8, epoch, max_steps) for epoch in (1, 2, 3)] == made


def test_it_ends_within_an_epoch_and_is_not_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("evaluated")

    monkeypatch.setattr("scalestudy.training.loop.train.evaluate", refuse)
    result = train(make_config(**EIGHT_STEPS, warm_up_steps=3, max_steps=19), ALONE)
    records = [json.loads(json.dumps(record.to_dict(), allow_nan=False)) for record in result.records]
    assert result.status == "finished"
    assert [(record["steps"], record["samples"]) for record in records] == [(8, 256), (8, 256), (3, 96)]
    for record in records:
        assert (record["test_accuracy"], record["test_loss"], record["eval_seconds"]) == (None, None, None)
        assert record["train_loss"] > 0
        assert record["samples_per_second"] > 0
    assert math.isnan(result.records[-1].test_metric)


def test_its_epochs_end_it_too() -> None:
    assert [record["steps"] for record in records_of(ALONE, make_config(epochs=1, max_steps=100))] == [8]


def test_its_rate_leaves_the_warm_up_out() -> None:
    """samples_per_second is null where fewer than five steps are left after the warm-up."""
    assert [record["samples_per_second"] is None for record in records_of(ALONE, make_config(max_steps=7))] == [True]
    assert records_of(ALONE, make_config(warm_up_steps=2, max_steps=7))[0]["samples_per_second"] > 0


def test_its_steps_are_those_of_a_whole_training() -> None:
    """To the bit: 16 of 16 steps, with and without an evaluation between the epochs."""
    whole = run_training(ALONE, make_config(epochs=2))
    cut = train(make_config(epochs=5, max_steps=16), ALONE)
    assert same_bits(state_of(cut.model), whole["state"])
    assert [record.train_loss for record in cut.records] == [loss for loss, *_ in whole["curve"]]


@pytest.mark.parametrize("gradient_sync", ["ddp", "powersgd", "local_sgd"])
def test_its_replicas_are_equal_at_the_end(ranks: GlooPool, gradient_sync: str) -> None:
    """Also where it ends between two averages of local SGD (8 and 10 steps)."""
    config = make_config(**EIGHT_STEPS, max_steps=10, gradient_sync=gradient_sync)
    for records in ranks.run(2, records_of, config):
        assert [record["steps"] for record in records] == [8, 2]
        assert [record["replica_max_diff"] for record in records] == [0.0, 0.0]


@pytest.mark.parametrize("max_steps", [0, 5, 2.0, "60"])
def test_what_leaves_nothing_to_time_is_refused(max_steps: Any) -> None:
    with pytest.raises(ValueError, match=r"^max_steps: "):
        make_config(max_steps=max_steps)
