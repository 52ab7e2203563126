"""`train`: epochs, steps, evaluation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from scalestudy.training.batches import even_weights, micro_batch_sizes, shard_bounds
from scalestudy.training.config import TrainConfig
from scalestudy.training.data.loading import TrainingData
from scalestudy.training.device import peak_memory_bytes, start_memory_count
from scalestudy.training.distributed import (
    Worker,
    broadcast_from_first,
    gather_rows,
    largest_difference_from_first,
    synchronise_device,
)
from scalestudy.training.loop.hooks import Hook
from scalestudy.training.loop.measures import EpochStopwatch, PhaseTimer, enough_timed_steps, warm_up_end
from scalestudy.training.loop.noise_scale import with_required
from scalestudy.training.loop.probe import Picked
from scalestudy.training.loop.trial import Tally, Trial, new_tally, start_trial
from scalestudy.training.losses import NamedMetric, ShardLoss
from scalestudy.training.records import PHASES, EpochFacts, EpochRecord, RankMeasurements, reduce_over_ranks
from scalestudy.training.seeding import seed_steps


@dataclass(frozen=True)
class Counts:
    """What one worker counted; counts of all workers are summed, so no example counts twice."""

    loss_sum: float
    metric_sum: float
    samples: int


@torch.inference_mode()
def evaluate(
    shard_loss: ShardLoss,
    metric: NamedMetric,
    data: TrainingData,
    worker: Worker,
    weights: Sequence[float] | None = None,
) -> Counts:
    """Loss and metric, summed over this worker's contiguous part of the test set; the part may be empty.

    `weights`: each worker's share of the test set; None: even. The model is in evaluation mode meanwhile, so that an
    example's outputs do not depend on the others of its batch, and afterwards in training mode.
    """
    start, stop = shard_bounds(data.test_samples, weights or even_weights(worker.world_size), worker.rank)
    losses, values = torch.zeros(2, dtype=torch.float64, device=worker.device)
    shard_loss.model.eval()
    for inputs, targets in data.test_batches(start, stop):
        outputs = shard_loss.predict(inputs)
        losses += shard_loss.loss(outputs, targets).sum(dtype=torch.float64)
        values += metric.function(outputs, targets).sum(dtype=torch.float64)
    shard_loss.model.train()
    return Counts(loss_sum=losses.item(), metric_sum=values.item(), samples=stop - start)


Batch = tuple[torch.Tensor, torch.Tensor]
Status = Literal["finished", "stopped", "diverged", "left"]


@dataclass(frozen=True)
class TrainResult:
    """How a trial ended. Every rank holds the same records, but for their time stamps.

    A training that one rank has stopped is "stopped" to that rank and "diverged" to the others: NaN was its message.
    One that is "left" is so to all of them, and goes on from its checkpoint.
    """

    status: Status
    records: list[EpochRecord]  # of whole epochs; the one in which a trial stopped, diverged or was left has none
    model: nn.Module  # the bare module, with the parameters of the last update
    train_seconds: float  # in steps, those of the epoch that was broken off included
    message: str | None  # where and how it diverged, or where it was left
    details: Mapping[str, Any]  # what the training picked by itself, plain data


@dataclass(frozen=True)
class EpochSteps:
    """What this rank did in the steps of one epoch."""

    tally: Tally
    train_seconds: float
    timed_seconds: float  # after the warm-up
    timed_samples: int  # after the warm-up
    timed_steps: int  # after the warm-up
    phases: Mapping[str, float]  # seconds in the epoch
    sync_bytes: int


def train(
    config: TrainConfig,
    worker: Worker,
    *,
    hooks: Sequence[Hook] = (),
    on_epoch: Callable[[EpochRecord], None] | None = None,
    picked: Picked | None = None,
) -> TrainResult:
    """Train the config's model for its epochs, on this worker's shards; call it on all ranks of the process group.

    With `config.max_steps` for so many steps at most, none of them evaluated: such a training is made to be timed.

    `on_epoch` is called on rank 0 with each epoch's reduced record, those of a resumed training first. `picked`: what
    an earlier attempt picked by itself. May be called again and again in one process: nothing is left behind, and a
    trial's losses and accuracies are those of a fresh process (on a CPU, to the bit). Raises ValueError for what does
    not fit together, DataError for missing data; what a user's code raises passes.
    """
    start_memory_count(worker.device)
    hooks = with_required(config, hooks)
    trial = start_trial(config, worker, picked)
    _call(hooks, "train_starts", trial)
    report = on_epoch if on_epoch is not None and worker.rank == 0 else lambda record: None
    progress = trial.progress
    for record in progress.records:
        report(record)
    lost_seconds = 0.0
    status: Status = "finished"
    while trial.epoch_steps and status == "finished":
        done = run_steps(trial, hooks)
        if done.tally.diverged:
            lost_seconds = done.train_seconds
            status = "stopped" if trial.stopping else "diverged"
        elif trial.leaving:
            lost_seconds = done.train_seconds
            status = "left"
        else:
            report(_finish_epoch(trial, done, hooks))
            _call(hooks, "epoch_ends", trial, progress.records[-1])
            status = "left" if trial.leaving else "finished"
    trial.optimizer.zero_grad(set_to_none=True)  # gradients may be views that keep a strategy's buckets alive
    train_seconds = sum(record.train_seconds for record in progress.records) + lost_seconds
    return TrainResult(status, progress.records, trial.model, train_seconds, _message(trial, status), trial.details())


def _message(trial: Trial, status: Status) -> str | None:
    if status == "left":
        return f"{len(trial.progress.records)} epochs and {trial.progress.tally.steps} steps of the next are made"
    return _where_not_finite(trial) if status == "diverged" else None


def _where_not_finite(trial: Trial) -> str:
    epoch, step = trial.progress.epoch, trial.progress.tally.steps + 1
    return f"loss or gradient is not finite in epoch {epoch}, step {step} of {trial.steps}"


def run_steps(trial: Trial, hooks: Sequence[Hook] = ()) -> EpochSteps:
    """The steps of the epoch in progress, up to the first that is not finite on any rank, or after which all leave."""
    config, device, tally, epoch = trial.config, trial.worker.device, trial.progress.tally, trial.progress.epoch
    if not tally.steps:
        seed_steps(config.seed, trial.worker.rank, epoch)
    watched = trial.parameters if trial.worker.world_size > 1 else ()  # alone there is nothing to wait for
    shards = trial.shards(epoch, tally.steps)
    trial.bytes_at_start = trial.sync.bytes_sent - tally.bytes_before
    timed_from = warm_up_end(config.warm_up_steps, trial.steps, epoch, trial.progress.first)
    steps = trial.epoch_steps
    phases = PhaseTimer(device, watched, steps)
    stopwatch = trial.stopwatch = EpochStopwatch(device, timed_from, tally.samples)
    while tally.steps < steps and not (tally.diverged or trial.leaving):
        stopwatch.step_starts(tally.steps, tally.samples)
        phases.step_starts(tally.steps)
        trial.plan_step(tally.steps, steps)
        run_step(trial, shards, tally, phases, hooks)
    seconds, timed_seconds, timed_samples = stopwatch.stop(tally.steps, tally.samples)
    trial.stopwatch = None
    seconds += tally.seconds_before
    sent, timed_steps = trial.bytes_in_epoch(), tally.steps - timed_from
    return EpochSteps(tally, seconds, timed_seconds, timed_samples, timed_steps, phases.phase_seconds(seconds), sent)


def run_step(trial: Trial, shards: Iterator[Batch], tally: Tally, phases: PhaseTimer, hooks: Sequence[Hook]) -> None:
    """One optimizer update: zero, fetch, forward/backward, synchronise, check, clip, update, settle, record.

    If the loss is not finite on any rank, no rank updates and the tally says `diverged`. No collective is spent on
    that: such a rank runs backward with NaN, so that every rank finds NaN in the sum of the gradients. A sum whose L2
    norm overflows counts as not finite too. A rank whose `should_stop` says so ends the training in the same way.
    """
    step, sync, optimizer = tally.steps, trial.sync, trial.optimizer
    optimizer.zero_grad(set_to_none=True)
    phases.mark("optimizer")

    batch = next(shards)
    phases.mark("data")

    sync.step_starts(trial.plan)
    loss_sum = forward_and_backward(trial, batch, phases, hooks)
    phases.mark_last_gradient("forward_backward")

    sync.synchronise()
    phases.mark("gradient_sync")

    trial.gradient_norm = get_total_norm([p.grad for p in trial.parameters if p.grad is not None])
    tally.diverged = not sync.agrees_finite(trial.gradient_norm)
    if tally.diverged:
        return
    _call(hooks, "gradients_ready", trial, step)
    if trial.config.gradient_clip is not None:
        clip_grads_with_norm_(trial.parameters, trial.config.gradient_clip, trial.gradient_norm)
    _set_rate(optimizer, trial.rate.rate())
    optimizer.step()
    trial.rate.advance()
    phases.mark("optimizer")

    sync.step_ends()
    phases.mark("gradient_sync")

    tally.loss_sum += loss_sum
    tally.samples += trial.plan.shard
    tally.steps += 1
    _call(hooks, "step_ends", trial, step)


def forward_and_backward(trial: Trial, batch: Batch, phases: PhaseTimer, hooks: Sequence[Hook]) -> torch.Tensor:
    """The shard's loss sum, its gradients accumulated over the micro-batches; only the last one communicates."""
    sync, step = trial.sync, trial.progress.tally.steps
    parts = max(trial.config.accumulation, 2 if trial.halves_next else 1)
    trial.halves_next = False
    trial.micro_batches = micro_batch_sizes(trial.plan.shard, parts, keep_empty=trial.shard_loss.runs_empty)
    factor, loss_sums, last = trial.factor(), [], len(trial.micro_batches) - 1
    pieces = zip(*(tensor.split(trial.micro_batches) for tensor in batch), strict=True)
    for index, (inputs, targets) in enumerate(pieces):
        with sync.accumulating() if index < last else nullcontext():
            loss_sum = sync.module(inputs, targets)
            with phases.backward():
                loss_sum.backward(_scale(loss_sum, factor))
        loss_sums.append(loss_sum.detach())
        _check_all_used(trial)
        _call(hooks, "backward_ends", trial, step, index)
    return loss_sums[0] if not last else torch.stack(loss_sums).sum()


def _check_all_used(trial: Trial) -> None:
    """After the first backward over examples: DistributedDataParallel needs every gradient, in every step.

    The same at any number of workers; else a study would fail at some, and weight decay would act at some.
    """
    if trial.all_used or not trial.plan.shard:
        return
    unused = [name for name, each in trial.model.named_parameters() if each.requires_grad and each.grad is None]
    if unused:
        raise ValueError(f"model: {', '.join(unused)} took no part in the loss of the first batch; use them in "
                         "forward, or set their requires_grad to False")  # fmt: skip
    trial.all_used = True


def _scale(loss_sum: torch.Tensor, factor: float) -> torch.Tensor:
    """What backward starts from: the factor, or NaN if the loss is not finite (0 · inf and 0 · NaN are NaN)."""
    return loss_sum.detach() * 0 + factor


def _set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def _finish_epoch(trial: Trial, done: EpochSteps, hooks: Sequence[Hook]) -> EpochRecord:
    """Evaluate, compare the replicas, reduce what all ranks measured, and move on to the next epoch.

    A training of `max_steps` is not evaluated: what an evaluation would have told is NaN in its records.
    """
    worker, progress = trial.worker, trial.progress
    measured: dict[str, float | None] = {}
    for hook in hooks:
        measured.update(hook.epoch_measured(trial))
    started = time.perf_counter()
    counts = _evaluated(trial)
    eval_seconds = time.perf_counter() - started if counts else math.nan
    usage = trial.usage.since_last()
    mine = RankMeasurements(
        train_loss_sum=done.tally.loss_sum.item(),
        samples=done.tally.samples,
        train_seconds=done.train_seconds,
        timed_samples=done.timed_samples,
        timed_seconds=done.timed_seconds,
        **{f"{phase}_seconds": done.phases[phase] for phase in PHASES},
        test_loss_sum=counts.loss_sum if counts else math.nan,
        test_metric_sum=counts.metric_sum if counts else math.nan,
        test_samples=counts.samples if counts else 0,
        eval_seconds=eval_seconds,
        peak_memory_bytes=peak_memory_bytes(worker.device),
        replica_difference=largest_difference_from_first(trial.model.parameters(), worker),
        sync_bytes=done.sync_bytes,
        cpu_cores=usage.cpu_cores,
        resident_bytes=usage.resident_bytes,
        gpu_share=usage.gpu_share,
    )
    facts = EpochFacts(
        epoch=progress.epoch,
        steps=done.tally.steps,
        enough_timed=enough_timed_steps(done.tally.steps, done.timed_steps),
        metric=trial.metric.name,
        learning_rate=trial.optimizer.param_groups[0]["lr"],
        measured=measured,
    )
    record = reduce_over_ranks(gather_rows(mine.to_row(), worker), facts)
    progress.records.append(record)
    progress.epoch, progress.tally = progress.epoch + 1, new_tally(worker)
    return record


def _evaluated(trial: Trial) -> Counts | None:
    """This worker's counts over the test set, by rank 0's buffers; None where the training is not to be evaluated."""
    if trial.config.max_steps is not None:
        return None
    broadcast_from_first(trial.model.buffers(), trial.worker)
    counts = evaluate(trial.shard_loss, trial.metric, trial.data, trial.worker, trial.picked.weights)
    synchronise_device(trial.worker.device)
    return counts


def _call(hooks: Sequence[Hook], point: str, *arguments: object) -> None:
    for hook in hooks:
        getattr(hook, point)(*arguments)
