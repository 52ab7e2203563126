"""A worker's step as a CUDA graph: one launch in place of some hundred, for which a small model waits.

A graph repeats the operations that were recorded, on the same memory. So a batch is copied to where the recorded one
was; of a set that lives on the device, only its examples' places are, and the graph gathers them. Learning rates are
tensors, and what Python decides in a step (a model that draws a path by `random`, say) stays what it was in the
recorded step. Rejected: throw-away steps before the capture, after which parameters, optimizer and generators must be
put back. The first steps of the training do as well.

One worker's step is one graph. With several, gradients are summed between two graphs, by collectives that PyTorch's
watchdog sees: a lost peer ends them. `cuda_graph: true` takes them into one graph, under NCCL, and watches by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from scalestudy.training.config import TrainConfig
from scalestudy.training.distributed import Worker, wait_within
from scalestudy.training.exceptions import InputError, is_device_lost, is_out_of_memory
from scalestudy.training.gradient_sync.base import GradientSync, StepPlan
from scalestudy.training.task import Number, ShardLoss
from scalestudy.training.trees import Tree, form, mapped, tensors

EAGER_STEPS = 3  # made first: libraries choose their kernels, and the optimizer makes its state
SAMPLED_STEPS = 4  # of an epoch, made eagerly for its phases; as many others for its noise scale

COLLECTIVE_SECONDS = 120.0  # longest wait for a replay with collectives in it
CAPTURED = "captured; the phases are those of eager steps"
CAPTURED_IN_PART = "captured but for the sum over the workers; the phases are those of eager steps"
TOO_SHORT = "the training ended before a step was captured"
LONGEST_REASON = 300  # characters
REMEDY = "write auto to train eagerly where a graph is not possible, or false"

Result = TypeVar("Result")


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


class StepSums(NamedTuple):
    """What a step adds to the tally; in a graph, tensors that each replay overwrites."""

    loss_sum: torch.Tensor  # of this worker's shard
    weight: Number  # what divides it
    tokens: Number  # that the task counts; 0 if it counts none


@dataclass(frozen=True, kw_only=True)
class StepParts:
    """What a step does on the device before and after the strategy's `synchronise`."""

    compute: Callable[[Tree], StepSums]  # of a draw (`TrainingData.draws`)
    apply: Callable[[], None]  # update


def why_eager(config: TrainConfig, worker: Worker, optimizer: torch.optim.Optimizer, sync: GradientSync) -> str | None:
    """Why this trial's steps can't be captured, as far as it shows before a try; None: nothing speaks against it."""
    if not has_graphs(worker.device):
        return f"a graph needs a CUDA device, not {worker.device.type}"
    if config.compile:
        return "the model is compiled"
    if config.lr_rule == "adascale":
        return "adascale reads the gradient's noise in every step"
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        return f"the optimizer {config.optimizer.name} has no fused update"
    if worker.world_size == 1:
        return None
    if not sync.sums_apart:
        return f"{config.gradient_sync} communicates within the step, where flat, ring and naive do so after backward"
    if config.sync_batch_norm:
        return "synchronised batch normalisation communicates within the step"
    if config.cuda_graph is True and (backend := dist.get_backend()) != "nccl":
        return f"{backend} can't be captured; auto leaves its collectives between graphs"
    return None


class StepGraph:
    """Captures the step after the first few, and repeats it for every whole batch.

    Other steps are made eagerly: the last, smaller batch; those whose phases or noise are measured, which are not
    timed; the one that ends a training; and all, if the capture fails.
    """

    def __init__(
        self,
        config: TrainConfig,
        worker: Worker,
        optimizer: torch.optim.Optimizer,
        shard_loss: ShardLoss,
        sync: GradientSync,
        whole: StepPlan,
    ) -> None:
        """`whole`: of a step with a whole batch."""
        self._config, self._worker, self._optimizer, self._shard_loss = config, worker, optimizer, shard_loss
        self._sync, self._whole = sync, whole
        self._eager_steps = 0
        self._draw: Tree = ()  # what the graph reads
        self._rates: list[torch.Tensor] = []
        self._result: StepSums | None = None
        self._gradients: list[tuple[nn.Parameter, torch.Tensor]] = []  # that the first of two graphs writes
        self._sent = 0  # bytes, by a replay
        self._first: Callable[[], None] | None = None  # replays a whole step, or its first part
        self._second: Callable[[], None] | None = None  # replays what follows the collectives
        self.failure: str | None = None

    @property
    def is_captured(self) -> bool:
        """Whether whole batches are replayed."""
        return self._first is not None and (self._second is not None or not self.is_split)

    @property
    def is_split(self) -> bool:
        """Whether collectives lie between two graphs."""
        return self._worker.world_size > 1 and self._config.cuda_graph == "auto"

    def fits(self, plan: StepPlan, draw: Tree) -> bool:
        """Whether the graph makes the step of this plan and draw, in which nothing is measured."""
        if self.failure or not self._is_whole(plan):
            return False
        if self._eager_steps < EAGER_STEPS:
            self._eager_steps += 1
            return False
        return not self.is_captured or form(draw) == form(self._draw)

    def leaves_timing(self, plan: StepPlan, measured: bool) -> bool:
        """Whether the step of this plan is made eagerly, or captured, in place of a replay, and so not timed.

        `measured`: whether something in it is.
        """
        return not self.failure and self._is_whole(plan) and (measured or not self.is_captured)

    def _is_whole(self, plan: StepPlan) -> bool:
        """Whether this worker has examples, and as many as of a whole batch, as the graph divides by the batch."""
        return plan.shard > 0 and (plan.shard, plan.batch) == (self._whole.shard, self._whole.batch)

    def step(self, draw: Tree, rates: Sequence[float], parts: StepParts) -> StepSums | None:
        """Make the step with this draw. `rates`: by parameter group.

        None: it can't be captured, and what gradients there are now were never computed. Raises ValueError if the
        config insists on a graph, RuntimeError for a device that is lost or, for such a config, without memory.
        """
        if self._first is None:
            self._draw, sent_before = mapped(torch.Tensor.clone, draw), self._sync.bytes_sent
            try:
                self._first, self._result = self._captured(lambda: self._whole_or_first(parts))
            except RuntimeError as error:
                self._give_up(error)
                return None
            finally:
                self._sent, self._sync.bytes_sent = self._sync.bytes_sent - sent_before, sent_before
        for (_, kept), (_, new) in zip(tensors(self._draw), tensors(draw), strict=True):
            kept.copy_(new, non_blocking=True)
        for tensor, rate in zip(self._rates, rates, strict=True):
            tensor.fill_(rate)
        self._first()
        self._sync.bytes_sent += self._sent
        if self.is_split:
            for parameter, gradient in self._gradients:
                parameter.grad = gradient
            self._sync.synchronise()
            self._update(parts.apply, rates)
        return self._result

    def _whole_or_first(self, parts: StepParts) -> StepSums:
        result = parts.compute(self._draw)
        if self.is_split:
            summed = self._shard_loss.summed_parameters()
            self._gradients = [(each, each.grad) for each in summed if each.grad is not None]
        else:
            self._sync.synchronise()
            parts.apply()
        return result

    def _update(self, apply: Callable[[], None], rates: Sequence[float]) -> None:
        """The second part. Its first time comes after a sum of all workers, so a failed capture is made up for."""
        if self._second is None:
            try:
                self._second, _ = self._captured(apply)
            except RuntimeError as error:
                self._give_up(error)
                for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate
                apply()
                return
        self._second()

    def wait(self) -> None:
        """Wait for the device, but not for ever where collectives are in the graph. Raises RuntimeError then."""
        if self._first is not None and self._worker.world_size > 1 and not self.is_split:
            wait_within(self._worker.device, COLLECTIVE_SECONDS)

    def details(self) -> dict[str, str]:
        """Plain data for the trial's details: whether steps are replayed, or why not."""
        captured = CAPTURED_IN_PART if self.is_split else CAPTURED
        return {"cuda_graph": self.failure or (captured if self.is_captured else TOO_SHORT)}

    def _give_up(self, error: RuntimeError) -> None:
        """After a capture that failed: keep the reason, or raise.

        PyTorch 2.13 does not give back what the capture has taken of the GPU's memory before the process ends.
        """
        if isinstance(error.__context__, RuntimeError):  # CUDA's last error only says that there was one before
            error = error.__context__
        insists = self._config.cuda_graph is True
        if is_device_lost(error) or (insists and is_out_of_memory(error)):
            raise error
        self.failure = f"the step can't be captured: {' '.join(str(error).split())[:LONGEST_REASON]}"
        if insists:
            raise InputError(f"train.cuda_graph: {self.failure}", REMEDY) from error

    def _captured(self, function: Callable[[], Result]) -> tuple[Callable[[], None], Result]:
        """`capture`, with learning rates that are tensors, as the graph reads them; Adam asks for `capturable` too."""
        groups = self._optimizer.param_groups
        self._rates = self._rates or [torch.zeros((), device=self._worker.device) for _ in groups]
        own: list[dict[str, Any]] = [
            {key: group[key] for key in ("lr", "capturable") if key in group} for group in groups
        ]
        buffers = [(module, dict(module._buffers)) for module in self._shard_loss.modules()]
        try:
            for group, rate in zip(groups, self._rates, strict=True):
                group["lr"] = rate
                if "capturable" in group:
                    group["capturable"] = True
            replay, result = capture(function)
            for module, before in buffers:
                for name, buffer in module._buffers.items():
                    if buffer is not before.get(name):  # the graph would begin with the old one each time
                        raise RuntimeError(f"the model replaces its buffer {name}; it must change it in place")
            return replay, result
        finally:
            for module, before in buffers:
                module._buffers.update(before)
            for group, values in zip(groups, own, strict=True):
                group.update(values)


def step_graph(
    config: TrainConfig,
    worker: Worker,
    optimizer: torch.optim.Optimizer,
    shard_loss: ShardLoss,
    sync: GradientSync,
    whole: StepPlan,
) -> tuple[StepGraph | None, dict[str, str]]:
    """A trial's graph, and what its details say if it has none. `whole`: of a step with a whole batch.

    Raises ValueError if the config insists on a graph and there can't be one.
    """
    if config.cuda_graph is False:
        return None, {}
    reason = why_eager(config, worker, optimizer, sync)
    if reason is None:
        return StepGraph(config, worker, optimizer, shard_loss, sync, whole), {}
    if config.cuda_graph is True:
        raise InputError(f"train.cuda_graph: {reason}", REMEDY)
    return None, {"cuda_graph": reason}
