"""`train`: steps, then evaluation, period after period.

A period, the steps from one evaluation to the next, is by default an epoch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from scalestudy.training.config import PHASES, TrainConfig
from scalestudy.training.device import peak_memory_bytes, start_memory_count
from scalestudy.training.distributed import (
    Worker,
    broadcast_from_first,
    equal_in_form,
    gather_rows,
    largest_difference_from_first,
    synchronise_device,
)
from scalestudy.training.loop.compiling import compiled_forgotten
from scalestudy.training.loop.evaluation import evaluate, metrics_of, summed
from scalestudy.training.loop.hooks import Hook, call
from scalestudy.training.loop.measures import PhaseTimer, Stopwatch, enough_timed_steps, warm_up_end
from scalestudy.training.loop.noise_scale import with_required
from scalestudy.training.loop.probe import Choices
from scalestudy.training.loop.step import run_step
from scalestudy.training.loop.trial import Tally, Trial, new_tally, start_trial
from scalestudy.training.pulse import Pulse
from scalestudy.training.records import EpochFacts, EpochRecord, RankMeasurements, reduce_over_ranks
from scalestudy.training.seeding import seed_steps
from scalestudy.training.trees import Tree

Status = Literal["finished", "stopped", "diverged", "left"]


@dataclass(frozen=True)
class TrainResult:
    """The end of a trial. The records are equal on all ranks, apart from their time stamps.

    A rank that stops a training has the status "stopped". It tells the others by sending NaN gradients, so they have
    "diverged". "left" is the same on all ranks, and means preempted: the training can continue from its checkpoint.
    """

    status: Status
    records: list[EpochRecord]  # of whole periods; one that stopped, diverged or was left has none
    model: nn.Module  # the bare module, with the parameters of the last update
    train_seconds: float  # in steps, including a period that was broken off
    message: str | None  # where and how it diverged, or where it was left
    details: Mapping[str, Any]  # what the training chose by itself, plain data


@dataclass(frozen=True)
class PeriodSteps:
    """What this rank did in the steps of one period."""

    tally: Tally
    train_seconds: float
    timed_seconds: float  # after the warm-up
    timed_samples: int  # after the warm-up
    timed_steps: int  # after the warm-up
    phases: Mapping[str, float]  # seconds in the period
    starved_share: float  # as `PhaseTimer.starved_share`
    sync_bytes: int


def train(
    config: TrainConfig,
    worker: Worker,
    *,
    hooks: Sequence[Hook] = (),
    on_epoch: Callable[[EpochRecord], None] | None = None,
    choices: Choices | None = None,
    pulse: Pulse | None = None,
) -> TrainResult:
    """Train the config's model to the end of its budget on this worker's shards. Call it on all ranks of the group.

    With `config.max_steps` make at most that many steps and no evaluation. Such a training is run to be timed; it goes
    on until `config.min_seconds` are timed.

    `on_epoch`: called on rank 0 with each period's reduced record, first with the records of a resumed training.
    `choices`: what an earlier attempt chose by itself. `pulse`: a new one, for whoever watches the training from
    another thread. One process may call it many times. Each call gives the losses and accuracies of a fresh process (on
    a CPU, to the bit). Raises InputError if settings, data and model do not fit together, DataError for missing data.
    Exceptions of a user's code pass through.
    """
    start_memory_count(worker.device)
    hooks = with_required(config, hooks)
    trial = start_trial(config, worker, choices)
    trial.pulse = pulse or trial.pulse
    if trial.prepares_shapes:
        trial.pulse.will_compile()
    call(hooks, "train_starts", trial)  # may restore the trial, and its progress with it
    progress = trial.progress
    report = on_epoch if on_epoch is not None and worker.rank == 0 else lambda record: None
    for record in progress.records:
        report(record)

    status: Status = "finished"
    message: str | None = None
    lost_seconds = 0.0  # in steps of a period without a record
    with compiled_forgotten(config), closing(trial.shards(trial.made)) as batches:
        while trial.period_steps and status == "finished":
            done = run_steps(trial, batches, hooks)
            if done.tally.diverged:
                lost_seconds = done.train_seconds
                status = "stopped" if trial.stopping else "diverged"
            elif trial.preempted:
                lost_seconds = done.train_seconds
                status = "left"
            else:
                record = _finish_period(trial, done, hooks)
                report(record)
                call(hooks, "epoch_ends", trial, record)
                trial.prolong()
                status = "left" if trial.preempted else "finished"

    epochs, steps = divmod(trial.made, trial.steps)
    if status == "diverged":
        place = f"step {steps + 1} of {trial.steps}"
        message = f"loss or gradient is not finite in {'' if trial.is_stream else f'epoch {epochs + 1}, '}{place}"
    elif status == "left":
        message = f"{epochs} epochs and {steps} steps of the next are made"
        if trial.is_stream:
            message = f"{steps} of {trial.steps} steps are made"
    trial.optimizer.zero_grad(set_to_none=True)  # gradients may be views that keep a strategy's buckets alive
    train_seconds = sum(record.train_seconds for record in progress.records) + lost_seconds
    return TrainResult(status, progress.records, trial.model, train_seconds, message, trial.details())


def run_steps(trial: Trial, batches: Iterator[Tree], hooks: Sequence[Hook] = ()) -> PeriodSteps:
    """Run the steps of the period in progress; end at one that is not finite on some rank, or at a preemption."""
    config, device, tally, period = trial.config, trial.worker.device, trial.progress.tally, trial.progress.period
    if not tally.steps:
        seed_steps(config.seed, trial.worker.rank, period)
    steps = trial.period_steps
    trial.bytes_at_start = trial.sync.bytes_sent - tally.bytes_before
    timed_from = warm_up_end(config.warm_up_steps, steps, trial.progress.began_at - trial.budget.begin(period))
    watched = trial.parameters if trial.worker.world_size > 1 else ()  # alone there is nothing to wait for
    phases = trial.phases = PhaseTimer(device, watched, steps)
    stopwatch = trial.stopwatch = Stopwatch(device, timed_from, tally.samples)
    trial.pulse.turn_to("training")
    while tally.steps < steps and not (tally.diverged or trial.preempted):
        stopwatch.step_starts(tally.steps, tally.samples)
        phases.step_starts(tally.steps)
        trial.plan_step(tally.steps, steps)
        run_step(trial, batches, hooks)
        trial.pulse.stage.count += 1
        if trial.guard.is_due() or tally.steps == steps:
            trial.look()
    seconds, timed_seconds, timed_samples = stopwatch.stop(tally.steps, tally.samples)
    trial.stopwatch = None
    seconds += tally.seconds_before
    sent, timed_steps = trial.bytes_in_period(), max(tally.steps - timed_from - stopwatch.left_out, 0)
    return PeriodSteps(
        tally=tally,
        train_seconds=seconds,
        timed_seconds=timed_seconds,
        timed_samples=timed_samples,
        timed_steps=timed_steps,
        phases=phases.phase_seconds(seconds),
        starved_share=phases.starved_share(),
        sync_bytes=sent,
    )


def _finish_period(trial: Trial, done: PeriodSteps, hooks: Sequence[Hook]) -> EpochRecord:
    """Evaluate, compare the replicas, reduce what all ranks measured, and move on to the next period.

    A training of `max_steps` is not evaluated: its records have NaN for the results of an evaluation.
    """
    worker, progress = trial.worker, trial.progress
    measured: dict[str, float | None] = {}
    for hook in hooks:
        measured.update(hook.epoch_measured(trial))

    test_loss, tested, eval_seconds = math.nan, dict[str, float](), math.nan
    if trial.config.max_steps is None:
        started = time.perf_counter()
        buffers = equal_in_form(trial.model.named_buffers(), worker)
        broadcast_from_first(buffers, worker)  # all ranks evaluate with rank 0's
        sums = evaluate(trial.shard_loss, trial.data, worker, trial.choices.weights, trial.pulse)
        synchronise_device(worker.device)
        eval_seconds = time.perf_counter() - started
        test_loss, tested = metrics_of(trial.shard_loss.task, summed(sums, worker), trial.metric)

    usage = trial.usage.since_last()
    mine = RankMeasurements(
        train_loss_sum=done.tally.loss_sum.item(),
        train_weight_sum=float(done.tally.weight_sum),
        samples=done.tally.samples,
        tokens=float(done.tally.tokens) if trial.counts_tokens else math.nan,
        train_seconds=done.train_seconds,
        timed_samples=done.timed_samples,
        timed_seconds=done.timed_seconds,
        **{f"{phase}_seconds": done.phases[phase] for phase in PHASES},
        eval_seconds=eval_seconds,
        peak_memory_bytes=peak_memory_bytes(worker.device),
        replica_difference=largest_difference_from_first(trial.model.parameters(), worker),
        sync_bytes=done.sync_bytes,
        cpu_cores=usage.cpu_cores,
        starved_share=done.starved_share,
        resident_bytes=usage.resident_bytes,
        gpu_share=usage.gpu_share,
        enough_timed=float(enough_timed_steps(done.tally.steps, done.timed_steps)),
    )
    facts = EpochFacts(
        epoch=progress.period,
        steps=done.tally.steps,
        metric=trial.metric,
        test_loss=test_loss,
        tested=tested,
        learning_rate=done.tally.learning_rate,
        measured=measured,
    )
    record = reduce_over_ranks(gather_rows(mine.to_row(), worker), facts)
    progress.records.append(record)
    progress.period, progress.tally = progress.period + 1, new_tally(worker)
    return record
