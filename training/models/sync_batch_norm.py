"""Batch normalisation over the global batch, for any split over the workers.

Shapes: n examples of this worker's shard (n may be 0), C channels, inputs (n, C, …), k workers; m values a channel on
this worker (n times the pixels of an example), M = Σ m on all.

On GPUs that NCCL joins, PyTorch's nn.SyncBatchNorm does the same in fewer kernels, and `sync_batch_norm_class` prefers
it where it can run. Ours runs on any device and backend, is plain tensor operations with one collective each way, and
accepts shards without examples.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from scalestudy.training.distributed import Worker
from scalestudy.training.exceptions import InputError

_REPLACED = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class SynchronisedBatchNorm(_BatchNorm):
    """Batch normalisation over all workers' examples together, in mean, variance and their gradients.

    Running statistics are equal on every rank, and equal to one device's (variance over M - 1). Every rank must run it,
    with inputs (0, C, …) if its shard is empty. In evaluation mode it is PyTorch's and sends nothing. Under
    accumulation it normalises each micro-batch of all workers together. Like PyTorch's, it raises ValueError if a
    channel has a single value in the global batch.
    """

    world_size: int  # k

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the normalised inputs (n, C, …), in their own number format."""
        if not self.training:
            return super().forward(input)
        self._check_input_dim(input)
        outputs, mean, squares, count = _normalise(input, self.weight, self.bias, self.eps, self.world_size)
        if self.track_running_stats and (len(input) or count.item()):
            assert self.running_mean is not None  # track_running_stats says so
            assert self.running_var is not None
            assert self.num_batches_tracked is not None
            self.num_batches_tracked.add_(1)
            share = 1.0 / self.num_batches_tracked if self.momentum is None else self.momentum  # None: of all batches
            for running, value in ((self.running_mean, mean), (self.running_var, squares / (count - 1))):
                running.add_(share * (value.to(running.dtype) - running))
        return outputs

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2 or input.shape[1] != self.num_features:
            raise InputError(
                f"batch normalisation: inputs of shape {list(input.shape)} are not (n, {self.num_features}, ...)",
                "correct the layer before it",
            )


def sync_batch_norm_class(backend: str | None, fewest: int, *, is_compiled: bool) -> type[_BatchNorm]:
    """Return the layer for a group with this backend (None: no group). `fewest`: examples of its smallest micro-batch.

    Both give the same numbers, but for rounding, where every worker has examples. nn.SyncBatchNorm has kernels for CUDA
    alone. A worker without examples sends its moments in the inputs' number format, others in float32, which in bf16 do
    not fit together; and a batch without any example gives it NaN. Traced by torch.compile with its collective, its
    backward fails, as ours would.
    """
    return nn.SyncBatchNorm if backend == "nccl" and fewest > 0 and not is_compiled else SynchronisedBatchNorm


def convert_sync_batch_norm(model: nn.Module, worker: Worker, kind: type[_BatchNorm] = SynchronisedBatchNorm) -> bool:
    """Turn the model's batch normalisations into synchronised ones, in place; return whether it has any.

    Each module stays the same object and changes its class, so names, parameters, buffers, hooks and references to it
    stay valid. Rejected: to replace modules by new ones, which misses references that a model keeps elsewhere. Raises
    ValueError for a batch normalisation of the user's own class, whose forward is unknown.

    One whose running statistics are the mean of all batches (momentum None) becomes ours in any case: in PyTorch's it
    would wait for the device in each step, to read the number of batches.
    """
    found = {name: module for name, module in model.named_modules() if isinstance(module, _BatchNorm)}
    for name, module in found.items():
        if type(module) not in (*_REPLACED, SynchronisedBatchNorm):
            raise InputError(
                f"sync_batch_norm: {name} is a {type(module).__name__}, not one of PyTorch's own classes",
                "use nn.BatchNorm2d or its like, or set sync_batch_norm: false",
            )
        if kind is nn.SyncBatchNorm and module.momentum is not None:
            module.__class__ = nn.SyncBatchNorm
            module.process_group = None  # type: ignore[assignment]  # all workers
        else:
            module.__class__ = SynchronisedBatchNorm
            module.world_size = worker.world_size  # type: ignore[assignment]
    return bool(found)


class _Normalise(torch.autograd.Function):
    """(inputs, weight, bias, eps, k) -> outputs, and the global mean (C,), squared deviations (C,) and M."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        eps: float,
        world_size: int,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        count, mean, squares = _over_workers(_moments(inputs), world_size)
        if inputs.numel() // inputs.shape[1] < 2 and count.item() == 1:  # seldom waits for the device
            raise InputError(
                "batch_size: one value a channel in the global batch has no variance, which batch normalisation needs",
                "choose a larger batch_size",
            )
        divisor = count.clamp(min=1)  # avoids 0 / 0 if no rank has an example
        inverse_std = (squares / divisor + eps).rsqrt()
        scale = inverse_std if weight is None else inverse_std * weight
        shift = -mean * scale if bias is None else bias - mean * scale
        outputs = (inputs * _as_channels(scale, inputs) + _as_channels(shift, inputs)).to(inputs.dtype)
        ctx.save_for_backward(inputs, weight, mean, inverse_std, divisor)
        ctx.world_size = world_size
        ctx.mark_non_differentiable(mean, squares, count)
        return outputs, mean, squares, count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grads: torch.Tensor, *_: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of inputs, weight and bias.

        With y = w (x - mean) / s + b: dx = w/s · (dy - Σ dy / M - (x - mean) / s² · Σ dy (x - mean) / M), both sums
        over all workers; dw and db are this worker's share, which the gradient strategy sums. Source: Ioffe and Szegedy
        2015, arXiv 1502.03167, section 3.
        """
        inputs, weight, mean, inverse_std, divisor = ctx.saved_tensors
        grads = grads.to(mean.dtype)
        centred = inputs - _as_channels(mean, inputs)
        shares = torch.stack((_sum(grads), _sum(grads * centred)))  # (2, C)
        grad_bias = shares[0].clone() if ctx.needs_input_grad[2] else None
        grad_weight = (shares[1] * inverse_std) if ctx.needs_input_grad[1] else None
        grad_inputs = None
        if ctx.needs_input_grad[0]:
            if ctx.world_size > 1:
                dist.all_reduce(shares)
            scale = inverse_std if weight is None else inverse_std * weight
            constant, slope = shares[0] / divisor, shares[1] / divisor * inverse_std**2
            grad_inputs = grads - _as_channels(constant, inputs) - centred * _as_channels(slope, inputs)
            grad_inputs = (grad_inputs * _as_channels(scale, inputs)).to(inputs.dtype)
        return grad_inputs, grad_weight, grad_bias, None, None


# Kept out of torch.compile's graphs: traced with its collective, its backward fails in PyTorch 2.13. The import of the
# compiler costs no start-up time, since every optimizer of PyTorch imports it too.
_normalise = torch.compiler.disable(_Normalise.apply)


def _moments(inputs: torch.Tensor) -> torch.Tensor:
    """Return this worker's m, means and sums of squared deviations from them: (1 + 2C,), in at least float32."""
    values = inputs.numel() // inputs.shape[1]
    dtype = torch.promote_types(inputs.dtype, torch.float32)
    if values == 0:
        return inputs.new_zeros(1 + 2 * inputs.shape[1], dtype=dtype)
    variance, mean = torch.var_mean(inputs.to(dtype), _all_but_channels(inputs), correction=0)
    return torch.cat((mean.new_full((1,), values), mean, variance * values))


def _over_workers(moments: torch.Tensor, world_size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return M, means (C,) and sums of squared deviations from them (C,) over all workers, the same on every rank.

    Combine the parts as Chan, Golub and LeVeque 1979 do ("Updating formulae and a pairwise algorithm for computing
    sample variances"). Rejected: Σ x² - M · mean², which cancels if the mean is large.
    """
    rows = [torch.empty_like(moments) for _ in range(world_size)]
    if world_size > 1:
        dist.all_gather(rows, moments)
    else:
        rows = [moments]
    channels = (len(moments) - 1) // 2
    counts, means, squares = torch.stack(rows).split((1, channels, channels), dim=1)
    count = counts.sum()
    mean = (counts * means).sum(dim=0) / count.clamp(min=1)
    return count, mean, (squares + counts * (means - mean) ** 2).sum(dim=0)


def _all_but_channels(inputs: torch.Tensor) -> list[int]:
    return [0, *range(2, inputs.dim())]


def _sum(values: torch.Tensor) -> torch.Tensor:
    return values.sum(dim=_all_but_channels(values))


def _as_channels(vector: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Reshape (C,) to (1, C, 1, …), to go with `like`."""
    return vector.view(1, -1, *[1] * (like.dim() - 2))
