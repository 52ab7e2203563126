"""What `make chaos` trains: LeNet that takes its time, and raises when it finds an order to do so."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import nn

from scalestudy.training.models import LeNet

ORDER = "raise"
"""The file that asks for an exception; the rank that finds it first renames it and raises."""


class OrderedError(ArithmeticError):
    """The user's code fails, on one rank."""


class Paced(nn.Module):
    """seconds: of sleep in a training step. orders: the folder where orders to raise are put."""

    def __init__(self, num_classes: int, in_channels: int, seconds: float, orders: str) -> None:
        super().__init__()
        self.body = LeNet(num_classes, in_channels, init="xavier")
        self.seconds, self.orders = seconds, Path(orders)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training:
            time.sleep(self.seconds)
            self._obey()
        return self.body(inputs)

    def _obey(self) -> None:
        order = self.orders / ORDER
        if order.exists():
            try:
                order.rename(self.orders / f"raised-{time.time_ns()}")
            except FileNotFoundError:
                return  # another rank was faster
            raise OrderedError("this model was told to fail")
