"""What the tests of gradient strategies share: steps of a small model, made as the contract of base.py says."""

from __future__ import annotations

import io
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from scalestudy.training.batches import even_weights, micro_batch_sizes, shard_bounds
from scalestudy.training.distributed import Worker, largest_difference_from_first
from scalestudy.training.gradient_sync import GradientSync, StepPlan, SyncOptions, make_gradient_sync
from scalestudy.training.seeding import seed_parameters
from scalestudy.training.task import ShardLoss
from tests.support.training.helpers import examples_task, state_of

INPUTS, CLASSES = 24, 5
EXACT = ("ddp", "naive", "flat", "ring")
LOSSY = ("bf16", "powersgd", "local_sgd")
ELEMENTS = 24 * 32 + 32 + 32 * 16 + 16 + 16 * 5  # 1,408 in the small model
TOLERANCE = 1e-12  # of parameters in float64, after 20 steps


@dataclass(frozen=True)
class Steps:
    """What is trained, and how."""

    strategy: str = "ddp"
    batches: tuple[int, ...] = (24,) * 20  # examples of each step
    weights: tuple[float, ...] | None = None  # of the workers; None: equal
    accumulation: int = 1
    momentum: float = 0.0
    clip: float | None = None
    learning_rate: float = 0.2
    hidden: tuple[int, int] = (32, 16)
    dtype: torch.dtype = torch.float64  # rounding is far below any mistake
    epoch_steps: int = 10
    measured: tuple[int, ...] = ()  # steps that measure local_sq_norm
    spoilt: tuple[int, int] | None = None  # step and rank that meet a NaN
    options: SyncOptions = field(default_factory=lambda: SyncOptions(total_steps=20))


class Run:
    """One worker's training, a step at a time."""

    def __init__(self, worker: Worker, steps: Steps) -> None:
        self.worker, self.steps = worker, steps
        seed_parameters(3)
        self.model = small_model(*steps.hidden).to(steps.dtype)
        self.sync = self._make_sync()
        self.optimizer = torch.optim.SGD(self.model.parameters(), steps.learning_rate, momentum=steps.momentum)
        self.found = torch.zeros(())
        self.diverged_at: int | None = None
        self.local_sq_norms: list[float | None] = []

    def _make_sync(self) -> GradientSync:
        shard_loss = ShardLoss(self.model, examples_task())
        return make_gradient_sync(self.steps.strategy, shard_loss, self.worker, self.steps.options)

    def go_on(self, first: int, stop: int | None = None) -> None:
        """The steps from `first` to before `stop`, or to the one that diverges."""
        for index in range(first, len(self.steps.batches) if stop is None else stop):
            if self.diverged_at is None:
                self.step(index)

    def backward(self, index: int) -> StepPlan:
        """Forward and backward of this worker's shard."""
        steps, sync = self.steps, self.sync
        inputs, targets, plan = shard_of(steps, index, self.worker)
        self.optimizer.zero_grad(set_to_none=True)
        sync.measures_local = index in steps.measured
        sync.step_starts(plan)
        parts = micro_batch_sizes(plan.shard, steps.accumulation)
        pieces = zip(inputs.split(parts), targets.split(parts), strict=True)
        for part, (some_inputs, some_targets) in enumerate(pieces):
            with sync.accumulating() if part < len(parts) - 1 else nullcontext():
                sync.module((some_inputs, some_targets))[0].mul(sync.factor(plan)).backward()
        return plan

    def step(self, index: int) -> None:
        """One update, or the step in which the training diverged."""
        self.backward(index)
        self.sync.synchronise()
        local = self.sync.local_sq_norm
        self.local_sq_norms.append(None if local is None else local.item())
        self.sync.check_finite(self.found)
        if self.steps.clip is not None:
            clip_grad_norm_(self.model.parameters(), self.steps.clip)
        if not self.found.item():
            self.optimizer.step()
        self.sync.step_ends()
        if self.found.item() and self.sync.at_rest:
            self.diverged_at = index


def small_model(first: int, second: int) -> nn.Module:
    """Smooth, so that rounding is not amplified; with matrices that PowerSGD compresses."""
    last = nn.Linear(second, CLASSES, bias=False)
    return nn.Sequential(nn.Linear(INPUTS, first), nn.Tanh(), nn.Linear(first, second), nn.Tanh(), last)


def shard_of(steps: Steps, index: int, worker: Worker) -> tuple[torch.Tensor, torch.Tensor, StepPlan]:
    """(inputs, targets, plan) of this worker in a step; the batch depends on nothing but the step."""
    batch = steps.batches[index]
    generator = torch.Generator().manual_seed(index)
    inputs = torch.randn(batch, INPUTS, generator=generator, dtype=torch.float64).to(steps.dtype)
    targets = inputs[:, :CLASSES].argmax(dim=1)
    start, stop = shard_bounds(batch, steps.weights or even_weights(worker.world_size), worker.rank)
    mine = inputs[start:stop].clone()
    if steps.spoilt == (index, worker.rank):
        mine[:1] = float("nan")
    is_last = (index + 1) % steps.epoch_steps == 0 or index + 1 == len(steps.batches)
    return mine, targets[start:stop], StepPlan(stop - start, batch, is_last)


def run_steps(worker: Worker, steps: Steps) -> dict[str, Any]:
    """All of the steps, up to the one that diverges, and what came of them."""
    run = Run(worker, steps)
    first = state_of(run.model)
    run.go_on(0)
    return {
        "first_state": first,
        "state": state_of(run.model),
        "difference": largest_difference_from_first(run.model.parameters(), worker),
        "diverged_at": run.diverged_at,
        "local_sq_norms": run.local_sq_norms,
        "bytes": run.sync.bytes_sent,
        "details": run.sync.details(),
    }


def through_a_file(state: Any) -> Any:
    """Written and read as a checkpoint may be: nothing but tensors, numbers and strings passes."""
    stream = io.BytesIO()
    torch.save(state, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=True)


def saved(run: Run) -> dict[str, Any]:
    """What a checkpoint of this rank holds."""
    parts = {"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict(), "sync": run.sync.state()}
    return through_a_file(parts)


def resumed(worker: Worker, steps: Steps, checkpoints: list[dict[str, Any]], rehearsed: bool = True) -> Run:
    """A new training that takes up the checkpoints of all ranks, after a first backward that is thrown away."""
    run = Run(worker, steps)
    if rehearsed:
        run.backward(0)
    checkpoints = through_a_file(checkpoints)  # an optimizer goes on in the very tensors that it is given
    mine = checkpoints[worker.rank]
    run.model.load_state_dict(mine["model"])
    run.optimizer.load_state_dict(mine["optimizer"])
    run.sync.load_state([checkpoint["sync"] for checkpoint in checkpoints])
    return run


def checkpoint_after(worker: Worker, steps: Steps, count: int) -> dict[str, Any]:
    """This rank's checkpoint after so many steps."""
    run = Run(worker, steps)
    run.go_on(0, count)
    parts = {"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict(), "sync": run.sync.state()}
    return through_a_file(parts)


def state_after_resuming(
    worker: Worker, steps: Steps, checkpoints: list[dict[str, Any]], first: int, rehearsed: bool = True
) -> dict[str, Any]:
    """Where the steps from `first` on lead."""
    run = resumed(worker, steps, checkpoints, rehearsed)
    run.go_on(first)
    return {"state": state_of(run.model), "details": run.sync.details()}
