"""Whether a training is the same at every world size, rounding aside (docs/formulas.md §7).

The gradient of a batch is a sum over its examples, however they are split – as long as an example's loss depends on
nothing but the example. So the model is tried, and not only looked through: dropout may be a function call deep in a
user's code. Rejected: comparing two short trainings, one of them on several workers, which takes processes to tell it.

Shapes: N examples, inputs (N, C, …), outputs (N, …).
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from scalestudy.training.config import TrainConfig
from scalestudy.training.data.loading import load_splits
from scalestudy.training.data.splits import DatasetSplits, Splits
from scalestudy.training.exceptions import InputError
from scalestudy.training.models import seeded_model
from scalestudy.training.seeding import generators_kept

EXAMPLES = 8
DRAWS = 4  # forward passes with other random numbers; what a layer skips rarely shows in one of them
TOLERANCE = 1e-3  # of the largest output; batches of other sizes round to some 1e-6, a mask of dropout changes all


def why_inexact(config: TrainConfig) -> InputError | None:
    """Why a training of this config depends on the world size, and the remedy; None: nothing says that it does.

    Only the model is asked: rules and strategies are known by their names, and the package's own augmentation and what
    a user's data set draws are keyed by example. Raises what building the model raises, and what a user's code raises.
    """
    with generators_kept(), torch.no_grad():
        return _why_inexact(config, load_splits(config, torch.device("cpu")))


def _why_inexact(config: TrainConfig, splits: Splits | DatasetSplits) -> InputError | None:
    model = seeded_model(config, splits.num_classes, splits.in_channels).train()
    norms = {name: module for name, module in model.named_modules() if isinstance(module, _BatchNorm)}
    if norms and not config.sync_batch_norm:
        return InputError(
            f"layer {next(iter(norms))} is batch normalisation, which sees each worker's examples alone",
            "set train.sync_batch_norm: true",
        )
    if norms and config.accumulation > 1:
        return InputError(
            f"layer {next(iter(norms))} is batch normalisation, which sees micro-batches, other examples at each "
            "world size",
            "set train.accumulation: 1",
        )
    for module in norms.values():
        module.eval()  # synchronised, it depends on the global batch alone; the rest is to be seen
    return _by_trial(model, splits.test_examples(min(EXAMPLES, splits.test_count)))


def _by_trial(model: nn.Module, inputs: torch.Tensor) -> InputError | None:
    outputs = [_outputs(model, inputs, seed) for seed in range(DRAWS)]
    if any(_differ(outputs[0], other) for other in outputs[1:]):
        return InputError(
            "draws random numbers while it trains (dropout or its like), which belong to the worker and not to the "
            "example",
            "take them out",
        )
    apart = torch.cat([_outputs(model, half, 0) for half in inputs.chunk(2)])
    if _differ(outputs[0], apart):
        return InputError(
            "an example's output depends on the examples beside it", "take out what looks at the whole batch"
        )
    return None


def _outputs(model: nn.Module, inputs: torch.Tensor, seed: int) -> torch.Tensor:
    torch.manual_seed(seed)
    outputs: torch.Tensor = model(inputs)
    return outputs.double()


def _differ(first: torch.Tensor, second: torch.Tensor) -> bool:
    if first.shape != second.shape:
        return True
    return bool((first - second).abs().max() > TOLERANCE * first.abs().max())
