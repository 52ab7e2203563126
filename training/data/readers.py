"""Batches on their way to the device.

They come from tensors that live there, from tensors in the host's memory, or from a user's map-style data set. These
three ways give bit-identical batches. An iterable data set sets its order, and has no length.

Shapes: n examples, N of them in a batch, C channels.
"""

from __future__ import annotations

import io
import itertools
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.reduction import ForkingPickler
from types import ModuleType
from typing import Any, NoReturn, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate, get_worker_info
from torch.utils.data._utils import worker as loader_process

from scalestudy.training.config import LoaderConfig
from scalestudy.training.data.downloads import DataError
from scalestudy.training.data.splits import Collate, check_inputs, check_targets, evenly
from scalestudy.training.data.streams import Passes, Place, Stream
from scalestudy.training.device import usable_cores
from scalestudy.training.distributed import Worker
from scalestudy.training.exceptions import InputError, readable
from scalestudy.training.own_code import own_place
from scalestudy.training.process import exits_told
from scalestudy.training.seeding import generators_kept, seed_example
from scalestudy.training.torchvision_compat import define_missing_operators
from scalestudy.training.trees import Tree, check_rows, count, moved, part, rows, tensors

define_missing_operators()  # here, because a user's data set may import torchvision when it is unpickled

Batches = Generator[Tree, None, None]
"""Close or drop it to end the reading ahead."""

Bounds = Sequence[tuple[int, int]]
"""First and one-past-last position of each batch; equal for an empty one."""

MOST_LOADER_PROCESSES = 4  # a worker
LOADERS_PAY_FROM_SECONDS = 2.0  # of reading in the training process; the start of loader processes takes some tenths
_PROBED = 4  # examples that are read to measure how long one takes


class Reader(Protocol):
    """One of the two sets, training or test."""

    @property
    def empty(self) -> Tree:
        """A batch of no examples, of the form of all others."""

    def __len__(self) -> int:
        """Return n."""

    def batches(self, order: torch.Tensor | None, bounds: Bounds, epoch: int) -> Batches:
        """Yield a batch for each pair of bounds: positions in the permutation `order` (n,); None: in the set."""


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
        order = order.to(next(tensor.device for _, tensor in tensors(self.examples)))
        yield from (rows(self.examples, order[first:stop]) for first, stop in bounds)


@dataclass(frozen=True)
class HostReader(_TensorReader):
    """Tensors in the host's memory, too large for the device: a thread gathers and pins batches ahead."""

    device: torch.device
    prefetch: int = LoaderConfig.model_fields["prefetch"].default  # batches

    def batches(self, order: torch.Tensor | None, bounds: Bounds, epoch: int) -> Batches:
        positions = torch.arange(len(self)) if order is None else order
        loader = DataLoader(
            _Rows(self.examples),
            batch_sampler=_Positions(positions, bounds),
            collate_fn=_unchanged,
            pin_memory=self.device.type == "cuda",
            generator=torch.Generator(),  # otherwise it draws from the global one
        )
        with closing(read_ahead(iter(loader), self.prefetch)) as loaded:
            for batch in loaded:
                yield moved(batch, self.device)


class _UserReader:
    """The base of readers of a user's data set, by loader processes if that pays, otherwise in the training process."""

    def __init__(
        self,
        name: str,
        num_classes: int | None,
        worker: Worker,
        seed: int,
        collate: Collate | None,
        loader: LoaderConfig | None,
    ) -> None:
        self._name, self._num_classes = name, num_classes
        self._worker, self._seed = worker, seed
        self._collate: Collate = collate or default_collate
        self._loader = loader or LoaderConfig()

    def _processes(self, seconds: float, dataset: object) -> int:
        """Return how many loader processes read what takes `seconds`: as the user says, or as many as pay."""
        asked = self._loader.workers
        if asked is not None:
            processes = 0 if multiprocessing.current_process().daemon else asked
        else:
            processes = loader_processes(self._worker, seconds)
        reason = why_not_sent((dataset, self._collate)) if processes else None
        if reason is None:
            return processes
        warnings.warn(
            f"data: the {self._name} set is read in the training process, because it can't be sent to others "
            f"({reason}); make it picklable",
            stacklevel=2,
        )
        return 0

    def _loaded(self, read: _Sent, dataset: object, processes: int, **how: Any) -> Generator[Any, None, None]:
        """Yield what a DataLoader makes of `read`, which holds the user's data set. Close it to end the processes.

        Raise what the user's code raised in a loader process.
        """
        loader = DataLoader(
            read,
            num_workers=processes,
            multiprocessing_context=fork_server(dataset) if processes else None,
            worker_init_fn=end_with_parent,
            collate_fn=_unchanged,
            prefetch_factor=self._loader.prefetch if processes else None,
            pin_memory=self._worker.device.type == "cuda",
            generator=torch.Generator(),  # otherwise it draws from the global one
            **how,
        )
        try:
            loaded = iter(loader)
        except (EOFError, ConnectionError) as error:
            module = type(dataset).__module__
            problem = f"data: importing {module} for loader processes ended the process that starts them"
            raise DataError(
                problem, f"import it without errors in a new process, as `python -c 'import {module}'`"
            ) from error
        try:
            for batch in loaded:
                if isinstance(batch, Raised):
                    raise batch.error()
                yield batch
        except RuntimeError as error:
            ended = next((each.exitcode for each in getattr(loaded, "_workers", ()) if each.exitcode), None)
            if ended is None:
                raise
            how_ended = f"signal {-ended}, {signal.strsignal(-ended)}" if ended < 0 else f"status {ended}"
            raise RuntimeError(f"data: a loader process of the {self._name} set ended with {how_ended}") from error
        finally:
            # The iterator ends its processes when it is deleted, which an exception's traceback may delay.
            if hasattr(loaded, "_shutdown_workers"):  # has loader processes
                loaded._shutdown_workers()

    def _checked(self, batch: Any, examples: int) -> Tree:
        """Check the collated batch. Targets of a pair become int64, or the floating-point format of the inputs."""
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


class DatasetReader(_UserReader):
    """A user's map-style data set."""

    def __init__(
        self,
        name: str,
        dataset: Dataset[Any],
        num_classes: int | None,
        worker: Worker,
        seed: int,
        collate: Collate | None = None,
        loader: LoaderConfig | None = None,
    ) -> None:
        """Read a set, `name`: train or test. `num_classes`: None: examples of any form.

        If it is given, examples other than pairs of tensors raise DataError. So do batches without a row an example in
        each tensor.
        """
        super().__init__(name, num_classes, worker, seed, collate, loader)
        self._dataset = dataset
        self._seconds_an_example, examples = _probe(KeyedExamples(dataset, seed, epoch=0), len(self))
        self.empty = part(self._checked(self._collate(examples), len(examples)), 0, 0)

    def __len__(self) -> int:
        return len(self._dataset)  # type: ignore[arg-type]

    def batches(self, order: torch.Tensor | None, bounds: Bounds, epoch: int) -> Batches:
        filled = [(first, stop) for first, stop in bounds if first < stop]
        examples = sum(stop - first for first, stop in filled)
        positions = _Positions(torch.arange(len(self)) if order is None else order, filled)
        read = _Chosen(KeyedExamples(self._dataset, self._seed, epoch), self._collate)
        processes = self._processes(self._seconds_an_example * examples, self._dataset) if filled else 0
        with closing(self._loaded(read, self._dataset, processes, batch_sampler=positions)) as loaded:
            for first, stop in bounds:
                batch = self._checked(next(loaded), stop - first) if first < stop else self.empty
                yield moved(batch, self._worker.device)


class StreamReader(_UserReader):
    """A user's iterable data set: every rank reads all of it and drops the others' examples, or reads its part.

    Loader processes read all of it too; each makes one batch in so many. So every number of them gives the same
    batches, and more than one is seldom faster.
    """

    def __init__(
        self,
        name: str,
        passes: Passes,
        num_classes: int | None,
        worker: Worker,
        seed: int,
        collate: Collate | None = None,
        loader: LoaderConfig | None = None,
        *,
        endless: bool,
    ) -> None:
        """Read a stream. `endless`: pass after pass, for training.

        Raises DataError as DatasetReader does, and for a set, or this rank's part of a training set, without examples.
        """
        super().__init__(name, num_classes, worker, seed, collate, loader)
        self._endless = endless
        stream = Stream(passes, seed, endless=False)
        examples = stream.take(1)  # may open files or import modules
        started = time.perf_counter()
        others = stream.take(_PROBED - 1)
        self._seconds_an_example = (time.perf_counter() - started) / max(len(others), 1)
        if not examples:
            raise passes.is_empty(0)
        self.empty = part(self._checked(self._collate(examples + others), len(examples + others)), 0, 0)
        self._has_parts = passes.shards_itself
        self._passes = passes
        if self._has_parts and worker.world_size > 1:
            self._passes = passes.part(worker.rank, worker.world_size)
            if endless:
                self._passes.first(1, seed)
        self.place = Place()
        """Where `shards` continues: at the pass of the last training batch taken, or of the checkpoint."""

    def go_on(self, places: Sequence[Place]) -> None:
        """Continue where a checkpoint's ranks were, by rank. One stream for all ranks continues at the latest pass.

        Raises InputError if the ranks had separate parts, and were another number.
        """
        if not self._has_parts:
            self.place = max(places, key=lambda place: place.first)
        elif len(places) == self._worker.world_size:
            self.place = places[self._worker.rank]
        else:
            raise InputError(
                f"checkpoint: its {len(places)} workers had parts of the {self._name} set of their own, by its method "
                f"shard, and now there are {self._worker.world_size} workers",
                f"resume with {len(places)} workers, or give an empty folder",
            )

    def shards(self, first: int, size: int, batch: int, steps: range) -> Batches:
        """Yield this rank's examples first … first + size - 1 of each step's global batch, pass after pass.

        From a data set that shards itself, take the next `size` of this rank's part.
        """
        if not size:
            yield from (moved(self.empty, self._worker.device) for _ in steps)
        elif self._has_parts:
            yield from self._pieces(_Pieces(steps.start * size, size, size, len(steps)))
        else:
            yield from self._pieces(_Pieces(steps.start * batch + first, size, batch, len(steps)))

    def dealt(self, size: int, most: int | None = None) -> Batches:
        """Yield all examples of one pass, in batches that go to the ranks in turn. most: batches of all ranks."""
        mine, all_ranks = self._worker.rank, self._worker.world_size
        rank, ranks = (0, 1) if self._has_parts else (mine, all_ranks)
        batches = self._pieces(_Pieces(rank * size, size, ranks * size, None))
        with closing(batches):
            yield from itertools.islice(batches, most if most is None else max(0, -(-(most - mine) // all_ranks)))

    def _pieces(self, pieces: _Pieces) -> Batches:
        place = self.place if self.place.first <= pieces.first else Place()
        seconds = self._seconds_an_example * pieces.stride * (pieces.count or 0)
        dataset = self._passes.dataset
        processes = self._processes(seconds, dataset)
        if self._loader.workers is None:
            processes = min(processes, 1)
        read = _Batches(self._passes, self._seed, self._endless, self._collate, place, pieces)
        with closing(self._loaded(read, dataset, processes, batch_size=None)) as loaded:
            for batch, examples, place in loaded:
                if self._endless:
                    self.place = place
                yield moved(self._checked(batch, examples), self._worker.device)


def loader_processes(worker: Worker, seconds: float) -> int:
    """Return how many loader processes to start for this time of reading; 0: the training process reads.

    They get this worker's part of the machine's cores that no worker trains on. A daemon may not have children.
    """
    if seconds < LOADERS_PAY_FROM_SECONDS or multiprocessing.current_process().daemon:
        return 0
    neighbours = int(os.environ.get("LOCAL_WORLD_SIZE", worker.world_size))  # torchrun's; otherwise as if all were here
    training = worker.threads if worker.device.type == "cpu" else 1
    cores = usable_cores()
    return max(min(cores // neighbours - training, MOST_LOADER_PROCESSES), 0)


def _probe(examples: KeyedExamples, count: int) -> tuple[float, list[Any]]:
    """Return the seconds to read an example, and the examples read, some from all over the set."""
    chosen = evenly(count, _PROBED)
    first = examples.read(chosen[:1])  # may open files or import modules
    started = time.perf_counter()
    others = examples.read(chosen[1:])
    return (time.perf_counter() - started) / max(len(others), 1), first + others


class KeyedExamples:
    """A user's data set whose random numbers (random, numpy.random, torch) are a function of (seed, epoch, example).

    So an example is equal at any world size and in any process. Reading does not change the process's generators.
    """

    def __init__(self, examples: Any, seed: int, epoch: int) -> None:
        self.examples = examples
        self.seed = seed
        self.epoch = epoch

    def read(self, indices: Sequence[int]) -> list[Any]:
        """Return the examples of a batch."""
        examples = []
        with generators_kept():
            for index in indices:
                seed_example(self.seed, self.epoch, index)
                try:
                    examples.append(self.examples[index])
                except StopIteration as error:  # it would end the reading as if all were read
                    raise RuntimeError("the data set raised StopIteration") from error
        return examples


def fork_server(examples: object) -> BaseContext:
    """Return the context that starts loader processes from a fork server, a clean process that keeps its imports.

    Measured on two cores, from the start of a pass to its first batch: 0.03–0.06 s (the first time 1.3 s), as with
    fork; 0.8 s with spawn. Rejected: to fork the training process itself. Its process group, Ray and OpenMP run
    threads, and a fork may copy their locks while held.

    The server imports what every loader process needs: this module, the data set's, and the main module's imports,
    which multiprocessing runs in each process (Ray's takes 0.3 s).
    """
    context = multiprocessing.get_context("forkserver")
    used_by_main = {value.__name__ for value in vars(sys.modules["__main__"]).values() if isinstance(value, ModuleType)}
    context.set_forkserver_preload([__name__, type(examples).__module__, *sorted(used_by_main)])
    return context


def why_not_sent(content: object) -> str | None:
    """Return why a data set, or a batch, can't be sent to another process (mostly a lambda); None if it can.

    Its tensors and arrays are skipped: pickling them takes long, and torch would move them to shared memory.
    """
    try:
        _FormPickler(_Nowhere()).dump(content)
    except Exception as error:  # each class may raise its own
        return str(error)
    return None


class _FormPickler(pickle.Pickler):
    def persistent_id(self, part: object) -> str | None:
        if isinstance(part, torch.Tensor) and part.requires_grad and not part.is_leaf:
            raise ValueError("a tensor holds the graph of its gradient; detach it")
        return "values" if isinstance(part, torch.Tensor | np.ndarray) else None


class _Nowhere:
    def write(self, content: object) -> int:
        return 0


def end_with_parent(loader_number: int) -> None:
    """End this loader process as soon as the training process ends, however it ends.

    DataLoader watches the parent's id. Here the parent is the fork server, which lives as long as its children.
    """

    def watch_parent() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            wait([parent.sentinel])
            os._exit(1)

    threading.Thread(target=watch_parent, daemon=True).start()


class Raised:
    """What a user's code raised in a loader process, on its way to the training process.

    Rejected: to leave it to DataLoader, which makes the text of an exception a traceback, calls its class with that
    text alone, and only sees that a process is gone where code ends it, as `sys.exit` does.
    """

    def __init__(self, error: BaseException) -> None:
        """Keep the exception if it can be sent; else only its name and its text."""
        error = readable(error)
        self._place = own_place(error)
        self._name, self._text, self._pickled = type(error).__name__, str(error), b""
        self._traceback = "".join(traceback.format_exception(error))
        try:
            self._pickled = pickle.dumps(error)
            pickle.loads(self._pickled)
        except Exception:  # each class may raise its own
            self._pickled = b""

    def error(self) -> BaseException:
        """Return the exception, with its traceback of the loader process as a note."""
        unsent = type(self._name, (Exception,), {})
        error: BaseException = pickle.loads(self._pickled) if self._pickled else unsent(self._text)
        error.add_note(f"In a loader process:\n{self._traceback}")
        error.place_elsewhere = self._place  # type: ignore[attr-defined]  # for `own_place`
        return error


def _or_raised(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function returns, or what it raised or makes impossible to send."""
    try:
        with exits_told(_raise):
            result = function(*arguments)
        if why := why_not_sent(result):
            raise TypeError(f"the batch can't be sent from a loader process ({why})")
        return result
    except BaseException as error:
        return Raised(error)


def _raise(error: BaseException) -> NoReturn:
    raise error


class _Sent(Dataset[Any]):
    """The base of what DataLoader reads batches from. In a loader process what the user's code raises is a batch.

    That includes its unpickling there: pickle ends the process with what is raised. So the content is a pickle within
    the pickle. Arrays lie beside it, as one copy of them may take much memory.
    """

    _raised: Raised | None = None  # by the unpickling

    def __reduce__(self) -> Any:
        inner, arrays = io.BytesIO(), list[pickle.PickleBuffer]()
        ForkingPickler(inner, pickle.HIGHEST_PROTOCOL, True, arrays.append).dump(vars(self))
        beside = [np.asarray(each.raw()) for each in arrays]
        return _received, (type(self), dict(os.environ), inner.getvalue(), beside)


def _received(kind: type[_Sent], environment: Mapping[str, str], content: bytes, arrays: Sequence[Any]) -> _Sent:
    """Return what a loader process gets, in the training process's environment; the fork server has an earlier one."""
    os.environ.clear()
    os.environ.update(environment)
    received = kind.__new__(kind)
    try:
        with exits_told(_raise):
            vars(received).update(pickle.loads(content, buffers=arrays))
    except BaseException as error:
        vars(received)["_raised"] = Raised(error)
    return received


@dataclass(frozen=True)
class _Chosen(_Sent):
    """Batches of chosen examples of a map-style set."""

    examples: KeyedExamples
    collate: Collate

    def __getitems__(self, indices: Sequence[int]) -> Any:
        """Return the batch. DataLoader's fetcher calls this method."""
        return self._made(indices) if get_worker_info() is None else self._raised or _or_raised(self._made, indices)

    def _made(self, indices: Sequence[int]) -> Any:
        return self.collate(self.examples.read(indices))


def read_ahead(batches: Iterator[Any], depth: int) -> Generator[Any, None, None]:
    """Yield the same items (none may be None). A thread makes up to `depth` of them ahead, and ends with the iterator.

    For iterators that draw no random numbers: a thread would take them from the training's generators.
    """
    with ThreadPoolExecutor(max_workers=1) as thread:
        pending = deque(thread.submit(next, batches, None) for _ in range(depth))
        while (item := pending.popleft().result()) is not None:
            pending.append(thread.submit(next, batches, None))
            yield item


@dataclass(frozen=True)
class _Pieces:
    """The examples of a stream first + k · stride … first + k · stride + size - 1, for k from 0."""

    first: int
    size: int
    stride: int
    count: int | None  # None: to the stream's end

    def of_loader(self, loader: int, loaders: int) -> _Pieces:
        """Return every so many-th piece: the pieces of one loader process. The processes deliver in turn."""
        count = None if self.count is None else max(0, -(-(self.count - loader) // loaders))
        return _Pieces(self.first + loader * self.stride, self.size, self.stride * loaders, count)


@dataclass(frozen=True)
class _Batches(_Sent, IterableDataset[Any]):
    """The pieces of a stream as batches, each with its number of examples and the pass of its last one."""

    passes: Passes
    seed: int
    endless: bool
    collate: Collate
    place: Place
    pieces: _Pieces

    def __iter__(self) -> Iterator[Any]:
        if self._raised is not None:
            yield self._raised
            return
        pieces, loader = self.pieces, get_worker_info()
        made = partial(_or_raised, self._made) if loader is not None else self._made
        if loader is not None:
            pieces = pieces.of_loader(loader.id, loader.num_workers)
            loader_process._worker_info = None  # a data set that asks torch for it would yield only a part here
        stream = Stream(self.passes, self.seed, self.place, endless=self.endless)
        for number in itertools.count() if pieces.count is None else range(pieces.count):
            batch = made(stream, pieces.first + number * pieces.stride, pieces.size)
            if isinstance(batch, Raised) or batch[1]:
                yield batch
            if isinstance(batch, Raised) or batch[1] < pieces.size:
                return

    def _made(self, stream: Stream, first: int, size: int) -> tuple[Any, int, Place]:
        """Return a batch of the next examples from `first` on, their number, and the pass of the last one."""
        stream.skip_to(first)
        examples = stream.take(size)
        return self.collate(examples) if examples else None, len(examples), stream.place


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
