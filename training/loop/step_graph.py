"""A worker's step as a CUDA graph: one launch in place of some hundred, whose overhead would dominate a small model's
step.

A graph repeats the operations that were recorded, on the same memory. So a batch is copied to where the recorded one
was; of a set that lives on the device, only its examples' places are, and the graph gathers them. Learning rates are
tensors, and what Python decides in a step (a model that draws a path by `random`, say) stays what it was in the
recorded step. The training's own first steps serve as warm-up. Rejected: throw-away steps before the capture, after
which parameters, optimizer and generators must be put back.

One worker's step is one graph. With several, gradients are summed between two graphs, by collectives that PyTorch's
watchdog sees: a lost peer ends them. `cuda_graph: true` takes them into one graph, under NCCL, and watches by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from scalestudy.training.distributed import wait_within
from scalestudy.training.exceptions import InputError, is_device_lost, is_out_of_memory
from scalestudy.training.loop.hooks import Hook
from scalestudy.training.loop.step import compute_gradients, run_step, update_parameters
from scalestudy.training.loop.trial import StepSums, Trial
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


def step_graph(trial: Trial) -> tuple[StepGraph | None, dict[str, str]]:
    """Return the trial's graph, and what its details say if it has none.

    Raises InputError if the config insists on a graph and there can't be one.
    """
    if trial.config.cuda_graph is False:
        return None, {}
    reason = why_eager(trial)
    if reason is None:
        return StepGraph(trial), {}
    if trial.config.cuda_graph is True:
        raise InputError(f"train.cuda_graph: {reason}", REMEDY)
    return None, {"cuda_graph": reason}


def why_eager(trial: Trial) -> str | None:
    """Return why this trial's steps can't be captured, as far as is known before a try; None: no reason."""
    config, worker = trial.config, trial.worker
    if not has_graphs(worker.device):
        return f"a graph needs a CUDA device, not {worker.device.type}"
    if config.compile:
        return "the model is compiled"
    if config.lr_rule == "adascale":
        return "adascale reads the gradient's noise in every step"
    if not getattr(trial.optimizer, "_step_supports_amp_scaling", False):
        return f"the optimizer {config.optimizer.name} has no fused update"
    if worker.world_size == 1:
        return None
    if not trial.sync.sums_apart:
        return f"{config.gradient_sync} communicates within the step, where flat, ring and naive do so after backward"
    if config.sync_batch_norm:
        return "synchronised batch normalisation communicates within the step"
    if config.cuda_graph is True and (backend := dist.get_backend()) != "nccl":
        return f"{backend} can't be captured; auto leaves its collectives between graphs"
    return None


def has_graphs(device: torch.device) -> bool:
    """Return whether the device can capture a graph."""
    return device.type == "cuda"


def capture(function: Callable[[], Result]) -> tuple[Callable[[], None], Result]:
    """Record what the function does on the GPU, without doing it. Return what repeats it, and its result.

    Each repetition overwrites the result's tensors. Raises RuntimeError if the function waits for the device.
    """
    graph = torch.cuda.CUDAGraph()
    with (
        torch.cuda.stream(torch.cuda.current_stream()),  # a capture that fails would leave its own stream behind
        torch.cuda.graph(graph, capture_error_mode="thread_local"),  # other threads may copy batches meanwhile
    ):
        result = function()
    return graph.replay, result


class StepGraph:
    """The step as a graph: captured after the first few steps, and repeated for every whole batch.

    `run_step` makes the others: the last, smaller batch; those whose phases or noise are measured; the one that ends a
    training; and all, if the capture fails. Of whole batches, only replays count in samples a second.
    """

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._whole = trial.plans[0]  # of a step with a whole batch
        self._eager_steps = 0
        self._draw: Tree = ()  # what the graph reads
        self._rates = [torch.zeros((), device=trial.worker.device) for _ in trial.optimizer.param_groups]
        self._result: StepSums | None = None
        self._gradients: list[tuple[nn.Parameter, torch.Tensor]] = []  # that the first of two graphs writes
        self._sent = 0  # bytes, by a replay
        self._first: Callable[[], None] | None = None  # replays a whole step, or its first half
        self._second: Callable[[], None] | None = None  # replays what follows the collectives
        self.failure: str | None = None  # why there is no graph, after a try; all steps are then eager

    @property
    def is_captured(self) -> bool:
        """Whether whole batches are replayed."""
        return self._first is not None and (self._second is not None or not self.is_split)

    @property
    def is_split(self) -> bool:
        """Whether collectives lie between two graphs."""
        return self._trial.worker.world_size > 1 and self._trial.config.cuda_graph == "auto"

    def step(self, draw: Tree, hooks: Sequence[Hook]) -> StepSums:
        """Make the step in progress with this draw (`TrainingData.draws`): replay it, capture it, or run it eagerly.

        Raises InputError if the config insists on a graph and the capture fails; RuntimeError if the device is lost or,
        for such a config, out of memory.
        """
        trial, eagerly = self._trial, partial(run_step, self._trial, draw, hooks)
        plan, whole = trial.plan, self._whole
        # A graph divides by the whole batch, and a worker without examples computes nothing that it could repeat.
        if self.failure or not plan.shard or (plan.shard, plan.batch) != (whole.shard, whole.batch):
            return eagerly()
        measured = trial.is_measured()
        if self.is_captured and not measured:
            return self._replayed(draw) if form(draw) == form(self._draw) else eagerly()
        self.wait()
        with trial.out_of_rate():
            if measured:
                return eagerly()
            if self._eager_steps < EAGER_STEPS:
                self._eager_steps += 1
                return eagerly()
            try:
                self._capture(draw)
            except RuntimeError as error:
                self._give_up(error)
                return eagerly()
            return self._replayed(draw)

    def wait(self) -> None:
        """Wait for the device. Raises RuntimeError if a graph with collectives takes too long."""
        if self._first is not None and self._trial.worker.world_size > 1 and not self.is_split:
            wait_within(self._trial.worker.device, COLLECTIVE_SECONDS)

    def details(self) -> dict[str, str]:
        """Return plain data for the trial's details: whether steps are replayed, or why not."""
        captured = CAPTURED_IN_PART if self.is_split else CAPTURED
        return {"cuda_graph": self.failure or (captured if self.is_captured else TOO_SHORT)}

    def _capture(self, draw: Tree) -> None:
        """Record the step, or its first half. Raises RuntimeError if that is not possible."""
        trial, sync = self._trial, self._trial.sync
        self._draw, sent_before = mapped(torch.Tensor.clone, draw), sync.bytes_sent

        def record() -> StepSums:
            result = compute_gradients(trial, self._draw)
            if self.is_split:
                summed = trial.shard_loss.summed_parameters()
                self._gradients = [(each, each.grad) for each in summed if each.grad is not None]
            else:
                sync.synchronise()
                update_parameters(trial, rates=self._rates)
            return result

        trial.zero_gradients()
        try:
            self._first, self._result = self._captured(record)
        finally:
            self._sent, sync.bytes_sent = sync.bytes_sent - sent_before, sent_before

    def _replayed(self, draw: Tree) -> StepSums:
        """Repeat the step with this draw, and the rates of the next update."""
        assert self._first is not None
        assert self._result is not None
        for (_, kept), (_, new) in zip(tensors(self._draw), tensors(draw), strict=True):
            kept.copy_(new, non_blocking=True)
        for tensor, rate in zip(self._rates, self._trial.next_rates(), strict=True):
            tensor.fill_(rate)
        self._first()
        self._trial.sync.bytes_sent += self._sent
        if self.is_split:
            for parameter, gradient in self._gradients:
                parameter.grad = gradient
            self._trial.sync.synchronise()
            self._update()
        return self._result

    def _update(self) -> None:
        """Make the second half, and capture it first if that is to be done.

        The sum of all workers is made by then, and can't be made twice: after a failure this half alone is eager.
        """
        if self._second is None:
            try:
                self._second, _ = self._captured(partial(update_parameters, self._trial, rates=self._rates))
            except RuntimeError as error:
                self._give_up(error)
                update_parameters(self._trial)
                return
        self._second()

    def _captured(self, function: Callable[[], Result]) -> tuple[Callable[[], None], Result]:
        """Call `capture`, and undo what the function sets in Python. Adam asks for `capturable`, as rates are tensors.

        Raises RuntimeError too for a model that replaces a buffer: each repetition would begin with the old one.
        """
        groups = self._trial.optimizer.param_groups
        own: list[dict[str, Any]] = [
            {key: group[key] for key in ("lr", "capturable") if key in group} for group in groups
        ]
        buffers = [(module, dict(module._buffers)) for module in self._trial.shard_loss.modules()]
        try:
            for group in groups:
                if "capturable" in group:
                    group["capturable"] = True
            replay, result = capture(function)
            for module, before in buffers:
                for name, buffer in module._buffers.items():
                    if buffer is not before.get(name):
                        raise RuntimeError(f"the model replaces its buffer {name}; it must change it in place")
            return replay, result
        finally:
            for module, before in buffers:
                module._buffers.update(before)
            for group, values in zip(groups, own, strict=True):
                group.update(values)

    def _give_up(self, error: RuntimeError) -> None:
        """Keep the reason of a capture that failed, or raise.

        PyTorch 2.13 does not give back what the capture has taken of the GPU's memory before the process ends.
        """
        if isinstance(error.__context__, RuntimeError):  # CUDA's last error only says that there was one before
            error = error.__context__
        insists = self._trial.config.cuda_graph is True
        if is_device_lost(error) or (insists and is_out_of_memory(error)):
            raise error
        self.failure = f"the step can't be captured: {' '.join(str(error).split())[:LONGEST_REASON]}"
        if insists:
            raise InputError(f"train.cuda_graph: {self.failure}", REMEDY) from error
