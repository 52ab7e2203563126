"""What a model is trained for: forward, loss and metrics of a batch, and a worker's share of them.

A task is a user's class, `workload.task: package.module:Class`, with the methods of `Task`. Without one a study has
`ExamplesTask`: inputs, targets, one loss an example.

Shapes: N examples in a batch, K outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import nn

from scalestudy.training.exceptions import InputError
from scalestudy.training.losses import NamedMetric, PerExample, make_loss, make_metric, require_outputs
from scalestudy.training.registry import TASKS, call_with, resolve_field
from scalestudy.training.trees import Tree, count, mapped, tensors

Number = torch.Tensor | float
HALF = (torch.bfloat16, torch.float16)
METHODS = ("forward", "loss", "evaluate", "finish")


class Task(Protocol):
    """What a study asks of a task. Every worker makes one for each trial."""

    def forward(self, model: nn.Module, batch: Tree) -> Tree:
        """Return the outputs. It runs in the trial's precision; the other methods get its tensors in float32."""

    def loss(self, outputs: Tree, batch: Tree) -> tuple[torch.Tensor, Number]:
        """Return (sum, weight): a sum of losses, and what divides it into a mean, such as examples or unmasked tokens.

        Both are sums over the batch's parts, a scalar each. The study sums both over micro-batches and workers, then
        divides, so an update does not depend on how a batch is split. A part may have the weight 0, a whole batch not.
        """

    def evaluate(self, outputs: Tree, batch: Tree) -> Mapping[str, Number]:
        """Return sums over a test batch by name, from which `finish` makes metrics.

        They are numbers, or tensors such as class counts, and are summed over all batches and workers.
        """

    def finish(self, sums: Mapping[str, Any]) -> Mapping[str, float]:
        """Return metrics by name, from the sums over the whole test set: floats, and float64 tensors on the CPU.

        Each is reported as test_<name>; one is `workload.metric`. The mean loss is there as test_loss already.
        """

    # tokens(batch) -> Number is a fifth, optional method: how many tokens a batch has. With it records tell how many
    # were trained, and `train.tokens` may say how long.


class ExamplesTask:
    """Batches (inputs (N, C, …), targets (N, …)), the mean of one loss an example, the mean of one value an example."""

    counts_examples = True  # a loss's weight is its number of examples, known before a step

    def __init__(self, loss: PerExample, metric: NamedMetric) -> None:
        self.per_example, self.metric = loss, metric

    def forward(self, model: nn.Module, batch: Tree) -> torch.Tensor:
        """Return the model's outputs (N, K). Raises ValueError for another form."""
        outputs = model(batch[0])
        require_outputs(outputs, batch[0].shape[0])
        assert isinstance(outputs, torch.Tensor)
        return outputs

    def loss(self, outputs: torch.Tensor, batch: Tree) -> tuple[torch.Tensor, int]:
        """Return the sum of the losses, in an evaluation in float64, and N."""
        losses = self.per_example(outputs, batch[1])
        return losses.sum(dtype=None if torch.is_grad_enabled() else torch.float64), batch[1].shape[0]

    def evaluate(self, outputs: torch.Tensor, batch: Tree) -> Mapping[str, Number]:
        """Return the sum of the metric's values, and N."""
        return {
            "values": self.metric.function(outputs, batch[1]).sum(dtype=torch.float64),
            "examples": len(batch[1]),
        }

    def finish(self, sums: Mapping[str, Any]) -> Mapping[str, float]:
        """Return the mean."""
        return {self.metric.name: sums["values"] / sums["examples"]}


def make_task(
    task: str | None, loss: str, metric: str, num_classes: int | None, arguments: Mapping[str, Any] | None = None
) -> Task:
    """Make the user's task of that import path; None: the task of the named loss and metric, for `num_classes` classes.

    num_classes: None only with a task. arguments: of the user's class: what the data give it, and `task_args`.

    Raises ValueError for an unknown path or name, for a class that does not take the arguments or lacks a method.
    """
    if task is None:
        return ExamplesTask(make_loss(loss, num_classes or 0), make_metric(metric))
    made: Task = call_with(resolve_field("task", task, TASKS), f"task_args: {task!r}", **(arguments or {}))
    missing = [name for name in METHODS if not callable(getattr(made, name, None))]
    if missing:
        raise InputError(
            f"task: {task!r} has no method {missing[0]}", f"give the class the methods {', '.join(METHODS)}"
        )
    if isinstance(made, nn.Module) and any(True for _ in made.parameters()):
        raise InputError(f"task: {task!r} has parameters, which nothing would train", "put them into the model")
    return made


def counts_tokens(task: Task) -> bool:
    """Whether a task has the optional method."""
    return callable(getattr(task, "tokens", None))


def tokens_of(task: Task, batch: Tree) -> Number:
    """Return the tokens of a batch, as the task's `tokens` counts them. Raises ValueError unless it is one number."""
    number: Any = task.tokens(batch)  # type: ignore[attr-defined]
    if isinstance(number, torch.Tensor) and number.numel() == 1:
        return number.detach().reshape(())
    if isinstance(number, int | float) and not isinstance(number, bool):
        return number
    raise InputError(f"task: tokens gave a {type(number).__name__}", "return how many tokens the batch has, one number")


class ShardLoss(nn.Module):
    """The module that a gradient strategy may wrap: a shard's batch -> (its loss sum, its weight).

    A strategy sums gradients. The loss sum's divisor has to be summed beside them, and must not cost a further
    collective. So it travels as a gradient: `weight` is a parameter of zeros that adds weight · 0 to the loss, and its
    gradient is the weight. Rejected: to sum the weight before backward, a wait in every step. A task that counts
    examples has none of this (`weight` is None): the loop knows its weights beforehand.

    An empty shard gives a zero that depends on every parameter. Its backward makes zero gradients everywhere and runs
    DistributedDataParallel's hooks, so the worker takes part in every collective. Rejected: to send an empty batch
    through every model, since batch normalisation and some users' models refuse it. `runs_empty` marks a model that
    every rank must run, because it has collectives inside (synchronised batch normalisation). The zero is added to its
    empty loss too, so that NaN still reaches the gradients (`Trial.should_stop`).
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        precision: Callable[[], AbstractContextManager[object]] = nullcontext,
        *,
        channels_last: bool = False,
        runs_empty: bool = False,
        fills_unused: bool = False,
    ) -> None:
        """Wrap the model. fills_unused: give parameters that took no part in a batch's loss a gradient of zeros."""
        super().__init__()
        self.model = model
        self.task = task
        self.precision = precision
        self.channels_last = channels_last
        self.runs_empty = runs_empty
        self.fills_unused = fills_unused
        self.is_compiled = False  # whether the model is: each number of examples then has separate code
        self.weight: nn.Parameter | None = None  # gradient (2,): the loss's weight; whether some weight is not finite
        trained = self.trained_parameters()
        if not getattr(task, "counts_examples", False) and trained:
            formats = [each.dtype for each in trained if each.dtype in (torch.float32, torch.float64)]
            number = formats[0] if formats else torch.float32
            self.weight = nn.Parameter(torch.zeros(2, dtype=number, device=trained[0].device))

    def forward(self, batch: Tree) -> tuple[torch.Tensor, Number]:
        """Return the loss sum, a scalar, and its weight, of a batch of N examples; N may be 0."""
        is_empty = not count(batch)
        if is_empty and not self.runs_empty:
            return self._zero(), 0
        total, weight = checked_loss(self.task, self.predict(batch), batch)
        if self.weight is not None:
            if not isinstance(weight, torch.Tensor):
                weight = self.weight.new_full((), weight)  # made there: a copy would wait for the device
            weight = weight.detach().to(self.weight)
            good = weight.isfinite()
            weight = weight.where(good, 0)
            total = total + (self.weight * torch.stack([weight, (~good).to(weight.dtype)])).sum()
            weight = weight.double()
        return total + self._zero() if is_empty or self.fills_unused else total, weight

    def predict(self, batch: Tree) -> Tree:
        """Return the task's outputs, computed in the precision and memory order, returned in at least float32."""
        if self.channels_last:
            batch = mapped(_channels_last, batch)
        if self.is_compiled:
            _let_sizes_be_static(batch)
        with self.precision():
            outputs = self.task.forward(self.model, batch)
        if not any(tensor.dtype in HALF for _, tensor in tensors(outputs)):
            return outputs  # as the task gave them
        return mapped(lambda tensor: tensor.float() if tensor.dtype in HALF else tensor, outputs)

    def trained_parameters(self) -> list[nn.Parameter]:
        """Return the model's parameters that need gradients, in its order, each once."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def summed_parameters(self) -> list[nn.Parameter]:
        """Return the parameters whose gradients the workers sum: the trained ones, and the weight if there is one."""
        return [*self.trained_parameters(), *([] if self.weight is None else [self.weight])]

    def _zero(self) -> torch.Tensor:
        return torch.stack([(parameter * 0).sum() for parameter in self.summed_parameters()]).sum()


def checked_loss(task: Task, outputs: Tree, batch: Tree) -> tuple[torch.Tensor, Number]:
    """Return the task's loss. Raises ValueError unless it is a scalar tensor with its weight, a number."""
    pair = task.loss(outputs, batch)
    remedy = "return (sum, weight): the sum of the losses as a scalar tensor, and the number that makes it a mean"
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise InputError(f"task: loss gave a {type(pair).__name__}", remedy)
    total, weight = pair
    if not isinstance(total, torch.Tensor) or total.dim() or not total.is_floating_point():
        form = f"a tensor {tuple(total.shape)}" if isinstance(total, torch.Tensor) else f"a {type(total).__name__}"
        raise InputError(f"task: loss gave {form} as its sum", remedy)
    if isinstance(weight, torch.Tensor) and weight.dim():
        raise InputError(f"task: loss gave a tensor {tuple(weight.shape)} as its weight", remedy)
    if not isinstance(weight, torch.Tensor | int | float):
        raise InputError(f"task: loss gave a {type(weight).__name__} as its weight", remedy)
    return total, weight


def wrong_weight(gradient: torch.Tensor) -> InputError | None:
    """Return what is wrong with a step's weights, else None.

    It reads the gradient of `ShardLoss.weight`, summed over the workers.
    """
    weight, others = gradient.tolist()
    remedy = "return as weight what the sum is divided by to be a mean, above 0 in every whole batch"
    if others > 0:
        return InputError("task: loss gave a weight that is not finite", remedy)
    if weight <= 0:
        return InputError(f"task: the weights of a batch sum to {'0' if weight == 0 else 'less than 0'}", remedy)
    return None


def _let_sizes_be_static(batch: Tree) -> None:
    """Let a compiled model run this batch in code for its number of examples; lengths and such may vary within it.

    After the first batch of another size PyTorch would compile for any size, and whole batches would run in that code,
    which is slower. It still does where a task hands the model tensors that it made of the batch's.
    """
    import torch._dynamo

    for _, tensor in tensors(batch):
        torch._dynamo.mark_static(tensor, 0)


def _channels_last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor
