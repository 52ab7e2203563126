"""Stage 5, training loop: `train` runs one trial on one worker; all workers of the trial call it together."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from training.config import TrainConfig
from training.distributed import (
    Worker,
    broadcast_from_first,
    gather_rows,
    largest_difference_from_first,
    synchronise_device,
)
from training.evaluation import evaluate
from training.hooks import Hook
from training.memory import peak_memory_bytes, start_memory_count
from training.records import PHASES, EpochRecord, RankMeasurements, reduce_over_ranks
from training.timing import EpochStopwatch, PhaseTimer, enough_timed_steps, warm_up_steps_left
from training.trial import ShardFetcher, Trial, start_trial


@dataclass(frozen=True)
class TrainResult:
    """How a trial ended. Every rank holds the same records, but for their time stamps."""

    status: Literal["finished", "diverged"]
    records: list[EpochRecord]  # of whole epochs; the epoch in which a trial diverged has none
    model: nn.Module  # the bare module, with the parameters of the last update
    train_seconds: float  # in steps, the diverged epoch's included
    message: str | None = None  # where and how it diverged


@dataclass
class Tally:
    """What this rank has done so far in the steps of an epoch."""

    loss_sum: torch.Tensor  # scalar, float64, on the device
    samples: int = 0  # of this rank
    steps: int = 0  # updates made
    diverged: bool = False


@dataclass(frozen=True)
class EpochSteps:
    """What this rank did in the steps of one epoch."""

    tally: Tally
    train_seconds: float
    timed_seconds: float  # after the warm-up
    timed_samples: int  # after the warm-up
    phases: Mapping[str, float]  # seconds in the epoch


def train(
    config: TrainConfig,
    worker: Worker,
    *,
    hooks: Sequence[Hook] = (),
    on_epoch: Callable[[EpochRecord], None] | None = None,
) -> TrainResult:
    """Train the config's model for its epochs, on this worker's shards; call it on all ranks of the process group.

    `on_epoch` is called on rank 0 with each epoch's reduced record. May be called again and again in one process:
    nothing is left behind, and a trial's losses and accuracies are those of a fresh process (on a CPU, to the bit).
    Raises ValueError for what does not fit together, DataError for missing data; what a user's code raises passes.
    """
    start_memory_count(worker.device)
    trial = start_trial(config, worker)
    _call(hooks, "train_starts", trial)
    records: list[EpochRecord] = []
    lost_seconds = 0.0
    message = None
    for epoch in range(1, config.epochs + 1):
        _call(hooks, "epoch_starts", trial, epoch)
        done = run_steps(trial, epoch, hooks)
        if done.tally.diverged:
            lost_seconds = done.train_seconds
            message = f"loss or gradient is not finite in epoch {epoch}, step {done.tally.steps + 1} of {trial.steps}"
            break
        records.append(_finish_epoch(trial, epoch, done))
        if on_epoch is not None and worker.rank == 0:
            on_epoch(records[-1])
        _call(hooks, "epoch_ends", trial, records[-1])
    trial.optimizer.zero_grad(set_to_none=True)  # gradients may be views that keep a strategy's buckets alive
    train_seconds = sum(record.train_seconds for record in records) + lost_seconds
    result = TrainResult("diverged" if message else "finished", records, trial.model, train_seconds, message)
    _call(hooks, "train_ends", trial, result)
    return result


def run_steps(trial: Trial, epoch: int, hooks: Sequence[Hook] = ()) -> EpochSteps:
    """The steps of one epoch (from 1), up to the first that is not finite on any rank."""
    device = trial.worker.device
    tally = Tally(loss_sum=torch.zeros((), dtype=torch.float64, device=device))
    watched = trial.parameters if trial.worker.world_size > 1 else ()  # alone there is nothing to wait for
    phases = PhaseTimer(device, watched, trial.steps)
    stopwatch = EpochStopwatch(device, warm_up_steps_left(trial.config.warm_up_steps, trial.steps, epoch))
    shards = ShardFetcher(trial, epoch)
    while tally.steps < trial.steps and not tally.diverged:
        stopwatch.step_starts(tally.steps, tally.samples)
        phases.step_starts(tally.steps)
        run_step(trial, shards, tally, phases, hooks)
    seconds, timed_seconds, timed_samples = stopwatch.stop(tally.steps, tally.samples)
    return EpochSteps(tally, seconds, timed_seconds, timed_samples, phases.phase_seconds(seconds))


def run_step(trial: Trial, shards: ShardFetcher, tally: Tally, phases: PhaseTimer, hooks: Sequence[Hook]) -> None:
    """One optimizer update, in the order: zero, fetch, forward/backward, synchronise, check, clip, update, record.

    If the loss is not finite on any rank, no rank updates and the tally says `diverged`. No collective is spent on
    that: such a rank runs backward with NaN, so that every rank finds NaN in the sum of the gradients. A sum whose L2
    norm overflows counts as not finite too.
    """
    step, sync = tally.steps, trial.sync
    trial.optimizer.zero_grad(set_to_none=True)
    phases.mark("optimizer")

    inputs, targets, global_batch = shards.fetch(step)
    phases.mark("data")

    shard_loss = sync.module(inputs, targets)
    with phases.backward():
        shard_loss.backward(_scale(shard_loss, sync.loss_factor / global_batch))
    phases.mark_last_gradient("forward_backward")

    sync.synchronise()
    phases.mark("gradient_sync")

    norm = get_total_norm([parameter.grad for parameter in trial.parameters if parameter.grad is not None])
    tally.diverged = not norm.isfinite().item()
    if tally.diverged:
        return
    _call(hooks, "gradients_ready", trial, step)
    if trial.config.gradient_clip is not None:
        clip_grads_with_norm_(trial.parameters, trial.config.gradient_clip, norm)
    trial.optimizer.step()
    phases.mark("optimizer")

    tally.loss_sum += shard_loss.detach()
    tally.samples += len(targets)
    tally.steps += 1
    _call(hooks, "step_ends", trial, step)


def _scale(shard_loss: torch.Tensor, factor: float) -> torch.Tensor:
    """What backward starts from: the factor, or NaN if the loss is not finite (0 · inf and 0 · NaN are NaN)."""
    return shard_loss.detach() * 0 + factor


def _finish_epoch(trial: Trial, epoch: int, done: EpochSteps) -> EpochRecord:
    """Evaluate, compare the replicas, and reduce what all ranks measured."""
    worker, splits = trial.worker, trial.splits
    started = time.perf_counter()
    broadcast_from_first(trial.model.buffers(), worker)
    counts = evaluate(trial.model, trial.loss_sum, splits.test_inputs, splits.test_targets, worker)
    synchronise_device(worker.device)
    eval_seconds = time.perf_counter() - started
    mine = RankMeasurements(
        train_loss_sum=done.tally.loss_sum.item(),
        samples=done.tally.samples,
        train_seconds=done.train_seconds,
        timed_samples=done.timed_samples,
        timed_seconds=done.timed_seconds,
        **{f"{phase}_seconds": done.phases[phase] for phase in PHASES},
        test_loss_sum=counts.loss_sum,
        test_hits=counts.hits,
        test_samples=counts.samples,
        eval_seconds=eval_seconds,
        peak_memory_bytes=peak_memory_bytes(worker.device),
        replica_difference=largest_difference_from_first(trial.model.parameters(), worker),
    )
    warm_up_steps = warm_up_steps_left(trial.config.warm_up_steps, trial.steps, epoch)
    enough_timed = enough_timed_steps(trial.steps, warm_up_steps)
    return reduce_over_ranks(gather_rows(mine.to_row(), worker), epoch, trial.steps, enough_timed)


def _call(hooks: Sequence[Hook], point: str, *arguments: object) -> None:
    for hook in hooks:
        getattr(hook, point)(*arguments)
