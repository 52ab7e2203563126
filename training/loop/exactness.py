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

EXAMPLES = 8
DRAWS = 4  # forward passes with different random numbers; a layer that is rarely skipped seldom shows in one of them
TOLERANCE = 1e-3  # of the largest output; other batch sizes round to some 1e-6, a mask of dropout changes all


def why_inexact(config: TrainConfig) -> InputError | None:
    """Why a training of this config depends on the world size, and the remedy; None: no sign that it does.

    Asks only the model. Rules and strategies are known by their names. The package's augmentation and the random
    numbers of a user's data set are keyed by example. Exceptions from building the model, and from a user's code, pass.
    """
    with generators_kept(), torch.no_grad():
        splits = load_splits(config, torch.device("cpu"))
        model = seeded_model(config, splits.num_classes, splits.in_channels).train()
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
            module.eval()  # synchronised, it depends on the global batch alone; we look at the other layers

        inputs = splits.test_examples(min(EXAMPLES, splits.test_count))
        outputs = [_outputs(model, inputs, seed) for seed in range(DRAWS)]
        if any(_differ(outputs[0], other) for other in outputs[1:]):
            return InputError(
                "draws random numbers in training (such as dropout), which differ with num_gpus", "remove their layers"
            )
        halves = torch.cat([_outputs(model, half, 0) for half in inputs.chunk(2)])
        if _differ(outputs[0], halves):
            return InputError(
                "an example's output depends on the other examples of its batch", "remove the layers that mix examples"
            )
        return None


def _outputs(model: nn.Module, inputs: torch.Tensor, seed: int) -> torch.Tensor:
    torch.manual_seed(seed)
    outputs: torch.Tensor = model(inputs)
    return outputs.double()


def _differ(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first.shape != second.shape or bool((first - second).abs().max() > TOLERANCE * first.abs().max())
