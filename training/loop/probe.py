"""What a training picks by itself, from a short measurement before its first step."""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from scalestudy.training.config import TrainConfig
from scalestudy.training.data.loading import TrainingData
from scalestudy.training.distributed import Worker, gather_rows, synchronise_device
from scalestudy.training.losses import ShardLoss
from scalestudy.training.seeding import epoch_order

WARM_UP = 2  # steps before the timed ones
REPEATS = 5  # timed steps, of which the median counts


@dataclass(frozen=True, kw_only=True)
class Picked:
    """The settings that a trial trains with, where its config leaves them to a probe or to the world size."""

    weights: tuple[float, ...]  # each worker's share of a batch
    channels_last: bool
    measured: Mapping[str, Any]  # those that a probe picked, plain data, for the trial's details

    def to_dict(self) -> dict[str, Any]:
        """What was measured, by the names of the config."""
        return dict(self.measured)


def pick(config: TrainConfig, worker: Worker, data: TrainingData, shard_loss: ShardLoss) -> Picked:
    """The same answer on every rank; call it on all of them. Without `auto` and `speed` nothing is measured.

    `shards: speed` gives each worker a weight in proportion to the examples a second of its forward and backward over
    an even shard of the first batch, all workers at once, as in the training. `channels_last: auto` takes the memory
    order whose forward and backward take fewer seconds, summed over the ranks.
    """
    weights = config.weights(worker.world_size)
    channels_last = config.channels_last is True
    measured: dict[str, Any] = {}
    if config.channels_last == "auto":
        plain, last = _seconds(config, worker, data, shard_loss, (False, True))
        channels_last = last < plain
        measured["channels_last"] = channels_last
    if config.shards == "speed" and worker.world_size > 1:
        weights = _shares(_speeds(config, worker, data, shard_loss, channels_last))
        measured["shards"] = list(weights)
    return Picked(weights=weights, channels_last=channels_last, measured=measured)


def _seconds(
    config: TrainConfig, worker: Worker, data: TrainingData, shard_loss: ShardLoss, orders: tuple[bool, ...]
) -> list[float]:
    """Seconds a step in each memory order (channels-last or not), summed over the ranks."""
    mine = [step_seconds(shard_loss, worker, *_even_shard(config, worker, data), channels_last=last) for last in orders]
    return [sum(column) for column in zip(*gather_rows(mine, worker), strict=True)]


def _speeds(
    config: TrainConfig, worker: Worker, data: TrainingData, shard_loss: ShardLoss, channels_last: bool
) -> list[float]:
    """Every rank's examples a second."""
    inputs, targets = _even_shard(config, worker, data)
    gather_rows([0.0], worker)  # all ranks begin together
    seconds = step_seconds(shard_loss, worker, inputs, targets, channels_last=channels_last)
    return [row[0] for row in gather_rows([len(inputs) / seconds], worker)]


def _shares(speeds: list[float]) -> tuple[float, ...]:
    """Weights that sum to 1, to three digits: finer ones would only tell noise apart."""
    return tuple(round(speed / sum(speeds), 3) for speed in speeds)


def _even_shard(config: TrainConfig, worker: Worker, data: TrainingData) -> tuple[torch.Tensor, torch.Tensor]:
    """As many of the first batch's examples as the largest even shard has; at least two, for batch normalisation."""
    order = epoch_order(data.samples, config.seed, epoch=1)
    size = min(max(math.ceil(config.batch_size / worker.world_size), 2), data.samples)
    return next(iter(data.shards(order, [(0, size)], 1)))


def step_seconds(
    shard_loss: ShardLoss, worker: Worker, inputs: torch.Tensor, targets: torch.Tensor, *, channels_last: bool
) -> float:
    """Median seconds of forward and backward over the examples, on a copy of the model."""
    trial = copy.deepcopy(shard_loss).to(worker.device).train()
    trial.channels_last = channels_last
    if channels_last:
        trial.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    timings = [_timed_step(trial, worker, inputs, targets) for _ in range(WARM_UP + REPEATS)]
    return statistics.median(timings[WARM_UP:])


def _timed_step(trial: ShardLoss, worker: Worker, inputs: torch.Tensor, targets: torch.Tensor) -> float:
    synchronise_device(worker.device)
    started = time.perf_counter()
    trial(inputs, targets).backward()
    trial.zero_grad(set_to_none=True)
    synchronise_device(worker.device)
    return time.perf_counter() - started
