"""Torch data sets as users write them; the tests name their callables by import path."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, default_collate


class Images(Dataset[tuple[torch.Tensor, int]]):
    """`count` images (1, 4, 6) that tell their index, of classes 0, 1, 2 in turn."""

    def __init__(self, count: int) -> None:
        self.images = torch.arange(count * 24, dtype=torch.float32).view(count, 1, 4, 6) / (count * 24)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.images[index], index % 3


class Noisy(Images):
    """Draws from all three generators for each example."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image, target = super().__getitem__(index)
        return image + torch.rand(1) + random.random() + np.random.rand(), target


class Returning(Dataset[Any]):
    """The same example for every index."""

    def __init__(self, example: object, count: int = 8) -> None:
        self.example = example
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> object:
        return self.example


class FailingAt(Images):
    """A user's mistake at one example."""

    def __init__(self, count: int, index: int) -> None:
        super().__init__(count)
        self.index = index

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index == self.index:
            raise LookupError(f"example {index} is lost")
        return super().__getitem__(index)


class WithArrays(Images):
    """Has arrays of several forms, and writes to one."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.arrays = {
            "by columns": np.asfortranarray(np.ones((count, 3))),
            "none": np.zeros((0, 3)),
            "one": np.ones(()),
        }

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.arrays["by columns"][index] *= 2
        assert {name: array.shape for name, array in self.arrays.items()} == {
            "by columns": (20, 3),
            "none": (0, 3),
            "one": (),
        }
        return super().__getitem__(index)


class WithLambda(Images):
    """Can't be pickled, as transforms with a lambda can't."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.transform = lambda image: image * 2


def _in_loader() -> bool:
    return multiprocessing.parent_process() is not None


class Strange(Images):
    """Is as it should be in the process that made it. A loader process meets what `kind` says."""

    def __init__(self, kind: str, count: int = 20) -> None:
        super().__init__(count)
        self.kind = kind
        self.only_here = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "only_here"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if self.kind == "raises in setstate":
            raise OSError("the archive is gone")
        if self.kind == "leaves in setstate":
            sys.exit("the licence server is away")
        if self.kind == "ends in setstate":
            os._exit(7)
        if self.kind == "reads the environment":
            self.folder = os.environ["PICTURES"]

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if _in_loader():
            if self.kind == "is not all sent":
                self.only_here  # noqa: B018
            if self.kind == "ends the process":
                os._exit(5)
            if self.kind == "is killed":
                os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)

    def __len__(self) -> int:
        if _in_loader():
            raise ValueError("not here")
        return super().__len__()


class Unmade(Images):
    """Is made anew, which fails."""

    def __reduce__(self) -> Any:
        return _lost, ()


def _lost() -> None:
    raise LookupError("no such set")


class StrangeCollate:
    """Makes batches that can't be sent, or raises as it is unpickled."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if self.kind == "raises in setstate":
            raise OSError("the tokens are gone")

    def __call__(self, examples: Any) -> Any:
        images, targets = default_collate(examples)
        unsent = {"a lambda": lambda: 1, "a graph": images.requires_grad_() * 2}
        return {"images": images.detach(), "targets": targets, "more": [unsent.get(self.kind)] * len(targets)}
