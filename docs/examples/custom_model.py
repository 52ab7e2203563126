"""A model of your own: a custom layer without parameters, one with parameters, and a custom initialiser.

Name it in a spec as `model: custom_model:build`, with this file in the folder where you call `scalestudy`; see
docs/bring-your-model.md.
"""

import torch
from torch import nn


class Centre(nn.Module):
    """A layer without parameters: (N, d) -> (N, d), each example's mean taken away from its numbers."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs - inputs.mean(dim=1, keepdim=True)


class Dense(nn.Module):
    """A layer with parameters: (N, d) -> (N, units), ReLU of weighted sums.

    What is wrapped in nn.Parameter is trained, summed over the workers, saved and shown by `plan --rehearse`.
    """

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, units) / inputs**0.5)
        self.bias = nn.Parameter(torch.zeros(units))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.relu(inputs @ self.weight + self.bias)


def orthogonal(module: nn.Module) -> None:
    """An initialiser: called on every module of the model, it draws those that it knows."""
    if isinstance(module, Dense | nn.Linear):
        nn.init.orthogonal_(module.weight)
        nn.init.zeros_(module.bias)


def build(num_classes: int, in_channels: int, units: int = 64, init: str = "default", side: int = 28) -> nn.Module:
    """The model for data of `num_classes` classes and `in_channels` channels; the rest comes from `model_args`."""
    from scalestudy.training.models import initialise

    model = nn.Sequential(
        nn.Flatten(), Centre(), Dense(in_channels * side * side, units), Centre(), nn.Linear(units, num_classes)
    )
    initialise(model, init)
    return model
