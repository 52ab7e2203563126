"""One optimizer update, in the order in which every training makes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch.nn.utils import clip_grad_norm_

from scalestudy.training.batches import micro_batch_sizes
from scalestudy.training.exceptions import InputError
from scalestudy.training.loop.compiling import keep_gradients
from scalestudy.training.loop.hooks import Hook, call
from scalestudy.training.loop.trial import Trial
from scalestudy.training.task import Number, tokens_of
from scalestudy.training.trees import Tree, split, tensors


def run_step(trial: Trial, batches: Iterator[Tree], hooks: Sequence[Hook]) -> None:
    """Make one optimizer update: zero, fetch, forward/backward, synchronise, check finite, clip, update, record.

    If the loss is not finite on some rank, no rank updates, in this step and all that follow; `Trial.look` finds it
    later. This needs no collective: that rank runs backward with NaN, so every rank finds NaN in the sum of the
    gradients. A rank whose `should_stop` is true ends the training in the same way, and so does a wrong weight of a
    task. Nothing here waits for the device; an optimizer, AdaScale or a strategy may (docs/training.md).
    """
    phases, sync, tally = trial.phases, trial.sync, trial.progress.tally
    step, shard = tally.steps, trial.plan.shard
    trial.zero_gradients()
    phases.mark("optimizer")

    batch = next(batches)
    phases.mark("data")

    with _preparing(trial, batch):
        tokens = tokens_of(trial.shard_loss.task, batch) if trial.counts_tokens and shard else 0.0
        sync.step_starts(trial.plan)
        loss_sum, weight = forward_and_backward(trial, batch, hooks)
        phases.mark_last_gradient("forward_backward")

        sync.synchronise()
        sync.divide_by_weight()
        phases.mark("gradient_sync")

        sync.check_finite(trial.guard.found)
        call(hooks, "gradients_ready", trial, step)

        if trial.config.gradient_clip is not None:
            clip_grad_norm_(trial.parameters, trial.config.gradient_clip)

        # not earlier: AdaScale's gain follows from the gradients that a hook has just measured
        rate = trial.rate.rate()
        for group, share in zip(trial.optimizer.param_groups, trial.group_rates, strict=True):
            group["lr"] = rate * share
        trial.guard.update()
        phases.mark("optimizer")

        sync.step_ends()
        phases.mark("gradient_sync")

    trial.rate.advance()
    tally.add(loss_sum, weight, tokens, samples=shard, learning_rate=rate)
    call(hooks, "step_ends", trial, step)


@contextmanager
def _preparing(trial: Trial, batch: Tree) -> Iterator[None]:
    """Wrap a step, which counts neither in samples a second nor in the phases if its batch has a new shape.

    Such a step is long where the model is compiled for it, or algorithms are timed. Rejected: to compile for dynamic
    shapes, which makes every step slower; to compile beforehand, which runs the model on examples that are not the
    training's.
    """
    shapes = tuple(tensor.shape for _, tensor in tensors(batch)) if trial.prepares_shapes else ()
    if not trial.pulse.is_new("training", shapes, trial.halves_next):
        yield
        return
    with trial.pulse.during("compiling"), trial.out_of_rate():
        yield
    trial.phases.forget_step()


def forward_and_backward(trial: Trial, batch: Tree, hooks: Sequence[Hook]) -> tuple[torch.Tensor, Number]:
    """Accumulate the shard's gradients over its micro-batches; return the shard's loss sum and its weight.

    Only the last micro-batch communicates.
    """
    parts = max(trial.config.accumulation, 2 if trial.halves_next else 1)
    trial.halves_next = False
    trial.micro_batches = micro_batch_sizes(trial.plan.shard, parts, keep_empty=trial.shard_loss.runs_empty)
    factor, last = trial.factor(), len(trial.micro_batches) - 1
    loss_sums: list[torch.Tensor] = []
    weights: list[Number] = []
    for index, piece in enumerate(split(batch, trial.micro_batches)):
        with trial.sync.accumulating() if index < last else nullcontext():
            loss_sum, weight = trial.sync.module(piece)
            with trial.phases.backward():
                value = loss_sum.detach()
                loss_sum.backward(value.mul(0).add_(factor))  # NaN unless the loss is finite: 0 · inf
        if index < last and isinstance(trial.config.compile, str):
            keep_gradients(trial.parameters)
        loss_sums.append(value)
        weights.append(weight)
        if not trial.all_used and trial.plan.shard:
            _check_all_used(trial)
        call(hooks, "backward_ends", trial, trial.progress.tally.steps, index)
    return (loss_sums[0], weights[0]) if not last else (torch.stack(loss_sums).sum(), sum(weights))


def _check_all_used(trial: Trial) -> None:
    """Raise InputError unless the first backward over examples gave every trained parameter a dense gradient.

    DistributedDataParallel needs every gradient in every step. We ask for them at any number of workers. Otherwise a
    study would fail at some world sizes, and weight decay would apply at some. Gradients that are not dense could be
    summed by some strategies, and neither checked, clipped nor updated in one kernel.
    """
    trained = [(name, each.grad) for name, each in trial.model.named_parameters() if each.requires_grad]
    if unused := [name for name, gradient in trained if gradient is None]:
        raise InputError(
            f"model: {', '.join(unused)} took no part in the loss of the first batch",
            "use them in forward, set their requires_grad to False, or say train.unused_parameters: true",
        )
    odd = [f"{name} ({each.layout})" for name, each in trained if each is not None and each.layout != torch.strided]
    if odd:
        raise InputError(f"model: the gradient of {', '.join(odd)} is not dense", "build that layer with sparse=False")
    trial.all_used = True
