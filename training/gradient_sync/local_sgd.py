"""Local SGD, parameters averaged every few steps in place of gradients summed in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from scalestudy.training.distributed import Worker, broadcast_from_first
from scalestudy.training.gradient_sync.base import (
    FlatBuffer,
    GradientSync,
    StepPlan,
    SyncOptions,
    by_dtype,
    size_in_bytes,
)
from scalestudy.training.losses import ShardLoss


class LocalSGDSync(GradientSync):
    """Every worker updates by its own shard's mean gradient; after H updates the parameters are averaged (Stich 2018).

    The weights of the average are the examples that each worker has seen since the one before: 0 for a worker that had
    none. Momentum stays local, and clipping acts on the local gradient. The last step of an epoch ends with an
    average, so that evaluations and checkpoints see one model. With H = 1, and neither momentum nor clipping, a step
    is that of the whole batch.

    Non-finite gradients: in a step that ends with an average, one collective tells all ranks before any updates. In
    the others nothing is sent: a rank that meets one puts zeros in its place, remembers it, and says so at the next
    average, before any parameters are averaged. So the trial diverges on all ranks at the same step, at most H - 1
    steps late, and no rank ever takes parameters that stem from such a gradient.
    """

    exact = False
    replicated = False

    def __init__(self, shard_loss: ShardLoss, worker: Worker, options: SyncOptions | None = None) -> None:
        super().__init__(shard_loss, worker, options)
        broadcast_from_first((*shard_loss.parameters(), *shard_loss.buffers()), worker)
        groups = [[self.parameters[position].detach() for position in group] for group in by_dtype(self.parameters)]
        self._flat = [(group, FlatBuffer(group)) for group in groups]
        self._steps = 0  # since the last average, the one in progress included
        self._examples = 0  # of this worker, in those steps
        self._share = 0.0  # of this worker in the coming average
        self._averages_now = False
        self._met_non_finite = False
        self._averages = 0

    def factor(self, plan: StepPlan) -> float:
        """Of the shard's mean; an empty shard's loss is 0 anyhow."""
        return 1.0 / max(plan.shard, 1)

    def step_starts(self, plan: StepPlan) -> None:
        """Count the step; decide whether it ends with an average."""
        self._steps += 1
        self._examples += plan.shard
        self._averages_now = plan.is_last or self._steps >= self.options.local_steps

    def agrees_finite(self, norm: torch.Tensor) -> bool:
        """By one collective in steps that end with an average; else every rank goes on, one with zeros if need be."""
        self._met_non_finite |= not super().agrees_finite(norm)
        if self._averages_now:
            return self._all_are_finite()
        if self._met_non_finite:
            self._drop_gradients(norm)
        return True

    def step_ends(self) -> None:
        """Average the parameters if it is time."""
        if self._averages_now:
            for parameters, flat in self._flat:
                self._average(parameters, flat)
            self._steps = self._examples = 0
            self._averages_now = False
            self._averages += 1

    @property
    def at_rest(self) -> bool:
        """Right after an average."""
        return self._steps == 0

    def state(self) -> dict[str, Any]:
        """Taken at rest, there is nothing but a count."""
        return {"averages": self._averages}

    def load_state(self, states: Sequence[Mapping[str, Any]]) -> None:
        """From any number of workers."""
        self._averages = states[0].get("averages", 0)

    def details(self) -> dict[str, Any]:
        """How often parameters were averaged."""
        return {"local_sgd_averages": self._averages}

    def _all_are_finite(self) -> bool:
        """Whether all ranks are; this worker's share of the coming average with it."""
        facts = torch.tensor([self._met_non_finite, self._examples], dtype=torch.float64, device=self.worker.device)
        dist.all_reduce(facts)
        ranks_that_met, examples = facts.tolist()
        self._share = self._examples / examples
        return not ranks_that_met

    def _drop_gradients(self, norm: torch.Tensor) -> None:
        """Zeros, and 0 for their norm, by which they may be clipped."""
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad.zero_()
        norm.zero_()

    def _average(self, parameters: list[torch.Tensor], flat: FlatBuffer) -> None:
        flat.copy_in(parameters)
        flat.memory.mul_(self._share)
        dist.all_reduce(flat.memory)
        flat.copy_out(parameters)
        self.count_allreduce(size_in_bytes(parameters))
