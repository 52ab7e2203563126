"""Whether a training is the same at every world size, apart from rounding (docs/formulas.md §7).

The gradient of a batch is a sum over its examples, however they are split, if an example's loss depends on that example
alone. We test the model by running it, since dropout may be a function call deep in a user's code. Rejected: to compare
two short trainings, one of them on several workers, which needs processes.

Shapes: N examples, inputs (N, C, …), outputs (N, …).
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from scalestudy.training.config import TrainConfig
from scalestudy.training.data.loading import load_splits
from scalestudy.training.exceptions import InputError
from scalestudy.training.models import seeded_model
from scalestudy.training.seeding import generators_kept
from scalestudy.training.task import ExamplesTask, Task, checked_loss, make_task
from scalestudy.training.trees import Tree, count, split

EXAMPLES = 8
DRAWS = 4  # forward passes with different random numbers; a layer that is rarely skipped seldom shows in one of them
TOLERANCE = 1e-3  # of the largest output; other batch sizes round to some 1e-6, a mask of dropout changes all


def why_inexact(config: TrainConfig) -> InputError | None:
    """Return why a training of this config depends on the world size, and the remedy; None: no sign that it does.

    Only the model is tried. Rules and strategies are known by their names. The package's augmentation and the random
    numbers of a user's data set are keyed by example. Exceptions from building the model, and from a user's code, pass.
    """
    with generators_kept(), torch.no_grad():
        splits = load_splits(config, torch.device("cpu"))
        model = seeded_model(config, splits.for_model).train()
        norms = {name: module for name, module in model.named_modules() if isinstance(module, _BatchNorm)}
        if norms and not config.sync_batch_norm:
            return InputError(
                f"layer {next(iter(norms))} is batch normalisation, which normalises over one worker's examples",
                "set train.sync_batch_norm: true",
            )
        if norms and config.accumulation > 1:
            return InputError(
                f"layer {next(iter(norms))} is batch normalisation, which normalises over micro-batches, and these "
                "differ with num_gpus",
                "set train.accumulation: 1",
            )
        for module in norms.values():
            module.eval()  # synchronised, it depends on the global batch alone; we test the other layers

        task = make_task(
            config.task, config.loss, config.metric, splits.num_classes, {**splits.for_task, **config.task_args}
        )
        batch = splits.test_examples(EXAMPLES)
        outputs = [outputs_of(task, model, batch, seed) for seed in range(DRAWS)]
        if any(_differ(outputs[0], other) for other in outputs[1:]):
            return InputError(
                "draws random numbers in training (such as dropout), which differ with num_gpus", "remove their layers"
            )
        middle = (count(batch) + 1) // 2
        halves = [outputs_of(task, model, half, 0) for half in split(batch, [middle, count(batch) - middle])]
        joined = torch.cat(halves) if config.task is None else torch.stack(halves).sum(dim=0)
        if _differ(outputs[0], joined):
            if config.task is not None:
                return InputError(
                    "the loss of a batch is not the sum of its parts' losses, or an example's output depends on the "
                    "other examples of its batch",
                    "return sums from the task's loss, and remove layers that mix examples",
                )
            return InputError(
                "an example's output depends on the other examples of its batch", "remove the layers that mix examples"
            )
        return None


def outputs_of(task: Task, model: nn.Module, batch: Tree, seed: int) -> torch.Tensor:
    """Return the outputs (N, …); for a user's task, whose outputs may have any form, its loss sum and weight."""
    torch.manual_seed(seed)
    outputs = task.forward(model, batch)
    if isinstance(outputs, torch.Tensor) and isinstance(task, ExamplesTask):
        return outputs.double()
    return torch.stack([torch.as_tensor(number).double() for number in checked_loss(task, outputs, batch)])


def _differ(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first.shape != second.shape or bool((first - second).abs().max() > TOLERANCE * first.abs().max())
