"""MLP, linear regression, LeNet, ResNet-18.

Shapes: N examples, C channels, H × W pixels, K classes or numbers to predict. Inputs (N, C, H, W), outputs (N, K). MLP
and linear regression also take inputs (N, d) of d = C · image_size² numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from scalestudy.training.config import is_number
from scalestudy.training.exceptions import InputError
from scalestudy.training.models.common import check_image_size, check_images, check_numbers, initialise, is_whole


class MLP(nn.Sequential):
    """Fully connected layers of the sizes in `hidden`, each followed by ReLU, and one linear layer for the outputs.

    `shared`: how often one more hidden layer, as wide as the last, is used in a row with the same parameters (the
    book's tied parameters); 0: not there. Its gradient is the sum over its uses. `batch_norm`: normalise before each
    ReLU, separately at each use of the shared layer. `dropout`: the share of numbers zeroed after each ReLU while
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
        if not isinstance(hidden, list | tuple) or not all(is_whole(size, 1) for size in hidden):
            raise InputError(
                f"model_args.hidden: {hidden!r} is not a list of whole numbers above 0", "write it like [256]"
            )
        if not is_number(dropout) or not 0 <= dropout < 1:
            raise InputError(f"model_args.dropout: {dropout!r} is not valid", "choose a number in [0, 1)")
        if not isinstance(batch_norm, bool):
            raise InputError(f"model_args.batch_norm: {batch_norm!r} is not known", "choose true or false")
        if not is_whole(shared, 0):
            raise InputError(
                f"model_args.shared: {shared!r} is not valid", "choose how often the shared layer is used, 0 or more"
            )
        if shared and not hidden:
            raise InputError(
                f"model_args.shared: {shared!r} repeats the last hidden layer, but hidden is empty",
                "give hidden at least one size",
            )
        sizes = (in_channels * image_size**2, *hidden)
        linears = [nn.Linear(inputs, outputs) for inputs, outputs in itertools.pairwise(sizes)]
        if shared:
            linears += [nn.Linear(sizes[-1], sizes[-1])] * shared
        layers: list[nn.Module] = []
        for linear in linears:
            normalise = [nn.BatchNorm1d(linear.out_features)] if batch_norm else []
            drop = [nn.Dropout(dropout)] if dropout else []
            layers += [linear, *normalise, nn.ReLU(), *drop]
        super().__init__(nn.Flatten(), *layers, nn.Linear(sizes[-1], num_classes))
        self.numbers = sizes[0]  # of an example
        initialise(self, init)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        check_numbers(inputs, self.numbers)
        return super().forward(inputs)


class LinearRegression(nn.Sequential):
    """One linear layer: K weighted sums of an example's numbers; as in the book, drawn from N(0, 0.01²), zero biases.

    `image_size`: 1 for inputs (N, C) of C features each, otherwise the side of the images. It is linear regression with
    `loss: mse`, and softmax regression with cross-entropy. Raises ValueError for an unknown init or image_size.
    """

    def __init__(self, num_classes: int, in_channels: int, init: str = "normal", image_size: int = 1) -> None:
        check_image_size(image_size, 1)
        numbers = in_channels * image_size**2
        super().__init__(nn.Flatten(), nn.Linear(numbers, num_classes))
        self.numbers = numbers  # of an example
        initialise(self, init)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        check_numbers(inputs, self.numbers)
        return super().forward(inputs)


class LeNet(nn.Sequential):
    """The LeNet of Dive into Deep Learning's "Training on Multiple GPUs": two convolutions, average pooling, ReLU.

    `init`: `normal`, `xavier`, `default` or an import path. `normal` is the book's N(0, 0.01²) for weights, with zero
    biases. (The book's from-scratch code draws biases from the same normal; its concise code keeps PyTorch's.) Images
    are `image_size` pixels high and wide. Raises ValueError if init is unknown, or if nothing is left of the images
    after the second pooling.
    """

    def __init__(self, num_classes: int, in_channels: int, init: str = "xavier", image_size: int = 28) -> None:
        check_image_size(image_size, 14)
        side = ((image_size - 2) // 2 - 4) // 2
        super().__init__(
            nn.Conv2d(in_channels, 20, kernel_size=3),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Conv2d(20, 50, kernel_size=5),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(50 * side * side, 128),  # 28 pixels: 50 × 4 × 4 = 800
            nn.ReLU(),
            nn.Linear(128, num_classes),
        )
        self.numbers = in_channels * image_size**2  # of an example
        initialise(self, init)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        check_images(inputs)
        check_numbers(inputs, self.numbers)
        return super().forward(inputs)


class Residual(nn.Module):
    """Two 3 × 3 convolutions with batch normalisation, added to their input: (N, in, H, W) -> (N, out, H/s, W/s).

    With a stride s above 1, or another number of channels, a 1 × 1 convolution brings the input to the sum's shape.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1, conv_bias: bool = True) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=conv_bias)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=conv_bias)
        self.bn2 = nn.BatchNorm2d(out_channels)
        as_it_is = stride == 1 and in_channels == out_channels
        self.shortcut = nn.Identity() if as_it_is else nn.Conv2d(in_channels, out_channels, 1, stride=stride)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs = F.relu(self.bn1(self.conv1(inputs)))
        outputs = self.bn2(self.conv2(outputs))
        return F.relu(outputs + self.shortcut(inputs))


class ResNet18(nn.Sequential):
    """The ResNet-18 of the same chapter: a 3 × 3 stem and no max-pooling, so that images of 28 × 28 keep their size.

    Four pairs of residual blocks have 64, 128, 256 and 512 channels; the last three pairs halve height and width. Then
    come the mean over all pixels and one linear layer. Images may have any size. `conv_bias`: true gives convolutions
    biases, as in the book. False leaves them out before a batch normalisation, whose mean removes them again: the same
    functions with less work. Raises ValueError for an unknown init or conv_bias.
    """

    def __init__(self, num_classes: int, in_channels: int, init: str = "xavier", conv_bias: bool = True) -> None:
        if not isinstance(conv_bias, bool):
            raise InputError(f"model_args.conv_bias: {conv_bias!r} is not known", "choose true or false")
        blocks = [
            nn.Sequential(
                Residual(before, channels, 1 if before == channels else 2, conv_bias),
                Residual(channels, channels, 1, conv_bias),
            )
            for before, channels in ((64, 64), (64, 128), (128, 256), (256, 512))
        ]
        super().__init__(
            nn.Sequential(
                nn.Conv2d(in_channels, 64, 3, padding=1, bias=conv_bias),
                nn.BatchNorm2d(64),
                nn.ReLU(),
            ),
            *blocks,
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(512, num_classes),
        )
        initialise(self, init)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        check_images(inputs)
        return super().forward(inputs)
