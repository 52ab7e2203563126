"""The loop: a training that one rank is asked to stop ends on all ranks, in the same step, without another update."""

from __future__ import annotations

from typing import Any

import pytest

from scalestudy.training.config import TrainConfig
from scalestudy.training.distributed import Worker
from scalestudy.training.loop.hooks import Hook
from scalestudy.training.loop.train import train
from scalestudy.training.loop.trial import Trial
from scalestudy.training.registry import GRADIENT_SYNCS
from tests.support.gloo import GlooPool
from tests.support.training.helpers import make_config, outcome, same_bits, state_of

STRATEGIES = sorted(GRADIENT_SYNCS)


class StopsAfter(Hook):
    """Asks for the end, on one rank, once so many steps of the training are made."""

    def __init__(self, steps: int, on_rank: int) -> None:
        self.steps, self.on_rank = steps, on_rank
        self.made = 0
        self.last: dict[str, Any] = {}

    def train_starts(self, trial: Trial) -> None:
        self.last = state_of(trial.model)
        if trial.worker.rank == self.on_rank:
            trial.should_stop = lambda: self.made >= self.steps

    def step_ends(self, trial: Trial, step: int) -> None:
        self.made += 1
        self.last = state_of(trial.model)


def stopped(worker: Worker, config: TrainConfig, steps: int, on_rank: int) -> dict[str, Any]:
    """How it ended; the steps that were made; whether the parameters are those of the last update."""
    hook = StopsAfter(steps, on_rank)
    result = outcome(train(config, worker, hooks=[hook]))
    return {**result, "made": hook.made, "untouched": same_bits(result["state"], hook.last)}


def check_stopped(results: list[dict[str, Any]], steps: int, on_rank: int) -> None:
    """The asker says "stopped", the others only know that NaN came; nobody has made another update."""
    for rank, result in enumerate(results):
        assert result["status"] == ("stopped" if rank == on_rank else "diverged")
        assert (result["message"] is None) == (rank == on_rank)
        assert result["made"] == steps
        assert result["untouched"]
        assert len(result["curve"]) == steps // 8  # of 8 steps an epoch


@pytest.mark.parametrize(
    ("strategy", "steps", "on_rank"),
    [
        ("ddp", 0, 0),
        ("ddp", 11, 0),
        ("ddp", 16, 1),
        ("naive", 0, 1),
        ("flat", 11, 0),
        ("ring", 16, 1),
        ("bf16", 11, 1),
        ("powersgd", 0, 0),
        ("powersgd", 11, 0),
    ],
)
def test_all_ranks_stop_in_the_step_in_which_one_asks(ranks: GlooPool, strategy: str, steps: int, on_rank: int) -> None:
    config = make_config(gradient_sync=strategy, epochs=4)
    check_stopped(ranks.run(2, stopped, config, steps, on_rank), steps, on_rank)


@pytest.mark.parametrize(("asked", "told"), [(0, 2), (2, 2), (3, 5), (7, 7), (8, 10)])
def test_local_sgd_stops_at_the_next_average(ranks: GlooPool, asked: int, told: int) -> None:
    """Averages end steps 3, 6 and 8 of an epoch: the step that would be the third makes no update any more."""
    config = make_config(gradient_sync="local_sgd", local_steps=3, epochs=2)
    results = ranks.run(2, stopped, config, asked, 0)
    check_stopped(results, told, 0)


@pytest.mark.parametrize("accumulation", [1, 3])
def test_one_worker_stops(ranks: GlooPool, accumulation: int) -> None:
    check_stopped(ranks.run(1, stopped, make_config(epochs=2, accumulation=accumulation), 5, 0), 5, 0)


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name != "local_sgd"])
def test_a_rank_without_examples_can_ask(ranks: GlooPool, strategy: str) -> None:
    config = make_config(gradient_sync=strategy, shards=(0, 1), epochs=2)
    check_stopped(ranks.run(2, stopped, config, 5, 0), 5, 0)


def test_a_rank_without_examples_can_ask_with_synchronised_batch_normalisation(ranks: GlooPool) -> None:
    config = make_config(
        model="tests.support.training.workloads:DoubleBatchNormNet",
        model_args={},
        shards=(0, 1),
        sync_batch_norm=True,
        epochs=2,
    )
    check_stopped(ranks.run(2, stopped, config, 5, 0), 5, 0)


def test_a_stop_that_comes_too_late_changes_nothing(ranks: GlooPool) -> None:
    config = make_config(epochs=2)
    for result in ranks.run(2, stopped, config, 16, 0):
        assert (result["status"], result["made"]) == ("finished", 16)
