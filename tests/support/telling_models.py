"""A model of a user who is careless with secrets: it prints them, logs them, and puts them into an error."""

from __future__ import annotations

import functools
import logging
import os
import sys

import torch
import torch.distributed
from torch import nn

PASSWORD_OF_URI = "p4ss-of-another-uri"
TOKEN = "t0ken-of-the-environment"
SECRETS = {"TELLING_TOKEN": TOKEN, "TELLING_URI": f"postgresql://bob:{PASSWORD_OF_URI}@db/mlflow"}
"""What it finds in the environment."""


class Telling(nn.Module):
    """A linear model. Of two workers the second raises an error in its first training step that quotes every secret."""

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.layer = nn.Linear(28 * 28 * in_channels, num_classes)
        print("printed:", said())
        print("on standard error:", said(), file=sys.stderr)
        logging.getLogger("telling").warning("logged: %s", said())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if torch.distributed.is_initialized() and torch.distributed.get_rank() == 1:
            raise ValueError(f"raised: {said()}")
        return self.layer(images.flatten(1))


class Mistaken(Telling):
    """It raises another error for as long as a file is there, and keeps its layer from one trial to the next."""

    def __init__(self, num_classes: int, in_channels: int, mistake: str) -> None:
        super().__init__(num_classes, in_channels)
        self.mistake, self.layer = mistake, kept_layer(28 * 28 * in_channels, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if os.path.exists(self.mistake):  # noqa: PTH110
            raise KeyError("a mistake")
        return super().forward(images)


kept_layer = functools.cache(nn.Linear)


def said() -> str:
    """The secrets, as a user's code may come to say them."""
    return f"{os.environ['TELLING_TOKEN']} at {os.environ['TELLING_URI']}"
