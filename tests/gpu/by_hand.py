"""A loop as a person writes it who wants LeNet fast on one GPU: CUDA graphs over static batches, and nothing else.

It knows no evaluation, no phases, no check of losses and no checkpoint. On a CPU the same loop is eager.

Shapes: n images, N of them in a batch.
"""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F
from torch import nn

WARM_UP = 3  # steps before a capture, as PyTorch's documentation asks


class Step:
    """Forward, backward and update over `inputs` and `targets`, which the caller fills; captured on a GPU."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        inputs: torch.Tensor,
        targets: torch.Tensor,
        losses: torch.Tensor,
    ) -> None:
        """inputs, targets: of a batch, at first any; losses: a scalar to which each step adds its mean loss."""
        self.model, self.optimizer, self.losses = model, optimizer, losses
        self.inputs, self.targets = inputs, targets
        self.graph: torch.cuda.CUDAGraph | None = None
        if losses.device.type == "cuda":
            self.graph = self._capture()

    def run(self) -> None:
        """One step."""
        if self.graph is None:
            self.optimizer.zero_grad(set_to_none=True)
            self._eager()
        else:
            self.graph.replay()

    def _eager(self) -> None:
        loss = F.cross_entropy(self.model(self.inputs), self.targets)
        loss.backward()
        self.optimizer.step()
        self.losses += loss.detach()

    def _capture(self) -> torch.cuda.CUDAGraph:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                self.optimizer.zero_grad(set_to_none=True)
                self._eager()
        torch.cuda.current_stream().wait_stream(stream)
        self.optimizer.zero_grad(set_to_none=True)  # the capture allocates gradients of its own
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._eager()
        return graph


def epoch_seconds(
    model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, *, batch_size: int, rate: float, epochs: int
) -> float:
    """Mean seconds of an epoch of SGD over the images (n, C, H, W), all of them on the model's device.

    The first of `epochs` is not counted.
    """
    device, n = inputs.device, len(inputs)
    optimizer = torch.optim.SGD(model.parameters(), rate, fused=True)
    losses = torch.zeros((), device=device)
    sizes = {batch_size, n % batch_size or batch_size}  # the last batch may be shorter
    steps = {size: Step(model, optimizer, inputs[:size].clone(), targets[:size].clone(), losses) for size in sizes}
    started = 0.0
    for epoch in range(epochs):
        if epoch == 1:
            _wait(device)
            started = time.perf_counter()
        for chosen in torch.randperm(n, device=device).split(batch_size):
            step = steps[len(chosen)]
            torch.index_select(inputs, 0, chosen, out=step.inputs)
            torch.index_select(targets, 0, chosen, out=step.targets)
            step.run()
    _wait(device)
    return (time.perf_counter() - started) / (epochs - 1)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
