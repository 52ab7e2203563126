"""Batches on their way to the device.

They come from tensors that live there, from tensors in the host's memory, or from a user's torch data set. All three
ways give the same batches to the bit.

Shapes: n examples, N of them in a batch, C channels.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from scalestudy.training.data.files import DataError
from scalestudy.training.data.splits import Collate, check_inputs, check_targets
from scalestudy.training.distributed import Worker
from scalestudy.training.seeding import generators_kept, seed_example
from scalestudy.training.torchvision_compat import define_missing_operators
from scalestudy.training.trees import Tree, check_rows, count, moved, part, rows, tensors

define_missing_operators()  # here, because a user's data set may import torchvision when it is unpickled

Batches = Generator[Tree, None, None]
"""Close or drop it to end the reading ahead."""

Bounds = Sequence[tuple[int, int]]
"""First and one-past-last position of each batch; equal for an empty one."""

READ_AHEAD = 2  # batches
MOST_LOADER_PROCESSES = 4  # a worker
LOADERS_PAY_FROM_SECONDS = 2.0  # of reading in the training process; the start of loader processes takes some tenths
_PROBED = 4  # examples that are read to measure how long one takes


class Reader(Protocol):
    """One of the two sets, training or test."""

    @property
    def empty(self) -> Tree:
        """A batch of no examples, of the form of all others."""

    def __len__(self) -> int:
        """n."""

    def batches(self, order: torch.Tensor | None, bounds: Bounds, epoch: int) -> Batches:
        """A batch for each pair of bounds: positions in the permutation `order` (n,), or in the set itself (None)."""


@dataclass(frozen=True)
class _TensorReader:
    """The base of readers of whole tensors."""

    examples: Tree  # n rows in each tensor

    @property
    def empty(self) -> Tree:
        return part(self.examples, 0, 0)

    def __len__(self) -> int:
        return count(self.examples)


@dataclass(frozen=True)
class ResidentReader(_TensorReader):
    """Tensors on the device: a batch is one gather, or without an order a view."""

    def batches(self, order: torch.Tensor | None, bounds: Bounds, epoch: int) -> Batches:
        if order is None:
            yield from (part(self.examples, first, stop) for first, stop in bounds)
            return
        device = next(tensor.device for _, tensor in tensors(self.examples))
        order = order.to(device)
        for first, stop in bounds:
            yield rows(self.examples, order[first:stop])


@dataclass(frozen=True)
class HostReader(_TensorReader):
    """Tensors in the host's memory, too large for the device: a thread gathers and pins batches ahead."""

    device: torch.device

    def batches(self, order: torch.Tensor | None, bounds: Bounds, epoch: int) -> Batches:
        positions = torch.arange(len(self)) if order is None else order
        loader = DataLoader(
            _Rows(self.examples),
            batch_sampler=_Positions(positions, bounds),
            collate_fn=_unchanged,
            pin_memory=self.device.type == "cuda",
            generator=torch.Generator(),  # otherwise it draws from the global one
        )
        with closing(read_ahead(iter(loader), READ_AHEAD)) as loaded:
            for batch in loaded:
                yield moved(batch, self.device)


class DatasetReader:
    """A user's torch data set, read by loader processes if that pays, otherwise in the training process."""

    def __init__(
        self,
        name: str,
        dataset: Dataset[Any],
        num_classes: int | None,
        worker: Worker,
        seed: int,
        collate: Collate | None = None,
    ) -> None:
        """`name`: train or test; `num_classes`: None: examples of any form. Raises DataError for other examples than
        pairs of tensors if it is given, and for batches whose tensors have not a row an example."""
        self._name, self._dataset, self._num_classes = name, dataset, num_classes
        self._worker, self._seed = worker, seed
        self._collate = collate or default_collate
        self._seconds_an_example, examples = _probe(KeyedExamples(dataset, seed, epoch=0), len(self))
        self.empty = part(self._checked(self._collate(examples), len(examples)), 0, 0)

    def __len__(self) -> int:
        return len(self._dataset)  # type: ignore[arg-type]

    def batches(self, order: torch.Tensor | None, bounds: Bounds, epoch: int) -> Batches:
        filled = [(first, stop) for first, stop in bounds if first < stop]
        examples = sum(stop - first for first, stop in filled)
        processes = loader_processes(self._worker, self._seconds_an_example * examples)
        reason = why_not_sent((self._dataset, self._collate)) if processes else None
        if reason is not None:
            processes = 0
            warnings.warn(
                f"data: the {self._name} set is read in the training process, because it can't be sent to others "
                f"({reason}); make it picklable",
                stacklevel=2,
            )
        device = self._worker.device
        loader = DataLoader(
            KeyedExamples(self._dataset, self._seed, epoch),
            batch_sampler=_Positions(torch.arange(len(self)) if order is None else order, filled),
            collate_fn=self._collate,
            num_workers=processes,
            multiprocessing_context=fork_server(self._dataset) if processes else None,
            worker_init_fn=end_with_parent,
            prefetch_factor=READ_AHEAD if processes else None,
            pin_memory=device.type == "cuda",
            generator=torch.Generator(),  # otherwise it draws from the global one
        )
        loaded = iter(loader)
        try:
            for first, stop in bounds:
                yield moved(self._checked(next(loaded), stop - first) if first < stop else self.empty, device)
        finally:
            # The iterator ends its processes when it is deleted, which an exception's traceback may delay.
            if hasattr(loaded, "_shutdown_workers"):  # has loader processes
                loaded._shutdown_workers()

    def _checked(self, batch: Any, examples: int) -> Tree:
        """The collated batch, checked. Targets of a pair become int64, or the floating-point format of the inputs."""
        if self._num_classes is None:
            return check_rows(batch, examples, self._name)
        if not isinstance(batch, tuple | list) or [type(part) for part in batch] != [torch.Tensor, torch.Tensor]:
            raise DataError(
                f"data: {self._name} examples are not pairs of tensors or numbers", "return (input, target)"
            )
        inputs, targets = check_rows(batch, examples, self._name)
        check_inputs(self._name, inputs)
        number = torch.float32 if inputs.dtype == torch.uint8 else inputs.dtype
        targets = targets.to(number if targets.is_floating_point() else torch.int64)
        check_targets(self._name, targets, self._num_classes)
        return inputs, targets


def loader_processes(worker: Worker, seconds: float) -> int:
    """How many loader processes to start for this time of reading; 0: the training process reads.

    They get the worker's part of the cores that no worker of this machine trains on. A daemon may not have children.
    """
    if seconds < LOADERS_PAY_FROM_SECONDS or multiprocessing.current_process().daemon:
        return 0
    neighbours = int(os.environ.get("LOCAL_WORLD_SIZE", worker.world_size))  # torchrun's; otherwise as if all were here
    training = worker.threads if worker.device.type == "cpu" else 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(min(cores // neighbours - training, MOST_LOADER_PROCESSES), 0)


def _probe(examples: KeyedExamples, count: int) -> tuple[float, list[Any]]:
    """Seconds to read an example, and the examples that were read, some from all over the set."""
    chosen = [count * part // _PROBED for part in range(min(_PROBED, count))]
    first = examples.__getitems__(chosen[:1])  # may open files or import modules
    started = time.perf_counter()
    others = examples.__getitems__(chosen[1:])
    return (time.perf_counter() - started) / max(len(others), 1), first + others


class KeyedExamples(Dataset[Any]):
    """A user's data set whose random numbers (random, numpy.random, torch) are a function of (seed, epoch, example).

    So an example is equal at any world size and in any process. Reading does not change the process's generators.
    """

    def __init__(self, examples: Any, seed: int, epoch: int) -> None:
        self.examples = examples
        self.seed = seed
        self.epoch = epoch

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The examples of a batch. DataLoader's fetcher calls this method.

        Leaves the inference mode of an evaluation, since a data set may keep tensors for a later training step.
        """
        examples = []
        with torch.inference_mode(mode=False), generators_kept():
            for index in indices:
                seed_example(self.seed, self.epoch, index)
                examples.append(self.examples[index])
        return examples


def fork_server(examples: object) -> BaseContext:
    """The context that starts loader processes from a fork server, a clean process that keeps its imports.

    Measured on two cores, from the start of a pass to its first batch: 0.03–0.06 s (the first time 1.3 s), as with
    fork; 0.8 s with spawn. Rejected: to fork the training process itself. Its process group, Ray and OpenMP run
    threads, and a fork may copy their locks while held.

    The server imports what every loader process needs: this module, the data set's, and those of the main module,
    which multiprocessing runs in each process (Ray's takes 0.3 s).
    """
    context = multiprocessing.get_context("forkserver")
    used_by_main = {value.__name__ for value in vars(sys.modules["__main__"]).values() if isinstance(value, ModuleType)}
    context.set_forkserver_preload([__name__, type(examples).__module__, *sorted(used_by_main)])
    return context


def why_not_sent(examples: object) -> str | None:
    """Why a data set can't be sent to loader processes (mostly a lambda in a transform); None if it can.

    Skips its tensors and arrays: pickling them takes long, and torch would move them to shared memory.
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

    DataLoader watches the parent's id. Here that is the fork server's, which lives as long as its children.
    """

    def watch_parent() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            wait([parent.sentinel])
            os._exit(1)

    threading.Thread(target=watch_parent, daemon=True).start()


def read_ahead(batches: Iterator[Any], depth: int) -> Generator[Any, None, None]:
    """The same items (none may be None). A thread makes up to `depth` of them ahead, and ends with the iterator.

    For iterators that draw no random numbers: a thread would take them from the training's generators.
    """
    with ThreadPoolExecutor(max_workers=1) as thread:
        pending = deque(thread.submit(next, batches, None) for _ in range(depth))
        while (item := pending.popleft().result()) is not None:
            pending.append(thread.submit(next, batches, None))
            yield item


@dataclass(frozen=True)
class _Positions:
    """DataLoader's batch sampler: the indices of each batch, as a list."""

    order: torch.Tensor
    bounds: Bounds

    def __iter__(self) -> Iterator[list[int]]:
        return (self.order[first:stop].tolist() for first, stop in self.bounds)


class _Rows(Dataset[Any]):
    """Tensors by rows, a whole batch at once."""

    def __init__(self, examples: Tree) -> None:
        self._examples = examples

    def __getitems__(self, chosen: list[int]) -> Tree:
        return rows(self._examples, torch.tensor(chosen, dtype=torch.int64))


def _unchanged(batch: Any) -> Any:
    return batch
