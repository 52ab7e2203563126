"""A rehearsal: one step and a small evaluation of a training, alone on the CPU, to find mistakes before a study starts.

It is the training itself: the step is the first one of the trial that has this config. What it adds is a check that no
step makes, since a training with such a loss runs, and is wrong: that a task's sums are sums.

Shapes: N test examples.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from scalestudy.training.batches import even_weights
from scalestudy.training.config import TrainConfig
from scalestudy.training.data.loading import TrainingData, open_data
from scalestudy.training.data.readers import ResidentReader
from scalestudy.training.distributed import Worker, stop_process_group
from scalestudy.training.exceptions import InputError
from scalestudy.training.loop.evaluation import Sums, evaluate, metrics_of, summed
from scalestudy.training.loop.train import train
from scalestudy.training.loop.trial import check_batch_size
from scalestudy.training.seeding import generators_kept
from scalestudy.training.task import ShardLoss, Task, checked_loss, make_task
from scalestudy.training.trees import Tree, count, mapped, part, split

EXAMPLES = 8  # of the test set
TOLERANCE = 1e-2  # of a sum: in half precision sums of a few numbers round to some 1e-3; a mean is wrong by half
HERE: Mapping[str, Any] = {  # what costs time, or may be missing on this machine, and changes no mistake
    "precision": "fp32",
    "cuda_graph": False,
    "compile": False,
    "channels_last": False,
    "shards": "even",
    "warm_up_steps": 0,
}


@dataclass(frozen=True)
class Rehearsed:
    """A rehearsal that found no mistake."""

    loss: float  # mean of the step's batch; NaN: it is not finite, with which a trial ends as diverged
    seconds: float


def rehearse(config: TrainConfig, worker: Worker, largest_batch: int, *, in_group: bool = False) -> Rehearsed:
    """Make the config's first step, and evaluate the first test examples.

    worker: alone, on the CPU. largest_batch: of the study, which must not exceed the data. in_group: make a process
    group of one meanwhile, for code that is only ever run by several workers, and may ask for its rank.

    Raises InputError for what does not fit together, a sum of a task's that is none, and a metric that is not there.
    Exceptions of a user's code pass; `fault_of` tells whose they are.
    """
    began = time.perf_counter()
    config = config.replace(max_steps=1, **HERE)
    if in_group:  # AdaScale measures several workers in another way than one
        config = config.replace(lr_rule="none")
    if in_group:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with generators_kept():
            data = open_data(config, worker)
            if data.samples is not None:
                check_batch_size(largest_batch, data.samples, config.data)
            result = train(config, worker)
            task = make_task(config.task, config.loss, config.metric, data.num_classes)
            shard_loss = ShardLoss(result.model, task)
            batch = _test_batch(data, worker)
            if config.task is not None:
                _check_sums(shard_loss, batch)
            _check_metrics(shard_loss, data, batch, worker, config.metric.rpartition(":")[2])
    finally:
        if in_group:
            stop_process_group()
    loss = result.records[-1].train_loss if result.records else math.nan
    return Rehearsed(loss, time.perf_counter() - began)


def _test_batch(data: TrainingData, worker: Worker) -> Tree:
    """The first test examples, at most EXAMPLES."""
    if data.test_samples is not None:
        return next(data.test_batches(0, min(EXAMPLES, data.test_samples)))
    with closing(data.test_part(worker, even_weights(1))) as batches:
        batch = next(batches)
    return part(batch, 0, min(EXAMPLES, count(batch)))


def _check_sums(shard_loss: ShardLoss, batch: Tree) -> None:
    """Raise InputError unless the same examples twice have twice the sum and twice the weight.

    Rejected: to compare a batch with its halves, whose sums also differ if the model mixes examples. Twice the same
    examples have the same mean, variance and padding. A model that draws random numbers in an evaluation is not asked.
    """
    twice = mapped(lambda tensor: torch.cat([tensor, tensor]), batch)
    shard_loss.model.eval()
    with torch.no_grad():
        first, again, doubled = (
            _sum_and_weight(shard_loss, examples, seed) for seed, examples in ((0, batch), (1, batch), (0, twice))
        )
    shard_loss.model.train()
    if not _alike(first[0], again[0]):
        return
    for what, one, two, remedy in zip(
        ("sum", "weight"),
        first,
        doubled,
        (
            "return the sum over the batch, not its mean; multiply by the weight what counts once a batch",
            "return what the sum is divided by to be a mean, such as the number of examples or of words",
        ),
        strict=True,
    ):
        if not _alike(two, 2 * one):
            n = count(batch)
            raise InputError(
                f"task: loss gave {one:.4g} as the {what} of {n} examples, and {two:.4g}, not {2 * one:.4g}, of the "
                "same ones twice",
                remedy,
            )


def _sum_and_weight(shard_loss: ShardLoss, batch: Tree, seed: int) -> tuple[float, float]:
    torch.manual_seed(seed)
    total, weight = checked_loss(shard_loss.task, shard_loss.predict(batch), batch)
    return float(total), float(weight)


def _alike(found: float, wanted: float) -> bool:
    """Whether two sums are equal, up to rounding; what is not finite is judged elsewhere."""
    if not (math.isfinite(found) and math.isfinite(wanted)):
        return True
    return abs(found - wanted) <= TOLERANCE * max(abs(found), abs(wanted))


def _check_metrics(shard_loss: ShardLoss, data: TrainingData, batch: Tree, worker: Worker, metric: str) -> None:
    """Evaluate the batch in two parts. Raises InputError for what a task may not return, or if `metric` is missing.

    Some metrics have no value for a few examples, such as a share of a class that none of them has. Where `finish`
    fails in a way that may come from that, the whole test set decides.
    """
    n, sums = count(batch), Sums()
    for piece in split(batch, [n - n // 2, n // 2] if n > 1 else [n]):
        tested = _evaluated(shard_loss, dataclasses.replace(data, test=ResidentReader(piece)), worker)
        sums.add(tested.loss, tested.named, worker.device)
    task: Task = shard_loss.task
    try:
        metrics_of(task, summed(sums, worker), metric)
    except InputError:
        raise
    except (ArithmeticError, ValueError):
        metrics_of(task, summed(_evaluated(shard_loss, data, worker), worker), metric)


def _evaluated(shard_loss: ShardLoss, data: TrainingData, worker: Worker) -> Sums:
    sums = evaluate(shard_loss, data, worker)
    if sums.problem:
        raise sums.problem
    return sums
