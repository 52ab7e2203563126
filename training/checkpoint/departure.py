"""Stage 5, training loop: how all ranks leave a training at the same moment, where they write a checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from training.distributed import broadcast_from_first
from training.trial import Trial

LOOK_SECONDS = 0.5
MOST_BETWEEN = 64


class Departure:
    """Rank 0's word on whether all leave now, which the others hear in a broadcast of two numbers.

    Not by NaN, as a stop is agreed on (`Trial.should_stop`): the step that carries it leaves generators and buffers
    behind that are no checkpoint's. And not in every step: rank 0 also says at how many moments from now they meet
    again, some half a second away by the pace of the last ones; the distance grows by doubling, up to 64 moments, so
    that steps that become slower are not waited for too long. One rank alone needs no broadcast, and looks each time.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: seconds, looked at on rank 0 alone."""
        self._clock = clock
        self._between = 1  # moments from the last look to the next
        self._moments = 0  # since the last look
        self._looked_at = clock()

    def is_now(self, trial: Trial) -> bool:
        """Whether all ranks leave; call it at the same moments of the training on all ranks."""
        if trial.worker.world_size == 1:
            return trial.should_leave()
        self._moments += 1
        if self._moments < self._between:
            return False
        word = [trial.should_leave(), self._next()] if trial.worker.rank == 0 else [0, 0]
        said = torch.tensor(word, dtype=torch.int64, device=trial.worker.device)
        broadcast_from_first([said], trial.worker)
        leave, self._between = said.tolist()
        self._moments = 0
        return bool(leave)

    def _next(self) -> int:
        """In how many moments to look again."""
        now = self._clock()
        seconds, self._looked_at = now - self._looked_at, now
        in_time = LOOK_SECONDS * self._moments / max(seconds, 1e-9)
        return max(1, int(min(in_time, 2 * self._between, MOST_BETWEEN)))
