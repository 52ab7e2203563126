"""A training that was killed and resumed is, to the bit, the one that was never killed."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest

from scalestudy.training.checkpoint.byte_store import LocalByteStore
from scalestudy.training.checkpoint.hook import Checkpoints
from scalestudy.training.config import OptimizerConfig, TrainConfig
from scalestudy.training.distributed import Worker
from scalestudy.training.loop.hooks import Hook
from scalestudy.training.loop.train import train
from scalestudy.training.loop.trial import Trial
from tests.support.gloo import GlooPool
from tests.support.training.helpers import ALONE, largest_difference, run_training, same_bits, smallest_movement
from tests.support.training.resuming import (
    BATCH_NORM,
    DROPOUT,
    EPOCHS,
    LENET,
    MOMENTUM,
    STEPS,
    KillAfter,
    KilledError,
    check_same,
    checkpointed,
    config_of,
    killed,
    killed_and_resumed,
    never_killed,
)

TRAININGS: dict[str, tuple[int, dict[str, Any]]] = {
    "lenet on one worker": (1, {**LENET, **MOMENTUM}),
    "lenet by ddp on two": (2, {**LENET, **MOMENTUM}),
    "lenet by ddp on four": (4, LENET),
    "lenet by ring on four": (4, {**LENET, "gradient_sync": "ring"}),
    "dropout on one": (1, DROPOUT),
    "dropout by ddp on two": (2, {**DROPOUT, "optimizer": OptimizerConfig(name="adam"), "learning_rate": 1e-3}),
    "batch normalisation on two": (2, BATCH_NORM),
    "synchronised batch normalisation on two": (2, {**BATCH_NORM, "sync_batch_norm": True}),
    "powersgd on two": (2, {**LENET, "gradient_sync": "powersgd", "powersgd_rank": 1}),
    "powersgd on four, with momentum": (4, {**LENET, **MOMENTUM, "gradient_sync": "powersgd"}),
    "local sgd with momentum on two": (2, {**LENET, **MOMENTUM, "gradient_sync": "local_sgd", "local_steps": 2}),
    "adascale on two": (2, {"lr_rule": "adascale", "base_batch_size": 4, "schedule": "cosine"}),
    "adascale on one": (1, {"lr_rule": "adascale", "base_batch_size": 4}),
    "warm-up and one cycle, accumulated, augmented": (
        2,
        {
            "lr_rule": "linear",
            "base_batch_size": 8,
            "warmup_epochs": 1.5,
            "schedule": "cosine",
            "accumulation": 3,
            "augment": "crop_flip",
        },
    ),
    "uneven shards, one empty": (4, {"shards": (2.0, 0.0, 1.0, 1.0), "schedule": "one_cycle"}),
}


@pytest.mark.parametrize(
    ("training", "kill_after"), list(zip(TRAININGS, itertools.cycle([STEPS + 1, 2 * STEPS + 2]), strict=False))
)
def test_killed_and_resumed_is_never_killed(ranks: GlooPool, tmp_path: Path, training: str, kill_after: int) -> None:
    """Killed after the first step of the second epoch, or in the middle of the last one, by turns."""
    world_size, changes = TRAININGS[training]
    config = config_of(**changes)
    whole = ranks.run(world_size, never_killed, config)
    resumed = ranks.run(world_size, killed_and_resumed, config, str(tmp_path), kill_after)
    for one, other in zip(whole, resumed, strict=True):
        assert other["resumed"]
        check_same(one, other)
    assert [rank["seen"] for rank in resumed] == [[1, 2, 3], *[[]] * (world_size - 1)], "restored epochs are told"


@pytest.mark.parametrize(
    ("changes", "every_steps"), [(LENET, 3), (DROPOUT, 0), (DROPOUT, 1)], ids=["lenet-3", "dropout-0", "dropout-1"]
)
def test_a_kill_after_any_step(tmp_path: Path, changes: dict[str, Any], every_steps: int) -> None:
    config = config_of(**changes)
    whole = never_killed(ALONE, config)
    for kill_after in range(1, EPOCHS * STEPS + 1):
        resumed = killed_and_resumed(ALONE, config, str(tmp_path / str(kill_after)), kill_after, every_steps)
        check_same(whole, resumed)
        assert resumed["resumed"] == (kill_after >= every_steps if every_steps else kill_after > STEPS)


@pytest.mark.parametrize(
    ("strategy", "kill_after"),
    [
        ("ddp", STEPS + 2),
        ("powersgd", STEPS + 2),
        ("powersgd", 2 * STEPS + 3),
        ("local_sgd", STEPS - 1),
        ("local_sgd", 2 * STEPS + 3),
    ],
)
def test_a_kill_between_checkpoints_of_steps(ranks: GlooPool, tmp_path: Path, strategy: str, kill_after: int) -> None:
    """A checkpoint every second step, in the middle of epochs; local SGD's only where it has just averaged."""
    config = config_of(**LENET, **MOMENTUM, gradient_sync=strategy, local_steps=2, powersgd_rank=1)
    whole = ranks.run(2, never_killed, config)
    resumed = ranks.run(2, killed_and_resumed, config, str(tmp_path), kill_after, 2)
    for one, other in zip(whole, resumed, strict=True):
        assert other["resumed"]
        check_same(one, other)


@pytest.mark.parametrize(("before", "after", "every_steps"), [(4, 1, 0), (1, 4, 3), (4, 2, 3), (2, 4, 0)])
def test_resumed_at_another_world_size(
    ranks: GlooPool, tmp_path: Path, before: int, after: int, every_steps: int
) -> None:
    """Exact sums: the same parameters as one worker's, but for rounding, and every example counts once."""
    model = {"model": "tests.support.training.workloads:DoubleLeNet", "model_args": {"init": "xavier"}}
    config = config_of(**model, **MOMENTUM)
    (whole,) = ranks.run(1, never_killed, config)
    ranks.run(before, killed, config, str(tmp_path), STEPS + 3, every_steps)
    resumed = ranks.run(after, checkpointed, config, str(tmp_path), every_steps)
    assert all(rank["resumed"] for rank in resumed)
    assert largest_difference(whole["state"], resumed[0]["state"]) < 1e-10
    assert resumed[0]["curve"] == [pytest.approx(epoch, abs=1e-9) for epoch in whole["curve"]]


@pytest.mark.parametrize("strategy", ["powersgd", "local_sgd"])
@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4)])
def test_lossy_strategies_go_on_at_another_world_size(
    ranks: GlooPool, tmp_path: Path, strategy: str, before: int, after: int
) -> None:
    config = config_of(**LENET, **MOMENTUM, gradient_sync=strategy, local_steps=2)
    ranks.run(before, killed, config, str(tmp_path), 2 * STEPS + 1, 0)
    resumed = ranks.run(after, checkpointed, config, str(tmp_path), 0)
    assert {rank["status"] for rank in resumed} == {"finished"}
    assert all(same_bits(resumed[0]["state"], rank["state"]) for rank in resumed)
    assert resumed[0]["curve"][-1][0] < resumed[0]["curve"][0][0], "the loss went on falling"


def test_the_momentum_of_local_sgd_is_the_mean_at_another_world_size(ranks: GlooPool, tmp_path: Path) -> None:
    """Two workers' momenta, then one worker: it has their mean, and each differs from it."""
    config = config_of(**LENET, **MOMENTUM, gradient_sync="local_sgd", local_steps=2)
    momenta = ranks.run(2, momentum_at_the_kill, config, str(tmp_path), True)
    (mean,) = ranks.run(1, momentum_at_the_kill, config, str(tmp_path), False)
    assert mean == pytest.approx([(one + other) / 2 for one, other in zip(*momenta, strict=True)], rel=1e-5)
    assert max(abs(one - other) for one, other in zip(*momenta, strict=True)) > 1e-4


class LastMomentum(Hook):
    """The momentum of the output's bias, after the checkpoint was restored or when an epoch has ended."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def train_starts(self, trial: Trial) -> None:
        self._take(trial)

    def epoch_ends(self, trial: Trial, record: Any) -> None:
        self._take(trial)

    def _take(self, trial: Trial) -> None:
        buffer = trial.optimizer.state.get(trial.parameters[-1], {}).get("momentum_buffer")
        self.values = [] if buffer is None else buffer.tolist()


def momentum_at_the_kill(worker: Worker, config: TrainConfig, folder: str, kill: bool) -> list[float]:
    """As it was when the first epoch's checkpoint was written, or as it is after resuming from that."""
    momentum = LastMomentum()
    killer = KillAfter(STEPS + 1 if kill else 1)
    with contextlib.suppress(KilledError):
        checkpointed(worker, config, folder, 0, momentum, killer)
    return momentum.values


def test_what_a_probe_picked_is_kept(ranks: GlooPool, tmp_path: Path) -> None:
    """Speeds are measured once: the resumed training has the shards that it began with."""
    config = config_of(**LENET, shards="speed")
    before = ranks.run(2, details_until_killed, config, str(tmp_path))
    after = ranks.run(2, details_of, config, str(tmp_path))
    assert before[0]["shards"] == after[0]["shards"] == after[1]["shards"]
    assert sum(after[0]["shards"]) == pytest.approx(1.0, abs=2e-3)


def details_of(worker: Worker, config: TrainConfig, folder: str) -> dict[str, Any]:
    """What the training says of itself."""
    checkpoints = Checkpoints(LocalByteStore(folder))
    choices = checkpoints.find(config, worker)
    assert choices is not None
    return dict(train(config, worker, hooks=[checkpoints], choices=choices).details)


def details_until_killed(worker: Worker, config: TrainConfig, folder: str) -> dict[str, Any]:
    """The same of one that is killed in its second epoch."""

    class Details(Hook):
        def train_starts(self, trial: Trial) -> None:
            self.found = trial.details()

    details = Details()
    with contextlib.suppress(KilledError):
        checkpointed(worker, config, folder, 0, details, KillAfter(STEPS + 1))
    return details.found


def test_everything_moved() -> None:
    """What these tests compare is not what the training began with."""
    trained = run_training(ALONE, dataclasses.replace(config_of(**LENET), epochs=EPOCHS))
    assert smallest_movement(trained["first_state"], trained["state"]) > 1e-4
