"""A worker's whole step as a CUDA graph: one launch in place of some hundred, for which a small
model waits.

A graph repeats the operations that were recorded, on the same memory. So a batch is copied to where the recorded one
was, learning rates are tensors, and what Python decides in a step (a model that draws a path by `random`, say) stays
what it was in the recorded step. Rejected: throw-away steps before the capture, after which parameters, optimizer and
generators must be put back. The first steps of the training do as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from scalestudy.training.config import TrainConfig
from scalestudy.training.distributed import Worker
from scalestudy.training.exceptions import InputError, is_device_lost, is_out_of_memory
from scalestudy.training.task import Number
from scalestudy.training.trees import Tree, count, form, mapped, tensors

EAGER_STEPS = 3  # made first: libraries choose their kernels, and the optimizer makes its state
SAMPLED_STEPS = 4  # of an epoch, made eagerly for its phases; as many others for its noise scale

CAPTURED = "captured; the phases are those of eager steps"
TOO_SHORT = "the training ended before a step was captured"
LONGEST_REASON = 300  # characters
REMEDY = "write auto to train eagerly where a graph is not possible, or false"

Result = TypeVar("Result")
Update = Callable[[Tree], tuple[torch.Tensor, Number]]


def has_graphs(device: torch.device) -> bool:
    """Whether the device can capture a graph."""
    return device.type == "cuda"


def capture(function: Callable[[], Result]) -> tuple[Callable[[], None], Result]:
    """Record what the function does on the GPU, without doing it. Returns what repeats it, and its result.

    The result's tensors are overwritten by each repetition. Raises RuntimeError if the function waits for the device.
    """
    graph = torch.cuda.CUDAGraph()
    with (
        torch.cuda.stream(torch.cuda.current_stream()),  # a capture that fails would leave its own stream behind
        torch.cuda.graph(graph, capture_error_mode="thread_local"),  # other threads may copy batches meanwhile
    ):
        result = function()
    return graph.replay, result


def why_eager(config: TrainConfig, worker: Worker, optimizer: torch.optim.Optimizer) -> str | None:
    """Why this trial's steps can't be captured, as far as it shows before a try; None: nothing speaks against it."""
    if not has_graphs(worker.device):
        return f"a graph needs a CUDA device, not {worker.device.type}"
    if worker.world_size > 1:
        return "several workers sum their gradients outside of a graph"
    if config.compile:
        return "the model is compiled"
    if config.lr_rule == "adascale":
        return "adascale reads the gradient's noise in every step"
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        return f"the optimizer {config.optimizer.name} has no fused update"
    return None


class StepGraph:
    """Captures the step after the first few, and repeats it for every whole batch.

    Other steps are made eagerly: the last, smaller batch; those whose phases or noise are measured, which are not
    timed; the one that ends a training; and all, if the capture fails.
    """

    def __init__(self, config: TrainConfig, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
        self._config, self._optimizer, self._model = config, optimizer, model
        self._eager_steps = 0
        self._replay: Callable[[], None] | None = None
        self._batch: Tree = ()
        self._rates: list[torch.Tensor] = []
        self._result: tuple[torch.Tensor, Number] | None = None
        self.failure: str | None = None

    @property
    def is_captured(self) -> bool:
        """Whether whole batches are replayed."""
        return self._replay is not None

    def fits(self, batch: Tree) -> bool:
        """Whether the graph makes the step with this batch, in which nothing is measured."""
        if self.failure or count(batch) != self._config.batch_size:
            return False
        if self._eager_steps < EAGER_STEPS:
            self._eager_steps += 1
            return False
        return not self.is_captured or form(batch) == form(self._batch)

    def leaves_timing(self, batch: Tree, measured: bool) -> bool:
        """Whether the step with this batch is made eagerly, or captured, in place of a replay, and so not timed.

        `measured`: whether something in it is.
        """
        is_whole = count(batch) == self._config.batch_size
        return not self.failure and is_whole and (measured or not self.is_captured)

    def step(self, batch: Tree, rates: Sequence[float], function: Update) -> tuple[torch.Tensor, Number] | None:
        """Make the step with this batch; returns its loss sum and weight.

        None: it can't be captured, and what gradients there are now were never computed.
        `rates`: by parameter group; `function`: the eager step, of a batch, on the device. Raises ValueError if the
        config insists on a graph, RuntimeError for a device that is lost or, for such a config, without memory.
        """
        if self._replay is None:
            try:
                self._capture(batch, function)
            except RuntimeError as error:
                self._give_up(error)
                return None
        for (_, kept), (_, new) in zip(tensors(self._batch), tensors(batch), strict=True):
            kept.copy_(new, non_blocking=True)
        for tensor, rate in zip(self._rates, rates, strict=True):
            tensor.fill_(rate)
        assert self._replay is not None
        self._replay()
        return self._result

    def details(self) -> dict[str, str]:
        """Plain data for the trial's details: whether steps are replayed, or why not."""
        return {"cuda_graph": self.failure or (CAPTURED if self.is_captured else TOO_SHORT)}

    def _give_up(self, error: RuntimeError) -> None:
        """After a capture that failed: keep the reason, or raise."""
        if isinstance(error.__context__, RuntimeError):  # CUDA's last error only says that there was one before
            error = error.__context__
        insists = self._config.cuda_graph is True
        if is_device_lost(error) or (insists and is_out_of_memory(error)):
            raise error
        self.failure = f"the step can't be captured: {' '.join(str(error).split())[:LONGEST_REASON]}"
        if insists:
            raise InputError(f"train.cuda_graph: {self.failure}", REMEDY) from error

    def _capture(self, batch: Tree, function: Update) -> None:
        """With learning rates that are tensors, as the graph reads them; Adam asks for `capturable` too."""
        self._batch = mapped(torch.Tensor.clone, batch)
        groups = self._optimizer.param_groups
        self._rates = [torch.zeros((), device=group["params"][0].device) for group in groups]
        own: list[dict[str, Any]] = [
            {key: group[key] for key in ("lr", "capturable") if key in group} for group in groups
        ]
        buffers = [(module, dict(module._buffers)) for module in self._model.modules()]
        try:
            for group, rate in zip(groups, self._rates, strict=True):
                group["lr"] = rate
                if "capturable" in group:
                    group["capturable"] = True
            replay, self._result = capture(lambda: function(self._batch))
            for module, before in buffers:
                for name, buffer in module._buffers.items():
                    if buffer is not before.get(name):  # the graph would begin with the old one each time
                        raise RuntimeError(f"the model replaces its buffer {name}; it must change it in place")
            self._replay = replay
        finally:
            for module, before in buffers:
                module._buffers.update(before)
            for group, values in zip(groups, own, strict=True):
                group.update(values)


def step_graph(
    config: TrainConfig, worker: Worker, optimizer: torch.optim.Optimizer, model: nn.Module
) -> tuple[StepGraph | None, dict[str, str]]:
    """A trial's graph, and what its details say if it has none. Raises ValueError if the config insists on one."""
    if config.cuda_graph is False:
        return None, {}
    reason = why_eager(config, worker, optimizer)
    if reason is None:
        return StepGraph(config, optimizer, model), {}
    if config.cuda_graph is True:
        raise InputError(f"train.cuda_graph: {reason}", REMEDY)
    return None, {"cuda_graph": reason}
