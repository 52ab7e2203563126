"""Stage 5, training loop: the model with its loss, summed over a worker's shard of the batch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from training.losses import PerExample, require_outputs


class ShardLoss(nn.Module):
    """The unit that a gradient strategy may wrap: (inputs, targets) of a shard -> the loss summed over it.

    An empty shard gives a zero that depends on every parameter, so that its backward makes zero gradients everywhere,
    DistributedDataParallel's hooks included, and the worker takes part in every collective. Rejected: an empty batch
    through every model, which batch normalisation and some users' models refuse. `runs_empty` says that the model
    wants it all the same: with collectives inside it (synchronised batch normalisation), every rank has to run it. The
    zero is added to its empty loss, so that NaN still has a way into the gradients (`Trial.should_stop`).
    """

    def __init__(
        self,
        model: nn.Module,
        loss: PerExample,
        precision: Callable[[], AbstractContextManager[object]] = nullcontext,
        *,
        channels_last: bool = False,
        runs_empty: bool = False,
    ) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        self.precision = precision
        self.channels_last = channels_last
        self.runs_empty = runs_empty

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The scalar loss sum of inputs (N, C, …) and targets (N, …); N may be 0."""
        if len(inputs):
            return self.loss(self.predict(inputs), targets).sum()
        zero = torch.stack([(parameter * 0).sum() for parameter in self.trained_parameters()]).sum()
        return self.loss(self.predict(inputs), targets).sum() + zero if self.runs_empty else zero

    def predict(self, inputs: torch.Tensor) -> torch.Tensor:
        """The model's outputs (N, …), computed in its precision and memory order, given in at least float32."""
        if self.channels_last and inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        with self.precision():
            outputs = self.model(inputs)
        require_outputs(outputs, len(inputs))
        return outputs.float() if outputs.dtype in (torch.bfloat16, torch.float16) else outputs

    def trained_parameters(self) -> list[nn.Parameter]:
        """The parameters that need gradients, in the model's order, each once."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]
