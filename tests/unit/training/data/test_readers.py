"""Torch data sets: read in this process or by loader processes, which end when they should."""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, dataloader

from scalestudy.training.data import DataError, readers
from scalestudy.training.data.readers import MOST_LOADER_PROCESSES, DatasetReader, loader_processes, read_ahead
from scalestudy.training.distributed import Worker
from scalestudy.training.own_code import own_place
from tests.support.gloo import GlooPool
from tests.support.training.helpers import ALONE
from tests.unit.training.data.datasets import (
    FailingAt,
    Images,
    Noisy,
    Returning,
    Strange,
    StrangeCollate,
    Unmade,
    WithArrays,
    WithLambda,
)

ORDER = torch.randperm(20, generator=torch.Generator().manual_seed(0))
BOUNDS = [(0, 6), (6, 6), (6, 13), (13, 20)]


def reader(dataset: Dataset[Any], num_classes: int = 3) -> DatasetReader:
    """A worker's reader of the data set."""
    return DatasetReader("train", dataset, num_classes, ALONE, seed=4)


def loaders() -> list[BaseProcess]:
    """This process's loader processes; the ranks of the tests' pool are spawned."""
    return [process for process in multiprocessing.active_children() if process.name.startswith("ForkServer")]


@pytest.fixture
def two_loaders(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever the machine, two processes read; none is left."""
    monkeypatch.setattr(readers, "loader_processes", lambda worker, seconds: 2)
    yield
    assert loaders() == []


def bits(batches: list[Any]) -> list[bytes]:
    """All that batches hold."""
    return [tensor.numpy().tobytes() for batch in batches for tensor in batch]


def read(dataset: Dataset[Any], epoch: int = 1) -> list[bytes]:
    """Four batches, one of them empty."""
    return bits(list(reader(dataset).batches(ORDER, BOUNDS, epoch)))


def test_loader_processes_give_the_same_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a data set that draws random numbers, too."""
    here = read(Images(20)), read(Noisy(20)), read(Noisy(20), epoch=2)
    monkeypatch.setattr(readers, "loader_processes", lambda worker, seconds: 2)
    assert (read(Images(20)), read(Noisy(20)), read(Noisy(20), epoch=2)) == here
    assert loaders() == []
    assert here[1] != here[0]
    assert here[1] != here[2]


def test_loaders_end_when_the_epoch_breaks_off(two_loaders: None) -> None:
    batches = reader(Images(20)).batches(ORDER, BOUNDS, 1)
    assert len(next(batches)[0]) == 6
    assert len(loaders()) == 2
    batches.close()


@pytest.mark.usefixtures("two_loaders")
def test_a_users_exception_passes_and_ends_the_loaders() -> None:
    with pytest.raises(LookupError, match="example 11 is lost"):
        read(FailingAt(20, index=11))


def test_a_users_exception_passes_in_this_process() -> None:
    with pytest.raises(LookupError, match=r"^example 11 is lost$"):
        read(FailingAt(20, index=11))


@pytest.mark.usefixtures("two_loaders")
def test_what_cannot_be_sent_is_read_here() -> None:
    with pytest.warns(UserWarning, match=r"^data: the train set is read in the training process, .*lambda.*picklable"):
        assert read(WithLambda(20)) == read(Images(20))


STRANGE = {
    "raises in setstate": "OSError: the archive is gone (datasets.py:NN, in __setstate__)",
    "leaves in setstate": "SystemExit: the licence server is away (datasets.py:NN, in __setstate__)",
    "ends in setstate": "RuntimeError: os._exit(7) ended the process (datasets.py:NN, in __setstate__)",
    "ends the process": "RuntimeError: os._exit(5) ended the process (datasets.py:NN, in __getitem__)",
    "is not all sent": "AttributeError: 'Strange' object has no attribute 'only_here' (datasets.py:NN, in __getitem__)",
    "is killed": "RuntimeError: data: a loader process of the train set ended with signal 9, Killed ()",
    "is made anew": "LookupError: no such set (datasets.py:NN, in _lost)",
    "a collate raises in setstate": "OSError: the tokens are gone (datasets.py:NN, in __setstate__)",
    "a batch has a lambda": "TypeError: the batch can't be sent from a loader process (Can't pickle local object ",
    "a batch has a graph": "TypeError: the batch can't be sent from a loader process (a tensor holds the graph of its ",
}


@pytest.mark.usefixtures("two_loaders")
@pytest.mark.parametrize("kind", STRANGE)
def test_what_goes_wrong_in_a_loader_process_is_told_with_its_place(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once; torch looks every five seconds for a process that is gone."""
    monkeypatch.setattr(dataloader._MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.2,))
    dataset = Unmade(20) if kind == "is made anew" else Strange(kind)
    of_collate = re.fullmatch(r"a (?:collate|batch has) (.*)", kind)
    collate = StrangeCollate(of_collate[1]) if of_collate else None
    with pytest.raises(BaseException) as caught:
        list(DatasetReader("train", dataset, None if collate else 3, ALONE, 4, collate).batches(ORDER, BOUNDS, 1))
    place = re.sub(r":\d+", ":NN", own_place(caught.value)) if "datasets.py" in STRANGE[kind] else ""
    assert f"{type(caught.value).__name__}: {caught.value} ({place})".startswith(STRANGE[kind])


@pytest.mark.usefixtures("two_loaders")
def test_a_data_set_is_unpickled_in_the_environment_of_its_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fork server may have an earlier one. Nobody asks for a length there."""
    read(Images(20))
    monkeypatch.setenv("PICTURES", "here")
    assert read(Strange("reads the environment")) == read(Images(20))


@pytest.mark.usefixtures("two_loaders")
def test_arrays_are_sent_as_they_are() -> None:
    assert read(WithArrays(20)) == read(Images(20))


KILLED = """
import multiprocessing, os, signal, sys
import torch
from tests.unit.training.data.datasets import Images
from scalestudy.training.data import readers
from scalestudy.training.data.readers import DatasetReader
from scalestudy.training.distributed import Worker

if __name__ == "__main__":
    readers.loader_processes = lambda worker, seconds: 1
    alone = Worker(0, 1, torch.device("cpu"))
    batches = DatasetReader("train", Images(20), 3, alone, seed=0).batches(None, [(0, 5), (5, 20)], 1)
    next(batches)
    [loader] = multiprocessing.active_children()
    print(loader.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def alive(pid: int) -> bool:
    """Whether there is such a process, and not only its remains."""
    try:
        with open(f"/proc/{pid}/stat") as stream:  # noqa: PTH123
            return stream.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_loaders_do_not_outlive_a_killed_training(tmp_path: Any) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    loader = int(done.stdout)
    deadline = time.monotonic() + 60
    while alive(loader) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(loader)


def test_the_examples_that_are_read_first_are_different_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a set of two as of a large one."""
    asked: list[int] = []
    read = Images.__getitem__
    monkeypatch.setattr(Images, "__getitem__", lambda self, index: asked.append(index) or read(self, index))
    DatasetReader("train", Images(2), 3, ALONE, seed=0)
    assert asked == [0, 1]


def test_reading_leaves_the_generators_alone() -> None:
    """Dropout draws from them in between."""

    def drawn(reads: bool) -> list[float]:
        torch.manual_seed(0), np.random.seed(0), random.seed(0)
        batches = reader(Noisy(20)).batches(ORDER, BOUNDS, 1) if reads else iter([None] * 4)
        return [value for _ in batches for value in (torch.rand(1).item(), np.random.rand(), random.random())]

    assert drawn(reads=True) == drawn(reads=False)


def test_an_examples_numbers_do_not_depend_on_its_batch() -> None:
    [(whole, _)] = list(reader(Noisy(20)).batches(ORDER, [(0, 20)], 1))
    parts = [inputs for inputs, _ in reader(Noisy(20)).batches(ORDER, BOUNDS, 1)]
    assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize(
    ("target", "num_classes", "expected"),
    [
        (2, 3, torch.tensor([2, 2])),
        (np.int32(2), 3, torch.tensor([2, 2])),
        (True, 2, torch.tensor([1, 1])),
        (0.5, 1, torch.tensor([0.5, 0.5])),
        (torch.tensor([0.5, 1.0]), 2, torch.tensor([[0.5, 1.0]] * 2)),
    ],
)
def test_targets_become_what_losses_want(target: object, num_classes: int, expected: torch.Tensor) -> None:
    [(_, targets)] = list(reader(Returning((torch.zeros(3), target)), num_classes).batches(None, [(0, 2)], 1))
    assert targets.dtype == expected.dtype
    assert torch.equal(targets, expected)


@pytest.mark.parametrize(
    ("example", "found"),
    [
        ((torch.zeros(3), "a cat"), r"not pairs of tensors or numbers; return \(input, target\)"),
        ((torch.zeros(3), 1, 2), "not pairs"),
        ((torch.zeros(3, dtype=torch.float64), 1), r"train inputs are torch\.float64; give torch\.float32"),
        ((torch.zeros(3), 7), "train targets are 7 to 7, and 3 classes are numbered 0 to 2"),
        ((torch.zeros(3), torch.zeros(2)), "are not 3 numbers an example"),
    ],
)
def test_examples_of_another_form_are_refused_at_once(example: object, found: str) -> None:
    with pytest.raises(DataError, match=found):
        reader(Returning(example))


@pytest.mark.parametrize(
    ("worker", "cores", "neighbours", "expected"),
    [
        (Worker(0, 1, torch.device("cpu"), threads=1), 4, None, 3),
        (Worker(0, 1, torch.device("cpu"), threads=4), 4, None, 0),
        (Worker(0, 2, torch.device("cpu"), threads=1), 2, None, 0),
        (Worker(0, 8, torch.device("cpu"), threads=1), 8, "2", 3),
        (Worker(0, 1, torch.device("cuda"), threads=16), 16, None, MOST_LOADER_PROCESSES),
        (Worker(0, 8, torch.device("cuda"), threads=1), 16, None, 1),
    ],
)
def test_loaders_take_the_cores_that_training_leaves(
    monkeypatch: pytest.MonkeyPatch, worker: Worker, cores: int, neighbours: str | None, expected: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(cores)), raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if neighbours is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", neighbours)
    assert loader_processes(worker, seconds=100.0) == expected
    assert loader_processes(worker, seconds=0.1) == 0


def loaders_of_a_daemon(worker: Worker) -> int:
    os.environ.pop("LOCAL_WORLD_SIZE", None)
    return loader_processes(Worker(0, 1, torch.device("cuda")), seconds=1e9)


def test_a_daemon_has_no_loaders(ranks: GlooPool) -> None:
    """It may not have children; the ranks of this pool are daemons."""
    assert ranks.run(1, loaders_of_a_daemon) == [0]


def test_reading_ahead_keeps_order_passes_errors_and_ends_its_thread() -> None:
    def items(fails: bool) -> Iterator[int]:
        yield from range(5)
        if fails:
            raise LookupError("no more")

    threads = threading.active_count()
    assert list(read_ahead(items(fails=False), 2)) == [0, 1, 2, 3, 4]
    with pytest.raises(LookupError, match="no more"):
        list(read_ahead(items(fails=True), 2))
    broken_off = read_ahead(items(fails=False), 2)
    assert next(broken_off) == 0
    assert threading.active_count() == threads + 1
    broken_off.close()
    assert threading.active_count() == threads
