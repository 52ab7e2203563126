"""Stage 5, training loop: `train` runs one trial on one worker; all workers of the trial call it together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from training.batches import micro_batch_sizes
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
from training.noise_scale import with_required
from training.probe import Picked
from training.records import PHASES, EpochFacts, EpochRecord, RankMeasurements, reduce_over_ranks
from training.seeding import seed_steps
from training.timing import EpochStopwatch, PhaseTimer, enough_timed_steps, warm_up_end
from training.trial import Tally, Trial, new_tally, start_trial

Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class TrainResult:
    """How a trial ended. Every rank holds the same records, but for their time stamps."""

    status: Literal["finished", "diverged"]
    records: list[EpochRecord]  # of whole epochs; the epoch in which a trial diverged has none
    model: nn.Module  # the bare module, with the parameters of the last update
    train_seconds: float  # in steps, the diverged epoch's included
    message: str | None  # where and how it diverged
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
    lost_seconds, message = 0.0, None
    while progress.epoch <= config.epochs and message is None:
        done = run_steps(trial, hooks)
        if done.tally.diverged:
            lost_seconds = done.train_seconds
            at = f"epoch {progress.epoch}, step {done.tally.steps + 1} of {trial.steps}"
            message = f"loss or gradient is not finite in {at}"
        else:
            report(_finish_epoch(trial, done, hooks))
            _call(hooks, "epoch_ends", trial, progress.records[-1])
    trial.optimizer.zero_grad(set_to_none=True)  # gradients may be views that keep a strategy's buckets alive
    train_seconds = sum(record.train_seconds for record in progress.records) + lost_seconds
    status: Literal["finished", "diverged"] = "diverged" if message else "finished"
    return TrainResult(status, progress.records, trial.model, train_seconds, message, trial.details())


def run_steps(trial: Trial, hooks: Sequence[Hook] = ()) -> EpochSteps:
    """The steps of the epoch in progress, up to the first that is not finite on any rank."""
    config, device, tally, epoch = trial.config, trial.worker.device, trial.progress.tally, trial.progress.epoch
    if not tally.steps:
        seed_steps(config.seed, trial.worker.rank, epoch)
    watched = trial.parameters if trial.worker.world_size > 1 else ()  # alone there is nothing to wait for
    plans, shards = trial.plans(), trial.shards(epoch, tally.steps)
    trial.bytes_at_start = trial.sync.bytes_sent - tally.bytes_before
    timed_from = warm_up_end(config.warm_up_steps, trial.steps, epoch, trial.progress.first)
    phases = PhaseTimer(device, watched, trial.steps)
    stopwatch = trial.stopwatch = EpochStopwatch(device, timed_from, tally.samples)
    while tally.steps < trial.steps and not tally.diverged:
        stopwatch.step_starts(tally.steps, tally.samples)
        phases.step_starts(tally.steps)
        trial.plan = plans[tally.steps]
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
    norm overflows counts as not finite too.
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
    factor, loss_sums, last = sync.factor(trial.plan), [], len(trial.micro_batches) - 1
    pieces = zip(*(tensor.split(trial.micro_batches) for tensor in batch), strict=True)
    for index, (inputs, targets) in enumerate(pieces):
        if index < last:
            with sync.accumulating():
                loss_sum = sync.module(inputs, targets)
                loss_sum.backward(_scale(loss_sum, factor))
        else:
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
    """Evaluate, compare the replicas, reduce what all ranks measured, and move on to the next epoch."""
    worker, progress = trial.worker, trial.progress
    measured: dict[str, float | None] = {}
    for hook in hooks:
        measured.update(hook.epoch_measured(trial))
    started = time.perf_counter()
    broadcast_from_first(trial.model.buffers(), worker)
    counts = evaluate(trial.shard_loss, trial.metric, trial.data, worker, trial.picked.weights)
    synchronise_device(worker.device)
    mine = RankMeasurements(
        train_loss_sum=done.tally.loss_sum.item(),
        samples=done.tally.samples,
        train_seconds=done.train_seconds,
        timed_samples=done.timed_samples,
        timed_seconds=done.timed_seconds,
        **{f"{phase}_seconds": done.phases[phase] for phase in PHASES},
        test_loss_sum=counts.loss_sum,
        test_metric_sum=counts.metric_sum,
        test_samples=counts.samples,
        eval_seconds=time.perf_counter() - started,
        peak_memory_bytes=peak_memory_bytes(worker.device),
        replica_difference=largest_difference_from_first(trial.model.parameters(), worker),
        sync_bytes=done.sync_bytes,
    )
    facts = EpochFacts(
        epoch=progress.epoch,
        steps=trial.steps,
        enough_timed=enough_timed_steps(trial.steps, done.timed_steps),
        metric=trial.metric.name,
        learning_rate=trial.optimizer.param_groups[0]["lr"],
        measured=measured,
    )
    record = reduce_over_ranks(gather_rows(mine.to_row(), worker), facts)
    progress.records.append(record)
    progress.epoch, progress.tally = progress.epoch + 1, new_tally(worker)
    return record


def _call(hooks: Sequence[Hook], point: str, *arguments: object) -> None:
    for hook in hooks:
        getattr(hook, point)(*arguments)
