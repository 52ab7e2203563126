"""Batches on their way to the device.

Loader processes come from a fork server, a clean process that has this module imported. Measured on two cores, from
the start of a pass to its first batch: 0.03–0.06 s (the first time 1.3 s), as with fork; with spawn 0.8 s. A fork of
the training process itself is rejected: its process group, Ray and OpenMP run threads, whose locks a fork may copy
while they are held.

Shapes: n examples, N of them in a batch, C channels. Whichever way, the batches are the same to the bit.
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
from scalestudy.training.data.splits import check_inputs, check_targets
from scalestudy.training.distributed import Worker
from scalestudy.training.seeding import generators_kept, seed_example
from scalestudy.training.torchvision_compat import define_missing_operators

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


Batch = tuple[torch.Tensor, torch.Tensor]
"""Inputs (N, C, …) and targets (N, …), on the worker's device."""

Batches = Generator[Batch, None, None]
"""Close it, or drop it, to end what reads ahead."""

Bounds = Sequence[tuple[int, int]]
"""First and one-past-last position of each batch; equal for an empty one."""

READ_AHEAD = 2  # batches
MOST_LOADER_PROCESSES = 4  # a worker
LOADERS_PAY_FROM_SECONDS = 2.0  # of reading in the training process; starting loader processes takes some tenths
_PROBED = 4  # examples that are read to find out how long one takes


class Reader(Protocol):
    """One of the two sets, training or test."""

    @property
    def inputs_shape(self) -> tuple[int, ...]:
        """Of an example: (C, …)."""

    def __len__(self) -> int:
        """n."""

    def batches(self, order: torch.Tensor | None, bounds: Bounds, epoch: int) -> Batches:
        """A batch for each pair of bounds: positions in `order` (n,), a permutation, or of the examples as they are."""


@dataclass(frozen=True)
class _TensorReader:
    """What readers of whole tensors have in common."""

    inputs: torch.Tensor
    targets: torch.Tensor

    @property
    def inputs_shape(self) -> tuple[int, ...]:
        return tuple(self.inputs.shape[1:])

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True)
class ResidentReader(_TensorReader):
    """Tensors on the device: a batch is one gather, and with no order a view."""

    def batches(self, order: torch.Tensor | None, bounds: Bounds, epoch: int) -> Batches:
        if order is None:
            yield from ((self.inputs[first:stop], self.targets[first:stop]) for first, stop in bounds)
            return
        order = order.to(self.inputs.device)
        for first, stop in bounds:
            chosen = order[first:stop]
            yield self.inputs.index_select(0, chosen), self.targets.index_select(0, chosen)


@dataclass(frozen=True)
class HostReader(_TensorReader):
    """Tensors in the host's memory that would not fit the device: gathered and pinned by a thread, then copied."""

    device: torch.device

    def batches(self, order: torch.Tensor | None, bounds: Bounds, epoch: int) -> Batches:
        positions = torch.arange(len(self)) if order is None else order
        loader = DataLoader(
            _Rows(self.inputs, self.targets),
            batch_sampler=_Positions(positions, bounds),
            collate_fn=_as_it_is,
            pin_memory=self.device.type == "cuda",
            generator=torch.Generator(),  # else it draws from the global one
        )
        with closing(read_ahead(iter(loader), READ_AHEAD)) as loaded:
            for inputs, targets in loaded:
                yield inputs.to(self.device, non_blocking=True), targets.to(self.device, non_blocking=True)


class DatasetReader:
    """A user's torch data set, read by loader processes where that pays, else in the training process."""

    def __init__(self, name: str, dataset: Dataset[Any], num_classes: int, worker: Worker, seed: int) -> None:
        """`name`: of the set, train or test. Raises DataError for examples that are no pairs of tensors."""
        self._name, self._dataset, self._num_classes = name, dataset, num_classes
        self._worker, self._seed = worker, seed
        self._seconds_an_example, examples = _probe(KeyedExamples(dataset, seed, epoch=0), len(self))
        self._empty = tuple(part[:0] for part in self._tensors(default_collate(examples)))
        self.inputs_shape = tuple(self._empty[0].shape[1:])

    def __len__(self) -> int:
        return len(self._dataset)  # type: ignore[arg-type]

    def batches(self, order: torch.Tensor | None, bounds: Bounds, epoch: int) -> Batches:
        filled = [(first, stop) for first, stop in bounds if first < stop]
        loaded = self._loaded(_Positions(torch.arange(len(self)) if order is None else order, filled), epoch)
        device = self._worker.device
        try:
            for first, stop in bounds:
                inputs, targets = self._tensors(next(loaded)) if first < stop else self._empty
                yield inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)
        finally:
            _end_processes(loaded)

    def _loaded(self, positions: _Positions, epoch: int) -> Iterator[Any]:
        """The examples of each batch, collated, in the host's memory."""
        processes = self._processes(positions.count)
        return iter(
            DataLoader(
                KeyedExamples(self._dataset, self._seed, epoch),
                batch_sampler=positions,
                num_workers=processes,
                multiprocessing_context=fork_server(self._dataset) if processes else None,
                worker_init_fn=end_with_parent,
                prefetch_factor=READ_AHEAD if processes else None,
                pin_memory=self._worker.device.type == "cuda",
                generator=torch.Generator(),  # else it draws from the global one
            )
        )

    def _processes(self, examples: int) -> int:
        processes = loader_processes(self._worker, self._seconds_an_example * examples)
        reason = why_not_sent(self._dataset) if processes else None
        if reason is None:
            return processes
        warnings.warn(f"data: the {self._name} set is read in the training process, because it can't be sent to "
                      f"others ({reason}); make it picklable", stacklevel=2)  # fmt: skip
        return 0

    def _tensors(self, batch: Any) -> Batch:
        """The collated pair, checked; targets as a loss wants them: int64, or floating-point as the inputs are."""
        if not isinstance(batch, tuple | list) or [type(part) for part in batch] != [torch.Tensor, torch.Tensor]:
            raise DataError(
                f"data: {self._name} examples are not pairs of tensors or numbers", "return (input, target)"
            )
        inputs, targets = batch
        check_inputs(self._name, inputs)
        targets = targets.to(inputs.dtype if targets.is_floating_point() else torch.int64)
        check_targets(self._name, targets, self._num_classes)
        return inputs, targets


def read_ahead(batches: Iterator[Any], depth: int) -> Generator[Any, None, None]:
    """The same items (none of them None), up to `depth` of them made ahead by a thread, which ends with the iterator.

    For iterators that draw no random numbers: a thread would take them from the training's generators.
    """
    with ThreadPoolExecutor(max_workers=1) as thread:
        pending = deque(thread.submit(next, batches, None) for _ in range(depth))
        while (item := pending.popleft().result()) is not None:
            pending.append(thread.submit(next, batches, None))
            yield item


def loader_processes(worker: Worker, seconds: float) -> int:
    """How many processes should read what would take the training process so many seconds; 0: it reads by itself.

    The worker's part of the cores that no worker of this machine trains on. A daemon may not have children.
    """
    if seconds < LOADERS_PAY_FROM_SECONDS or multiprocessing.current_process().daemon:
        return 0
    neighbours = int(os.environ.get("LOCAL_WORLD_SIZE", worker.world_size))  # torchrun's; else as if all were here
    training = worker.threads if worker.device.type == "cpu" else 1
    return max(min(_cores() // neighbours - training, MOST_LOADER_PROCESSES), 0)


def _end_processes(loaded: Iterator[Any]) -> None:
    """DataLoader's iterator ends its processes when it is deleted, which an exception's traceback may put off."""
    if hasattr(loaded, "_shutdown_workers"):  # has loader processes
        loaded._shutdown_workers()


def _cores() -> int:
    """Those that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _probe(examples: KeyedExamples, count: int) -> tuple[float, list[Any]]:
    """Seconds that reading an example takes, and the examples that were read: some from all over the set."""
    chosen = [count * part // _PROBED for part in range(min(_PROBED, count))]
    first = examples.__getitems__(chosen[:1])  # may open files, or import what it needs
    started = time.perf_counter()
    others = examples.__getitems__(chosen[1:])
    return (time.perf_counter() - started) / max(len(others), 1), first + others


@dataclass(frozen=True)
class _Positions:
    """DataLoader's batch sampler: the indices of each batch, as a list."""

    order: torch.Tensor
    bounds: Bounds

    @property
    def count(self) -> int:
        """Examples of all batches."""
        return sum(stop - first for first, stop in self.bounds)

    def __iter__(self) -> Iterator[list[int]]:
        return (self.order[first:stop].tolist() for first, stop in self.bounds)


class _Rows(Dataset[Any]):
    """Tensors by rows, a whole batch at once."""

    def __init__(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        self._inputs, self._targets = inputs, targets

    def __getitems__(self, chosen: list[int]) -> Batch:
        indices = torch.tensor(chosen, dtype=torch.int64)
        return self._inputs.index_select(0, indices), self._targets.index_select(0, indices)


def _as_it_is(batch: Any) -> Any:
    return batch
