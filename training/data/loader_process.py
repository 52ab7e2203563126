"""Stage 5, training loop: what the processes that read a user's data set import, run and must not outlive.

Loader processes come from a fork server, a clean process that has this module imported. Measured on two cores, from
the start of a pass to its first batch: 0.03–0.06 s (the first time 1.3 s), as with fork; with spawn 0.8 s. A fork of
the training process itself is rejected: its process group, Ray and OpenMP run threads, whose locks a fork may copy
while they are held.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import threading
from collections.abc import Sequence
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from training.seeding import generators_kept, seed_example
from training.torchvision_compat import define_missing_operators

define_missing_operators()  # here, because a user's data set may import torchvision when it is unpickled


class KeyedExamples(Dataset[Any]):
    """A user's data set, whose random numbers (random, numpy.random, torch) are a function of (seed, epoch, example).

    So an example is the same at any world size and in any process, and reading leaves the process's generators alone.
    """

    def __init__(self, examples: Any, seed: int, epoch: int) -> None:
        self.examples = examples
        self.seed = seed
        self.epoch = epoch

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The examples of a batch; DataLoader's fetcher asks for them by this method.

        Not in inference mode, which an evaluation reads in: a data set may keep tensors that training sees later.
        """
        with torch.inference_mode(mode=False), generators_kept():
            return [self._read(index) for index in indices]

    def _read(self, index: int) -> Any:
        seed_example(self.seed, self.epoch, index)
        return self.examples[index]


def fork_server(examples: object) -> BaseContext:
    """The context to start loader processes with; its server, once started, keeps what it has imported.

    It imports what every loader process would have to: this module, the data set's, and those of the main module,
    which multiprocessing runs in each process (Ray's takes 0.3 s).
    """
    context = multiprocessing.get_context("forkserver")
    used_by_main = {value.__name__ for value in vars(sys.modules["__main__"]).values() if isinstance(value, ModuleType)}
    context.set_forkserver_preload([__name__, type(examples).__module__, *sorted(used_by_main)])
    return context


def why_not_sent(examples: object) -> str | None:
    """Why a data set can't be sent to loader processes (a lambda in a transform, mostly); None if it can.

    Its tensors and arrays are passed over: pickling them takes long, and torch would move them to shared memory.
    """
    try:
        _FormPickler(_Nowhere()).dump(examples)
    except Exception as error:  # each class may raise its own
        return str(error)
    return None


class _FormPickler(pickle.Pickler):
    def persistent_id(self, part: object) -> str | None:
        return "values" if isinstance(part, torch.Tensor | np.ndarray) else None


class _Nowhere:
    def write(self, content: object) -> int:
        return 0


def end_with_parent(loader_number: int) -> None:
    """In a loader process: end as soon as the training process does, however it ends.

    DataLoader's own watch looks at the parent's id, and that is the fork server's, which lives while its children do.
    """
    threading.Thread(target=_watch_parent, daemon=True).start()


def _watch_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
