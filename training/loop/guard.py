"""How gradients that are not finite stay out of the parameters, without a wait for the device in every step."""

from __future__ import annotations

import torch
import torch.distributed as dist

from scalestudy.training.distributed import Worker, synchronise_device
from scalestudy.training.loop.pace import Pace

LOOK_SECONDS = 0.05  # about, from one check to the next, so that a diverged or stopped training soon ends


class Guard:
    """Two numbers on the device: whether a gradient was not finite, and how many steps are skipped since.

    Once `found` is 1 it stays 1, so parameters and optimizer keep the values of the last good step. PyTorch's fused
    optimizers read it on the device (`found_inf`, made for gradient scaling). For others it is read in every step. The
    host reads it in `look`.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, worker: Worker) -> None:
        self.found = torch.zeros((), dtype=torch.float32, device=worker.device)  # which fused optimizers insist on
        self._skipped = torch.zeros((), dtype=torch.float32, device=worker.device)
        self._optimizer, self._worker = optimizer, worker
        self._pace = Pace(LOOK_SECONDS)
        self._reads = not getattr(optimizer, "_step_supports_amp_scaling", False)
        if not self._reads:
            optimizer.grad_scale, optimizer.found_inf = None, self.found  # type: ignore[attr-defined]

    def update(self) -> None:
        """Make the optimizer's step, unless something was found."""
        if not self._reads or not self.found.item():
            self._optimizer.step()
        self._skipped += self.found

    def is_due(self) -> bool:
        """Count a step; return whether to look now, which is equal on all ranks."""
        return self._pace.is_due()

    def look(self) -> int:
        """Return how many of the last steps made no update; 0: all are finite. By a collective: equal on all ranks."""
        synchronise_device(self._worker.device)  # so that the pace follows the device
        between = self._pace.measured()
        if self._worker.world_size == 1:
            skipped = int(self._skipped.item())
        else:
            told = torch.zeros(2, device=self._worker.device)
            told[0] += self._skipped
            told[1] += between if self._worker.rank == 0 else 0
            dist.all_reduce(told, dist.ReduceOp.MAX)
            skipped, between = map(int, told.tolist())
        self._pace.looked(between)
        return skipped
