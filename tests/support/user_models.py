"""Models as a user would bring them, good and bad; the specs of tests name them as `tests.support.user_models:…`."""

import os
import time

import torch
import torch.distributed as dist
from torch import nn


def linear(num_classes: int, in_channels: int, image_size: int = 28) -> nn.Module:
    """Softmax regression: the smallest thing that trains."""
    return nn.Sequential(nn.Flatten(), nn.Linear(in_channels * image_size**2, num_classes))


def fails_when_built(num_classes: int, in_channels: int) -> nn.Module:
    raise LookupError("no weights for this model")


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def notes_its_environment(num_classes: int, in_channels: int, folder: str) -> nn.Module:
    """Leaves what Ray has set for its process alone in a folder, a file a rank."""
    import ray

    with open(os.path.join(folder, str(rank())), "w") as file:  # noqa: PTH118, PTH123
        file.write(ray.get_runtime_context().get_runtime_env_string())
    return linear(num_classes, in_channels)


class Slow(nn.Module):
    """Sleeps in every step, and leaves its process number in a folder, so that a test can harm it in the middle.

    In an evaluation it sleeps for another while in each batch, and for another one when it is built.
    """

    def __init__(
        self,
        num_classes: int,
        in_channels: int,
        seconds: float = 0.05,
        pids: str = "",
        evaluating: float | None = None,
        built: float = 0.0,
    ) -> None:
        super().__init__()
        self.body = linear(num_classes, in_channels)
        self.seconds, self.evaluating = seconds, seconds if evaluating is None else evaluating
        time.sleep(built)
        if pids:
            with open(os.path.join(pids, f"{rank()}-{os.getpid()}"), "w"):  # noqa: PTH118, PTH123
                pass

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds if self.training else self.evaluating)
        return self.body(inputs)


class Counts(nn.Module):
    """Sleeps in every step, and has rank 0 write its process number into a file for each, so that none is hidden."""

    def __init__(self, num_classes: int, in_channels: int, file: str, seconds: float = 0.0) -> None:
        super().__init__()
        self.body = linear(num_classes, in_channels)
        self.file, self.seconds = file, seconds

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training and rank() == 0:
            with open(self.file, "a") as steps:  # noqa: PTH123
                steps.write(f"{os.getpid()}\n")
        time.sleep(self.seconds)
        return self.body(inputs)


class Meets(nn.Module):
    """Its first step waits until so many workers, of any trials, have come to theirs: their trials run side by side.

    It sleeps in every step of training, which takes time and no core.
    """

    def __init__(self, num_classes: int, in_channels: int, place: str, parties: int, seconds: float = 0.0) -> None:
        super().__init__()
        self.body = linear(num_classes, in_channels)
        self.place, self.parties, self.seconds, self.met = place, parties, seconds, False

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if not self.met:
            self.met = True
            with open(os.path.join(self.place, f"{os.getpid()}"), "w"):  # noqa: PTH118, PTH123
                pass
            give_up = time.monotonic() + 90.0
            while len(os.listdir(self.place)) < self.parties and time.monotonic() < give_up:  # noqa: PTH208
                time.sleep(0.05)
        time.sleep(self.seconds if self.training else 0.0)
        return self.body(inputs)
