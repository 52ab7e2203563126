"""Strategies that sum gradients by explicit collectives after backward.

Shapes: n elements of all gradients, k workers.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.distributed as dist

from scalestudy.training.distributed import Worker, carried, replicate
from scalestudy.training.gradient_sync.base import FlatBuffer, GradientSync, SyncOptions, by_dtype, size_in_bytes
from scalestudy.training.task import ShardLoss


class NaiveSync(GradientSync):
    """The book's allreduce, parameter by parameter: gather on rank 0, sum there, send the sum back.

    The sum is copied *into* each rank's gradient. The book's notebook rebinds a list entry instead, so its replicas
    never see the sum. A parameter without a gradient counts as zeros, so that all ranks make the same calls. Rank 0
    sends k - 1 times the gradients' bytes, every other rank sends them once.
    """

    def __init__(self, shard_loss: ShardLoss, worker: Worker, options: SyncOptions | None = None) -> None:
        super().__init__(shard_loss, worker, options)
        replicate(shard_loss, worker)

    def synchronise(self) -> None:
        """Make one gather and one broadcast a parameter."""
        self.measure_local()
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            self._sum_in_place(parameter.grad)
        self.bytes_sent += size_in_bytes(self.parameters) * (self.worker.world_size - 1 if self.worker.rank == 0 else 1)

    def _sum_in_place(self, gradient: torch.Tensor) -> None:
        mine = carried(gradient)
        if self.worker.rank == 0:
            shards = [torch.empty_like(mine) for _ in range(self.worker.world_size)]
            dist.gather(mine, shards, dst=0)
            mine.copy_(torch.stack(shards).sum(dim=0))
        else:
            dist.gather(mine, dst=0)
        dist.broadcast(mine, src=0)
        gradient.copy_(mine)


class FlatSync(GradientSync):
    """All gradients in one buffer (one a dtype), summed by one allreduce after backward. Nothing overlaps.

    This is fastest for a small model: one message, and no bookkeeping while backward runs. Gradients are views of the
    buffer afterwards. A parameter without a gradient counts as zeros.
    """

    in_chunks: ClassVar[bool] = False  # whether a buffer's length is a multiple of k

    def __init__(self, shard_loss: ShardLoss, worker: Worker, options: SyncOptions | None = None) -> None:
        super().__init__(shard_loss, worker, options)
        replicate(shard_loss, worker)
        groups = [[self.parameters[position] for position in group] for group in by_dtype(self.parameters)]
        chunks = worker.world_size if self.in_chunks else 1
        self._flat = [(group, FlatBuffer(group, multiple_of=chunks)) for group in groups]

    def synchronise(self) -> None:
        """Copy the gradients in, sum, and bind every `.grad` to its part of the sum."""
        self.measure_local()
        for parameters, flat in self._flat:
            flat.copy_in([parameter.grad for parameter in parameters])
            self._sum_in_place(flat.memory)
            for parameter, view in zip(parameters, flat.views, strict=True):
                parameter.grad = view

    def _sum_in_place(self, buffer: torch.Tensor) -> None:
        dist.all_reduce(buffer)
        self.count_allreduce(size_in_bytes([buffer]))


class RingSync(FlatSync):
    """The ring allreduce from sends and receives alone: reduce-scatter, then all-gather, of one buffer.

    The buffer is k chunks of n / k numbers, padded with zeros to a multiple of k. In each of 2 (k - 1) rounds a worker
    sends one chunk to the next rank and receives one from the rank before. In the first half it adds what it receives,
    until it holds one chunk's sum over all workers. In the second half finished chunks travel on. Each sum is made once
    and copied, so all ranks have the same bits. (Patarasuk and Yuan 2009.)
    """

    in_chunks = True

    def _sum_in_place(self, buffer: torch.Tensor) -> None:
        rank, workers = self.worker.rank, self.worker.world_size
        mine = carried(buffer)
        chunks = mine.chunk(workers)
        received = torch.empty_like(chunks[0])
        for turn in range(workers - 1):
            self._pass_on(chunks[(rank - turn) % workers], received)
            chunks[(rank - turn - 1) % workers].add_(received)
        for turn in range(workers - 1):
            self._pass_on(chunks[(rank - turn + 1) % workers], chunks[(rank - turn) % workers])
        buffer.copy_(mine)

    def _pass_on(self, chunk: torch.Tensor, received: torch.Tensor) -> None:
        """Send one chunk to the next rank while another arrives from the rank before."""
        rank, workers = self.worker.rank, self.worker.world_size
        both = [
            dist.P2POp(dist.isend, chunk, (rank + 1) % workers),
            dist.P2POp(dist.irecv, received, (rank - 1) % workers),
        ]
        for transfer in dist.batch_isend_irecv(both):
            transfer.wait()
        self.bytes_sent += size_in_bytes([chunk])
