"""Stage 5, training loop: the built-in models of fully connected layers, MLP and linear regression.

Shapes: N examples of d = C · image_size² numbers, K classes or numbers to be predicted. Inputs (N, d) or (N, C, H, W),
H = W = image_size, outputs (N, K).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import nn

from training.checks import is_number
from training.models.initialisation import initialise
from training.models.inputs import check_image_size, check_numbers, is_whole


class MLP(nn.Sequential):
    """Fully connected layers of the sizes in `hidden`, each followed by ReLU, and one linear layer for the outputs.

    `shared`: one more hidden layer, as wide as the last, that is used so many times in a row with the same parameters,
    whose gradient is then the sum over its uses (the book's tied parameters); 0: none. `batch_norm`: normalise before
    each ReLU, every use of the shared layer apart. `dropout`: the share of numbers zeroed after each ReLU while
    training. Raises ValueError for other values.
    """

    def __init__(
        self,
        num_classes: int,
        in_channels: int,
        hidden: Sequence[int] = (256,),
        init: str = "default",
        image_size: int = 28,
        dropout: float = 0.0,
        batch_norm: bool = False,
        shared: int = 0,
    ) -> None:
        check_image_size(image_size, 1)
        _check_options(hidden, dropout, batch_norm, shared)
        sizes = (in_channels * image_size**2, *hidden)
        linears = [nn.Linear(inputs, outputs) for inputs, outputs in itertools.pairwise(sizes)]
        if shared:
            linears += [nn.Linear(sizes[-1], sizes[-1])] * shared
        layers = [layer for linear in linears for layer in _hidden_layer(linear, dropout, batch_norm)]
        super().__init__(nn.Flatten(), *layers, nn.Linear(sizes[-1], num_classes))
        self.numbers = sizes[0]  # an example has so many
        initialise(self, init)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        check_numbers(inputs, self.numbers)
        return super().forward(inputs)


class LinearRegression(nn.Sequential):
    """One linear layer: K weighted sums of an example's numbers, from N(0, 0.01²) and zero biases as in the book.

    `image_size`: 1 for inputs (N, C) of C features each, else the side of the images. With `loss: mse` it is linear
    regression, with cross-entropy softmax regression. Raises ValueError if init or image_size is not known.
    """

    def __init__(self, num_classes: int, in_channels: int, init: str = "normal", image_size: int = 1) -> None:
        check_image_size(image_size, 1)
        numbers = in_channels * image_size**2
        super().__init__(nn.Flatten(), nn.Linear(numbers, num_classes))
        self.numbers = numbers  # an example has so many
        initialise(self, init)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        check_numbers(inputs, self.numbers)
        return super().forward(inputs)


def _hidden_layer(linear: nn.Linear, dropout: float, batch_norm: bool) -> list[nn.Module]:
    normalise: list[nn.Module] = [nn.BatchNorm1d(linear.out_features)] if batch_norm else []
    drop: list[nn.Module] = [nn.Dropout(dropout)] if dropout else []
    return [linear, *normalise, nn.ReLU(), *drop]


def _check_options(hidden: object, dropout: object, batch_norm: object, shared: object) -> None:
    if not isinstance(hidden, list | tuple) or not all(is_whole(size, 1) for size in hidden):
        raise ValueError(f"model_args.hidden: {hidden!r} is not a list of whole numbers above 0; write it like [256]")
    if not is_number(dropout) or not 0 <= dropout < 1:  # type: ignore[operator]
        raise ValueError(f"model_args.dropout: {dropout!r} is not valid; choose a number in [0, 1)")
    if not isinstance(batch_norm, bool):
        raise ValueError(f"model_args.batch_norm: {batch_norm!r} is not known; choose true or false")
    if not is_whole(shared, 0):
        raise ValueError(f"model_args.shared: {shared!r} is not valid; choose how often the shared layer is used, 0 or "
                         "more")  # fmt: skip
    if shared and not hidden:
        raise ValueError(f"model_args.shared: {shared!r} uses of a layer as wide as the last hidden one, but hidden is "
                         "empty; give hidden at least one size")  # fmt: skip
