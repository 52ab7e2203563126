"""A gradient strategy of your own: one allreduce a parameter, all started before the first is waited for."""

import torch
import torch.distributed as dist

from scalestudy.training.distributed import Worker, broadcast_from_first
from scalestudy.training.gradient_sync import GradientSync, SyncOptions
from scalestudy.training.task import ShardLoss


class MySync(GradientSync):
    """Sums gradients parameter by parameter; exact, and the same bits on every rank."""

    def __init__(self, shard_loss: ShardLoss, worker: Worker, options: SyncOptions | None = None) -> None:
        super().__init__(shard_loss, worker, options)
        broadcast_from_first((*shard_loss.parameters(), *shard_loss.buffers()), worker)  # all ranks begin equal

    def synchronise(self) -> None:
        """Every `.grad` becomes the sum over the workers; a worker without examples brings zeros."""
        self.measure_local()  # before anything is sent: the gradient noise scale needs this worker's own
        pending = []
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            pending.append(dist.all_reduce(parameter.grad, async_op=True))
            self.count_allreduce(parameter.grad.nbytes)
        for work in pending:
            work.wait()
