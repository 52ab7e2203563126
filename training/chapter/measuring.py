"""What an experiment gives (tables, notes, metrics), and how its times and memory are measured."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import statistics
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from scalestudy.training.distributed import synchronise_device
from scalestudy.training.exceptions import InputError

MEBIBYTE = 2**20
UNITS = ("seconds", "bytes", "bytes_per_second", "ratio", "count", "difference")
"""How a metric's name ends. `ratio`: a plain quotient; `difference`: largest absolute difference of two results."""

QUIET_PROFILER = "99"  # above every level of Kineto's own messages, which would go to the user's screen

Cell = str | int | float | None
"""None: not measured here."""


@dataclass(frozen=True)
class Table:
    """Rows under a header; the heading of a column of numbers names the unit."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def __post_init__(self) -> None:
        lengths = {len(row) for row in self.rows} - {len(self.header)}
        if lengths:
            raise ValueError(f"rows: of {sorted(lengths)} cells under {len(self.header)} headings; make them equal")

    def column(self, heading: str) -> list[Cell]:
        """Returns the cells under a heading, from top to bottom."""
        position = self.header.index(heading)
        return [row[position] for row in self.rows]


@dataclass(frozen=True)
class Experiment:
    """The result of one experiment on one machine."""

    name: str  # as on the command line
    question: str
    tables: tuple[Table, ...]
    notes: tuple[str, ...]  # what holds on this machine, a sentence or two each
    metrics: Mapping[str, float]  # names end in one of UNITS

    def __post_init__(self) -> None:
        wrong = [name for name in self.metrics if not name.endswith(tuple(f"_{unit}" for unit in UNITS))]
        if wrong:
            raise ValueError(f"metrics: {', '.join(wrong)} without a unit; end names in one of {', '.join(UNITS)}")

    def to_dict(self) -> dict[str, Any]:
        """Returns data that JSON can hold; NaN and infinities become None."""
        return _plain(dataclasses.asdict(self))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def find_device(name: str) -> torch.device:
    """Returns the device of `auto`, `cpu` or `cuda`. Raises ValueError for another name, or for CUDA without a GPU."""
    if name not in ("auto", "cpu", "cuda"):
        raise InputError(f"device: {name!r} is not known", "choose auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("device: no CUDA device here", "choose --device cpu")
    return torch.device("cuda", 0) if name != "cpu" and torch.cuda.is_available() else torch.device("cpu")


def machine(device: torch.device) -> dict[str, str]:
    """Describes the machine that this process measures on."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "devices": str(torch.cuda.device_count() if device.type == "cuda" else 1),
        "cores": str(usable_cores()),
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
    }


def usable_cores() -> int:
    """Counts the cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def seconds_of(function: Callable[[], object], device: torch.device) -> float:
    """Measures the wall-clock seconds of one call, between two synchronisations of the device."""
    synchronise_device(device)
    started = time.perf_counter()
    function()
    synchronise_device(device)
    return time.perf_counter() - started


def median_seconds(
    functions: Mapping[str, Callable[[], object]], device: torch.device, repeats: int
) -> dict[str, float]:
    """Measures each function's median seconds over `repeats` rounds, after one warm-up round.

    A round calls the functions in turn: a disturbance of the machine then hits all of them, and ratios stay fair.
    """
    rounds = [{name: seconds_of(function, device) for name, function in functions.items()} for _ in range(repeats + 1)]
    return {name: statistics.median(times[name] for times in rounds[1:]) for name in functions}


def peak_bytes(function: Callable[[], object], device: torch.device) -> int:
    """Measures the most bytes that one call holds beyond what was allocated before it, by PyTorch's allocator.

    On the CPU only the calling thread's allocations count, since the profiler does not see others.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        result = function()
        torch.cuda.synchronize(device)
        del result
        return torch.cuda.max_memory_allocated(device) - before
    os.environ.setdefault("KINETO_LOG_LEVEL", QUIET_PROFILER)  # read at the profiler's first use
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = function()
    del result
    held = highest = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":  # an allocation, or a release with a negative size
            held += event.nbytes()
            highest = max(highest, held)
    return highest


class Alive:
    """Counts the bytes of the watched tensors that are alive; any thread may release one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = 0
        self.peak = 0

    def watch(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the same tensor, counted until nobody holds it."""
        size = tensor.numel() * tensor.element_size()
        self._add(size)
        weakref.finalize(tensor, self._add, -size)
        return tensor

    def _add(self, size: int) -> None:
        with self._lock:
            self._now += size
            self.peak = max(self.peak, self._now)


@contextlib.contextmanager
def intra_op_threads(count: int) -> Iterator[None]:
    """Sets the number of threads of one operation, also for Python threads that start inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def quiet_compiler() -> Iterator[None]:
    """Keeps the log of PyTorch's tracers off the screen; the experiments show the outcome themselves."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def first_line(error: BaseException) -> str:
    """Returns an error on one line: its kind, and the first line of its message that is not empty."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def milliseconds(seconds: float) -> float:
    """Converts seconds to milliseconds."""
    return seconds * 1e3


def microseconds(seconds: float) -> float:
    """Converts seconds to microseconds."""
    return seconds * 1e6
