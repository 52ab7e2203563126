"""`train`: steps, evaluation, and again.

A period, the steps from one evaluation to the next, is by default an epoch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from scalestudy.training.batches import micro_batch_sizes
from scalestudy.training.config import TrainConfig
from scalestudy.training.device import peak_memory_bytes, start_memory_count
from scalestudy.training.distributed import (
    Worker,
    broadcast_from_first,
    gather_rows,
    largest_difference_from_first,
    synchronise_device,
)
from scalestudy.training.exceptions import InputError
from scalestudy.training.loop.compiling import compiled_forgotten, keep_gradients
from scalestudy.training.loop.evaluation import evaluate, metrics_of, summed
from scalestudy.training.loop.hooks import Hook
from scalestudy.training.loop.measures import PhaseTimer, Stopwatch, enough_timed_steps, warm_up_end
from scalestudy.training.loop.noise_scale import with_required
from scalestudy.training.loop.probe import Choices
from scalestudy.training.loop.step_graph import SAMPLED_STEPS, StepParts, StepSums
from scalestudy.training.loop.trial import Tally, Trial, new_tally, start_trial
from scalestudy.training.pulse import Pulse
from scalestudy.training.records import PHASES, EpochFacts, EpochRecord, RankMeasurements, reduce_over_ranks
from scalestudy.training.seeding import seed_steps
from scalestudy.training.task import Number, tokens_of
from scalestudy.training.trees import Tree, split, tensors

Status = Literal["finished", "stopped", "diverged", "left"]


@dataclass(frozen=True)
class TrainResult:
    """How a trial ended. The records are equal on all ranks, apart from their time stamps.

    If one rank stops a training, that rank has "stopped" and the others "diverged": NaN is the message between them.
    "left" is the same on all ranks, and means preempted: the training can continue from its checkpoint.
    """

    status: Status
    records: list[EpochRecord]  # of whole periods; one that stopped, diverged or was left has none
    model: nn.Module  # the bare module, with the parameters of the last update
    train_seconds: float  # in steps, also those of a period that was broken off
    message: str | None  # where and how it diverged, or where it was left
    details: Mapping[str, Any]  # what the training chose by itself, plain data
    spent: bool = False  # the ranks' processes should train no further trial: a capture that failed keeps its memory


@dataclass(frozen=True)
class PeriodSteps:
    """What this rank did in the steps of one period."""

    tally: Tally
    train_seconds: float
    timed_seconds: float  # after the warm-up
    timed_samples: int  # after the warm-up
    timed_steps: int  # after the warm-up
    phases: Mapping[str, float]  # seconds in the period
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

    With `config.max_steps` it makes at most that many steps and evaluates none. Such a training is run to be timed; it
    goes on until `config.min_seconds` are.

    `on_epoch` is called on rank 0 with each period's reduced record, first with those of a resumed training. `choices`:
    what an earlier attempt chose by itself. `pulse`: a new one, for whoever watches the training from another thread.
    One process may call it many times. Each call gives the losses and accuracies of a fresh process (on a CPU, to the
    bit). Raises ValueError if settings, data and model do not fit together, DataError for missing data. Exceptions of a
    user's code pass through.
    """
    start_memory_count(worker.device)
    hooks = with_required(config, hooks)
    trial = start_trial(config, worker, choices)
    trial.pulse = pulse or trial.pulse
    if trial.prepares_shapes:
        trial.pulse.will_compile()
    _call(hooks, "train_starts", trial)  # may restore the trial, and its progress with it
    progress = trial.progress
    report = on_epoch if on_epoch is not None and worker.rank == 0 else lambda record: None
    for record in progress.records:
        report(record)

    status: Status = "finished"
    message: str | None = None
    lost_seconds = 0.0  # in steps of a period without a record
    with compiled_forgotten(config), closing(trial.draws(trial.made)) as draws:
        while trial.period_steps and status == "finished":
            done = run_steps(trial, draws, hooks)
            if done.tally.diverged:
                lost_seconds = done.train_seconds
                status = "stopped" if trial.stopping else "diverged"
            elif trial.preempted:
                lost_seconds = done.train_seconds
                status = "left"
            else:
                record = _finish_period(trial, done, hooks)
                report(record)
                _call(hooks, "epoch_ends", trial, record)
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
    spent = trial.graph is not None and trial.graph.failure is not None
    if config.cuda_graph and worker.world_size > 1:
        spent = any(failed for (failed,) in gather_rows([spent], worker))
    return TrainResult(status, progress.records, trial.model, train_seconds, message, trial.details(), spent)


def run_steps(trial: Trial, draws: Iterator[Tree], hooks: Sequence[Hook] = ()) -> PeriodSteps:
    """Run the steps of the period in progress; end at one that is not finite on some rank, or at a preemption."""
    config, device, tally, period = trial.config, trial.worker.device, trial.progress.tally, trial.progress.period
    if not tally.steps:
        seed_steps(config.seed, trial.worker.rank, period)
    steps = trial.period_steps
    trial.bytes_at_start = trial.sync.bytes_sent - tally.bytes_before
    timed_from = warm_up_end(config.warm_up_steps, steps, trial.progress.began_at - trial.budget.begin(period))
    watched = trial.parameters if trial.worker.world_size > 1 else ()  # alone there is nothing to wait for
    phases = PhaseTimer(device, watched, steps, most=SAMPLED_STEPS if trial.graph else None)
    stopwatch = trial.stopwatch = Stopwatch(device, timed_from, tally.samples)
    trial.pulse.turn_to("training")
    while tally.steps < steps and not (tally.diverged or trial.preempted):
        stopwatch.step_starts(tally.steps, tally.samples)
        phases.step_starts(tally.steps)
        trial.plan_step(tally.steps, steps)
        run_step(trial, draws, tally, phases, hooks)
        trial.pulse.stage.count += 1
        if trial.guard.is_due() or tally.steps == steps:
            trial.look()
    seconds, timed_seconds, timed_samples = stopwatch.stop(tally.steps, tally.samples)
    trial.stopwatch = None
    seconds += tally.seconds_before
    sent, timed_steps = trial.bytes_in_period(), max(tally.steps - timed_from - stopwatch.left_out, 0)
    return PeriodSteps(tally, seconds, timed_seconds, timed_samples, timed_steps, phases.phase_seconds(seconds), sent)


def run_step(trial: Trial, draws: Iterator[Tree], tally: Tally, phases: PhaseTimer, hooks: Sequence[Hook]) -> None:
    """One optimizer update: zero, fetch, forward/backward, synchronise, check finite, clip, update, record.

    If the loss is not finite on some rank, no rank updates, in this step and all that follow; `Trial.look` finds out
    later. This needs no collective of its own: that rank runs backward with NaN, so every rank finds NaN in the sum of
    the gradients. A rank whose `should_stop` is true ends the training in the same way, and so does a wrong weight of a
    task. The loop itself waits for the device nowhere in a step; an optimizer, AdaScale or a strategy may
    (docs/training.md).
    """
    step = tally.steps
    trial.zero_gradients()
    phases.mark("optimizer")

    draw = next(draws)
    graph = trial.graph
    measured = graph is not None and trial.is_measured(phases.sampled)
    if graph and (measured or not graph.fits(trial.plan, draw)):
        graph = None
    batch = trial.data.fetched(draw) if graph is None else None
    phases.mark("data")

    with _timing(trial, draw, phases, measured=measured):
        made = None
        if graph is not None:
            parts = StepParts(
                compute=lambda kept: compute(trial, trial.data.fetched(kept), phases, ()),
                apply=lambda: apply(trial, phases, (), sets_rates=False),
            )
            made = graph.step(draw, trial.next_rates(), parts)
            if made is None:  # what was captured of gradients was never computed
                trial.zero_gradients()
                batch = trial.data.fetched(draw)
        made = made or update(trial, batch, phases, hooks)
    trial.rate.advance()

    tally.loss_sum += made.loss_sum
    tally.weight_sum += made.weight
    tally.tokens += made.tokens
    tally.samples += trial.plan.shard
    tally.steps += 1
    _call(hooks, "step_ends", trial, step)


def update(trial: Trial, batch: Tree, phases: PhaseTimer, hooks: Sequence[Hook]) -> StepSums:
    """The part of a step that a device can do alone, apart from hooks."""
    made = compute(trial, batch, phases, hooks)
    trial.sync.synchronise()
    apply(trial, phases, hooks)
    return made


def compute(trial: Trial, batch: Tree, phases: PhaseTimer, hooks: Sequence[Hook]) -> StepSums:
    """This worker's gradients."""
    counts = trial.counts_tokens and trial.plan.shard
    tokens = tokens_of(trial.shard_loss.task, batch) if counts else 0.0
    trial.sync.step_starts(trial.plan)
    loss_sum, weight = forward_and_backward(trial, batch, phases, hooks)
    phases.mark_last_gradient("forward_backward")
    return StepSums(loss_sum, weight, tokens)


def apply(trial: Trial, phases: PhaseTimer, hooks: Sequence[Hook], *, sets_rates: bool = True) -> None:
    """From the sum of all workers' gradients to the updated parameters."""
    sync = trial.sync
    sync.divide_by_weight()
    phases.mark("gradient_sync")

    sync.check_finite(trial.guard.found)
    _call(hooks, "gradients_ready", trial, trial.progress.tally.steps)

    if trial.config.gradient_clip is not None:
        clip_grad_norm_(trial.parameters, trial.config.gradient_clip)

    if sets_rates:
        for group, rate in zip(trial.optimizer.param_groups, trial.next_rates(), strict=True):
            group["lr"] = rate
    trial.guard.update()
    phases.mark("optimizer")
    sync.step_ends()
    phases.mark("gradient_sync")


def forward_and_backward(
    trial: Trial, batch: Tree, phases: PhaseTimer, hooks: Sequence[Hook]
) -> tuple[torch.Tensor, Number]:
    """Accumulate the shard's gradients over its micro-batches. Only the last communicates.

    Returns the shard's loss sum and weight.
    """
    sync, step = trial.sync, trial.progress.tally.steps
    parts = max(trial.config.accumulation, 2 if trial.halves_next else 1)
    trial.halves_next = False
    trial.micro_batches = micro_batch_sizes(trial.plan.shard, parts, keep_empty=trial.shard_loss.runs_empty)
    factor, last = trial.factor(), len(trial.micro_batches) - 1
    loss_sums: list[torch.Tensor] = []
    weights: list[Number] = []
    for index, piece in enumerate(split(batch, trial.micro_batches)):
        with sync.accumulating() if index < last else nullcontext():
            loss_sum, weight = sync.module(piece)
            with phases.backward():
                value = loss_sum.detach()
                loss_sum.backward(value.mul(0).add_(factor))  # NaN unless the loss is finite: 0 · inf
        if index < last and isinstance(trial.config.compile, str):
            keep_gradients(trial.parameters)
        loss_sums.append(value)
        weights.append(weight)
        if not trial.all_used and trial.plan.shard:
            _check_all_used(trial)
        _call(hooks, "backward_ends", trial, step, index)
    return (loss_sums[0], weights[0]) if not last else (torch.stack(loss_sums).sum(), sum(weights))


def _timing(trial: Trial, draw: Tree, phases: PhaseTimer, *, measured: bool) -> AbstractContextManager[None]:
    """Wrap a step's update: some are left out of the timed seconds. `measured`: as of `Trial.is_measured`."""
    if trial.stopwatch is None:
        return nullcontext()
    if trial.prepares_shapes:
        shapes = tuple(tensor.shape for _, tensor in tensors(draw))
        if trial.pulse.is_new("training", shapes, trial.halves_next):
            return _compiling(trial, trial.stopwatch, phases)
    if trial.graph is not None and trial.graph.leaves_timing(trial.plan, measured):
        trial.graph.wait()
        return trial.stopwatch.out_of_timing(trial.plan.shard)
    return nullcontext()


@contextmanager
def _compiling(trial: Trial, stopwatch: Stopwatch, phases: PhaseTimer) -> Iterator[None]:
    """Wrap a step's update where the model is compiled for a new shape: the step is not timed.

    An epoch's last, smaller batch has a shape of its own, and its compilation takes seconds. Rejected: to compile for
    dynamic shapes, which makes every step slower; to compile beforehand, which runs the model on examples that are not
    the training's.
    """
    with trial.pulse.during("compiling"), stopwatch.out_of_timing(trial.plan.shard):
        yield
    phases.forget_step()


def _check_all_used(trial: Trial) -> None:
    """Raise ValueError unless the first backward over examples gave every trained parameter a gradient.

    DistributedDataParallel needs every gradient in every step. We ask for them at any number of workers. Otherwise a
    study would fail at some world sizes, and weight decay would act at some.
    """
    unused = [name for name, each in trial.model.named_parameters() if each.requires_grad and each.grad is None]
    if unused:
        raise InputError(
            f"model: {', '.join(unused)} took no part in the loss of the first batch",
            "use them in forward, set their requires_grad to False, or say train.unused_parameters: true",
        )
    trial.all_used = True


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
        broadcast_from_first(trial.model.buffers(), worker)  # all ranks evaluate with rank 0's
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


def _call(hooks: Sequence[Hook], point: str, *arguments: object) -> None:
    for hook in hooks:
        getattr(hook, point)(*arguments)
