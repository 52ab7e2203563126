"""What a training chooses by itself, from a short measurement before its first step."""

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
from scalestudy.training.task import ShardLoss
from scalestudy.training.trees import Tree, count

WARM_UP = 2  # steps before the timed ones
REPEATS = 5  # timed steps; the median counts


@dataclass(frozen=True, kw_only=True)
class Choices:
    """The settings that a trial trains with where its config leaves them to a probe or to the world size."""

    weights: tuple[float, ...]  # each worker's share of a batch
    channels_last: bool
    measured: Mapping[str, Any]  # what a probe chose, plain data by the config's names, for the trial's details


def choose(config: TrainConfig, worker: Worker, data: TrainingData, shard_loss: ShardLoss) -> Choices:
    """Choose on all ranks together; every rank gets the same answer. Measure nothing without `auto` and `speed`.

    `shards: speed` weights each worker by the examples a second of its forward and backward over an even shard of the
    first batch. All workers measure at once, as they train. `channels_last: auto` takes the memory order whose forward
    and backward need fewer seconds, summed over the ranks, unless `known_order` knows it. It is the same on all ranks:
    strategies that sum one buffer of all gradients add numbers by their place in memory.
    """
    weights = config.weights(worker.world_size)
    channels_last = config.channels_last is True
    measured: dict[str, Any] = {}
    if config.channels_last == "auto":
        on_gpus = all(row[0] for row in gather_rows([worker.device.type == "cuda"], worker))
        has_images = any(parameter.dim() == 4 for parameter in shard_loss.model.parameters())
        known = known_order(config.precision, on_gpus=on_gpus, has_images=has_images)
        if known is None:
            shard = _even_shard(config, worker, data)
            mine = [step_seconds(shard_loss, worker, shard, channels_last=order) for order in (False, True)]
            contiguous, last = (sum(column) for column in zip(*gather_rows(mine, worker), strict=True))
            known = last < contiguous
        measured["channels_last"] = channels_last = known
    if config.shards == "speed" and worker.world_size > 1:
        shard = _even_shard(config, worker, data)
        gather_rows([0.0], worker)  # all ranks begin together
        seconds = step_seconds(shard_loss, worker, shard, channels_last=channels_last)
        speeds = [row[0] for row in gather_rows([count(shard) / seconds], worker)]
        weights = tuple(round(speed / sum(speeds), 3) for speed in speeds)  # a fourth digit would be noise
        measured["shards"] = list(weights)
    return Choices(weights=weights, channels_last=channels_last, measured=measured)


def known_order(precision: str, *, on_gpus: bool, has_images: bool) -> bool | None:
    """Return whether images lie channels-last, or None if only a test can show it. `on_gpus`: every worker is on one.

    Tensor cores, which tf32 and bf16 use, take convolutions channels-last; in the other order cuDNN converts before and
    after each. Without weights of four dimensions there is no convolution of images. In strict float32, and on CPUs,
    either order may be the faster.
    """
    if not on_gpus:
        return None
    if not has_images:
        return False
    return True if precision in ("tf32", "bf16") else None


def _even_shard(config: TrainConfig, worker: Worker, data: TrainingData) -> Tree:
    """Return as many of the first examples as the largest even shard has; at least two, for batch normalisation."""
    return data.first_shard(max(math.ceil(config.batch_size / worker.world_size), 2))


def step_seconds(shard_loss: ShardLoss, worker: Worker, batch: Tree, *, channels_last: bool) -> float:
    """Return the median seconds of forward and backward over the examples, on a copy of the model."""
    probed = copy.deepcopy(shard_loss).to(worker.device).train()
    probed.channels_last = channels_last
    if channels_last:
        probed.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    timings = []
    for _ in range(WARM_UP + REPEATS):
        synchronise_device(worker.device)
        started = time.perf_counter()
        probed(batch)[0].backward()
        probed.zero_grad(set_to_none=True)
        synchronise_device(worker.device)
        timings.append(time.perf_counter() - started)
    return statistics.median(timings[WARM_UP:])
