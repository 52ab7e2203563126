"""The test set's metrics: sums over batches and workers, then the task's `finish`.

Shapes: m test examples.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from scalestudy.training.batches import even_weights
from scalestudy.training.data.loading import TrainingData
from scalestudy.training.distributed import Worker, gather_rows, gather_texts
from scalestudy.training.exceptions import InputError
from scalestudy.training.pulse import Pulse
from scalestudy.training.task import Number, ShardLoss, Task, checked_loss
from scalestudy.training.trees import tensors

LOSS, WEIGHT = "loss", "weight"


@dataclass
class Sums:
    """Sums over the test set, of one worker or of all together."""

    loss: dict[str, torch.Tensor] = field(default_factory=dict)  # LOSS and WEIGHT; empty without examples
    named: dict[str, torch.Tensor] = field(default_factory=dict)  # of the task, by its names
    problem: InputError | None = None  # what the task returned wrongly on this worker; `summed` raises it on all

    def add(self, loss: Mapping[str, Number], named: Mapping[str, Number], device: torch.device) -> None:
        """Add a batch's sums. Raises ValueError for one of another shape than before."""
        for sums, values in ((self.loss, loss), (self.named, named)):
            for name, value in values.items():
                if isinstance(value, torch.Tensor):
                    term = value.detach().to(device, torch.float64)
                else:
                    term = torch.full((), value, dtype=torch.float64, device=device)
                if name in sums and sums[name].shape != term.shape:
                    raise _other_shape(name, sums[name].shape, term.shape)
                sums[name] = sums[name] + term if name in sums else term


@torch.no_grad()
def evaluate(
    shard_loss: ShardLoss,
    data: TrainingData,
    worker: Worker,
    weights: Sequence[float] | None = None,
    pulse: Pulse | None = None,
) -> Sums:
    """Sum over this worker's part of the test set; the part may be empty.

    `weights`: each worker's share of the test set; None: even. Batches of a stream go to the ranks in turn. The model
    is in evaluation mode meanwhile, so that an example's outputs are independent of the rest of its batch. It is in
    training mode afterwards. A wrong return value of the task ends it, and the sums name it.

    Rejected: inference mode. A derivative in a model's forward needs gradients (`torch.enable_grad`), and a tensor that
    a model keeps for its next training step must be an ordinary one.
    """
    sums, task = Sums(), shard_loss.task
    pulse = pulse or Pulse()
    pulse.turn_to("evaluating")
    shard_loss.model.eval()
    for batch in data.test_part(worker, weights or even_weights(worker.world_size)):
        with pulse.compiling("evaluating", *(tensor.shape for _, tensor in tensors(batch))):
            outputs = shard_loss.predict(batch)
        try:
            loss, weight = checked_loss(task, outputs, batch)
            sums.add({LOSS: loss, WEIGHT: weight}, _checked_sums(task.evaluate(outputs, batch)), worker.device)
        except InputError as error:  # this worker alone may meet it, and the others would wait for it
            sums.problem = error
            break
        pulse.stage.count += 1
    shard_loss.model.train()
    return sums


def summed(sums: Sums, worker: Worker) -> Sums:
    """Return every worker's sums together, equal to the bit on every worker.

    Raises ValueError, on every worker, for what a task returned wrongly on some, or if a name's shape differs.
    """
    mine = {**{f" {name}": value for name, value in sums.loss.items()}, **sums.named}  # no task's name has a space
    problem = None if sums.problem is None else [sums.problem.what, sums.problem.remedy]
    told = json.dumps({"problem": problem, "shapes": {name: list(value.shape) for name, value in mine.items()}})
    shapes: dict[str, list[int]] = {}
    for each in map(json.loads, gather_texts(told, worker)):
        if each["problem"]:
            raise InputError(*each["problem"])
        for name, shape in each["shapes"].items():
            if shapes.setdefault(name, shape) != shape:
                raise _other_shape(name, shapes[name], shape)
    row: list[float] = []
    for name in sorted(shapes):
        # zeros for a name that this worker lacks, since its part of the test set is empty
        row += mine[name].flatten().tolist() if name in mine else [0.0] * math.prod(shapes[name])
    totals = iter([_sum(column) for column in zip(*gather_rows(row, worker), strict=True)])
    whole = Sums()
    for name in sorted(shapes):
        values = [next(totals) for _ in range(math.prod(shapes[name]))]
        part = whole.loss if name.startswith(" ") else whole.named
        part[name.strip()] = torch.tensor(values, dtype=torch.float64).reshape(shapes[name])
    return whole


def metrics_of(task: Task, sums: Sums, metric: str) -> tuple[float, dict[str, float]]:
    """Return the mean loss and the task's metrics by name, `metric` among them, from the sums of all workers.

    Raises ValueError for what `finish` may not return.
    """
    given = {name: value.item() if value.dim() == 0 else value for name, value in sums.named.items()}
    found = task.finish(given)
    if not isinstance(found, Mapping):
        raise InputError(f"task: finish gave a {type(found).__name__}", "return a dict of metrics by name")
    metrics: dict[str, float] = {}
    for name, value in found.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise InputError(f"task: finish gave a metric the name {name!r}", "use letters, digits and '_'")
        if name == LOSS:
            raise InputError("task: finish gave a metric named 'loss', which test_loss is already", "rename it")
        try:
            metrics[name] = float(value)
        except (TypeError, ValueError):
            form = type(value).__name__
            raise InputError(f"task: finish gave {name!r} as a {form}", "return one number a metric") from None
    if metric not in metrics:
        listed = ", ".join(metrics) or "nothing"
        raise InputError(f"workload.metric: {metric!r} is not what finish returns: {listed}", "name one of these")
    weight = sums.loss[WEIGHT].item() if sums.loss else 0.0
    return sums.loss[LOSS].item() / weight if weight else math.nan, metrics


def _other_shape(name: str, one: Sequence[int], other: Sequence[int]) -> InputError:
    return InputError(
        f"task: evaluate gave {name!r} the shapes {tuple(one)} and {tuple(other)}",
        "give it the same shape for every batch, such as minlength= of torch.bincount",
    )


def _checked_sums(given: Any) -> Mapping[str, Number]:
    remedy = 'return a dict of sums by name, such as {"hits": hits.sum(), "examples": len(hits)}'
    if not isinstance(given, Mapping):
        raise InputError(f"task: evaluate gave a {type(given).__name__}", remedy)
    for name, value in given.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise InputError(f"task: evaluate gave a sum the name {name!r}", "use letters, digits and '_'")
        if not isinstance(value, torch.Tensor | int | float):
            raise InputError(f"task: evaluate gave {name!r} as a {type(value).__name__}", remedy)
    return given


def _sum(values: Sequence[float]) -> float:
    """Sum exactly, apart from the last rounding; `fsum` alone refuses infinities of both signs."""
    return math.fsum(values) if all(map(math.isfinite, values)) else sum(values)
