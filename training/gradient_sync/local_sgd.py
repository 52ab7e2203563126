"""Local SGD: parameters are averaged every few steps; no gradients are summed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from scalestudy.training.distributed import Worker, replicate
from scalestudy.training.gradient_sync.base import (
    FlatBuffer,
    GradientSync,
    StepPlan,
    SyncOptions,
    by_dtype,
    size_in_bytes,
)
from scalestudy.training.task import ShardLoss


class LocalSGDSync(GradientSync):
    """Updates by each worker's own mean gradient; after H of them the parameters are averaged (Stich 2018).

    A worker's weight in an average is the number of examples that it has seen since the one before, maybe 0, or the sum
    of its batches' weights if the task gives weights. Momentum stays local, and clipping applies to the local gradient.
    The last step of an epoch ends with an average, so that evaluations and checkpoints see one model. With H = 1, no
    momentum and no clipping, a step equals the whole batch's.

    Non-finite gradients: in a step that ends with an average, all ranks learn of it by one collective before any
    updates. In the other steps nothing is sent. A rank with such a gradient makes no more updates, and says so at the
    next average. So all ranks stop updating at most H - 1 steps late. No rank ever takes parameters that stem from such
    a gradient.
    """

    exact = False
    replicated = False

    def __init__(self, shard_loss: ShardLoss, worker: Worker, options: SyncOptions | None = None) -> None:
        super().__init__(shard_loss, worker, options)
        replicate(shard_loss, worker)
        groups = [[self.parameters[position].detach() for position in group] for group in by_dtype(self.parameters)]
        self._flat = [(group, FlatBuffer(group)) for group in groups]
        self._steps = 0  # since the last average, the one in progress included
        self._seen: float | torch.Tensor = 0.0  # by this worker in those steps: examples, or the task's weights
        self._wrong = torch.zeros(2, device=worker.device)  # weights that were not finite, that were below 0
        self._shard = 0  # examples of the step in progress
        self._share = torch.zeros((), dtype=torch.float64, device=worker.device)  # of this worker in the next average
        self._agreed = torch.zeros((), device=worker.device)  # `found` at the last average, equal on all ranks
        self._averages_now = False
        self._averages = 0

    def factor(self, plan: StepPlan) -> float:
        """Return the factor of the shard's mean; an empty shard's loss is 0 with any."""
        return 1.0 / max(plan.shard, 1)

    def step_starts(self, plan: StepPlan) -> None:
        """Count the step, and decide whether it ends with an average."""
        self._steps += 1
        self._shard = plan.shard
        if self.weight is None:
            self._seen += plan.shard
        self._averages_now = plan.is_last or self._steps >= self.options.local_steps

    def divide_by_weight(self) -> None:
        """Divide by this worker's weight; where that is 0, the gradients are zeros and stay so."""
        if self.weight is not None and self.weight.grad is not None:
            weight, not_finite = self.weight.grad
            self._seen = self._seen + weight.detach().double() * self._shard
            self._wrong = self._wrong + torch.stack([not_finite != 0, weight < 0])
            divisor = weight.where(weight != 0, 1)
            self._divide(divisor.where((weight >= 0) & (not_finite == 0), torch.nan))

    def check_finite(self, found: torch.Tensor) -> None:
        """Check for this rank alone; in a step that ends with an average, for all."""
        self._find(found)
        if not self._averages_now:
            return
        facts = torch.zeros(4, dtype=torch.float64, device=self.worker.device)
        facts[0] += found
        facts[1] += self._seen
        facts[2:] += self._wrong
        mine = facts[1].clone()
        dist.all_reduce(facts)
        ranks_that_met, all_seen, not_finite, negative = facts.unbind()
        if self.weight is not None:
            weight = torch.where(negative > 0, -1.0, all_seen)
            self.told = self._told_until(self._agreed, torch.stack([weight, not_finite]))
        found.copy_((ranks_that_met > 0) | (all_seen <= 0))
        self._agreed = found.clone()
        self._share = torch.where(all_seen > 0, mine / all_seen, 1 / self.worker.world_size)

    def step_ends(self) -> None:
        """Average the parameters if the step ends with an average."""
        if self._averages_now:
            for parameters, flat in self._flat:
                flat.copy_in(parameters)
                flat.memory.mul_(self._share)
                dist.all_reduce(flat.memory)
                flat.copy_out(parameters)
                self.count_allreduce(size_in_bytes(parameters))
            self._steps, self._seen = 0, 0.0
            self._averages_now = False
            self._averages += 1

    @property
    def at_rest(self) -> bool:
        """Whether an average was the last thing done."""
        return self._steps == 0

    def state(self) -> dict[str, Any]:
        """Return a count; at rest there is nothing else."""
        return {"averages": self._averages}

    def load_state(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Resume from any number of workers."""
        self._averages = states[0].get("averages", 0)

    def details(self) -> dict[str, Any]:
        """Return the number of averages."""
        return {"local_sgd_averages": self._averages}
