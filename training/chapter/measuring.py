"""An experiment's tables, times and memory.

No torch here: whoever prints or stores a result needs none.
"""

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

Cell = str | int | float | None
"""None: not measured here."""

UNITS = ("seconds", "bytes", "bytes_per_second", "ratio", "count", "difference")
"""How a metric's name ends. `ratio`: a plain quotient; `difference`: largest absolute difference of two results."""


@dataclass(frozen=True)
class Table:
    """Rows under a header; a column of numbers has its unit in its heading."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def __post_init__(self) -> None:
        lengths = {len(row) for row in self.rows} - {len(self.header)}
        if lengths:
            raise ValueError(f"rows: of {sorted(lengths)} cells under {len(self.header)} headings; make them equal")

    def column(self, heading: str) -> list[Cell]:
        """The cells under that heading, from top to bottom."""
        position = self.header.index(heading)
        return [row[position] for row in self.rows]


@dataclass(frozen=True)
class Experiment:
    """One experiment, run on one machine."""

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
        """Data that JSON can hold: NaN and infinities are None."""
        return _plain(dataclasses.asdict(self))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


MEBIBYTE = 2**20
QUIET_PROFILER = "99"  # above every level of Kineto's own messages, which would go to the user's screen


def find_device(name: str) -> torch.device:
    """The device of `auto`, `cpu` or `cuda`. Raises ValueError for another name, or for CUDA where there is none."""
    if name not in ("auto", "cpu", "cuda"):
        raise InputError(f"device: {name!r} is not known", "choose auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("device: no CUDA device here", "choose --device cpu")
    return torch.device("cuda", 0) if name != "cpu" and torch.cuda.is_available() else torch.device("cpu")


def machine(device: torch.device) -> dict[str, str]:
    """What a figure of this process should be read with."""
    shown = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return {
        "device": shown,
        "devices": str(torch.cuda.device_count() if device.type == "cuda" else 1),
        "cores": str(usable_cores()),
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
    }


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def seconds_of(function: Callable[[], object], device: torch.device) -> float:
    """Wall-clock seconds of one call, between two synchronisations of the device."""
    synchronise_device(device)
    started = time.perf_counter()
    function()
    synchronise_device(device)
    return time.perf_counter() - started


def median_seconds(
    functions: Mapping[str, Callable[[], object]], device: torch.device, repeats: int
) -> dict[str, float]:
    """Each function's median over `repeats` rounds, the functions in turn within a round, after one warm-up round.

    In turn, so that a disturbance of the machine falls on all of them and ratios stay fair.
    """
    rounds = [{name: seconds_of(function, device) for name, function in functions.items()} for _ in range(repeats + 1)]
    return {name: statistics.median(times[name] for times in rounds[1:]) for name in functions}


def peak_bytes(function: Callable[[], object], device: torch.device) -> int:
    """Most bytes that one call holds beyond what was allocated before it, as PyTorch's allocator counts them.

    On the CPU: what the calling thread allocates; the profiler does not see others.
    """
    return _peak_on_cuda(function, device) if device.type == "cuda" else _peak_on_cpu(function)


def _peak_on_cuda(function: Callable[[], object], device: torch.device) -> int:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    result = function()
    torch.cuda.synchronize(device)
    del result
    return torch.cuda.max_memory_allocated(device) - before


def _peak_on_cpu(function: Callable[[], object]) -> int:
    """The running sum of the allocations and releases that the profiler sees, at its highest."""
    os.environ.setdefault("KINETO_LOG_LEVEL", QUIET_PROFILER)  # read at the profiler's first use
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = function()
    del result
    held = highest = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            highest = max(highest, held)
    return highest


class Alive:
    """Counts the bytes of tensors from their making to their end; any thread may end them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = 0
        self.peak = 0

    def watch(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same tensor, counted until nobody holds it."""
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
    """So many threads for each operation, and for those of Python threads that are started within."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def quiet_compiler() -> Iterator[None]:
    """Keeps what PyTorch's tracers log off the screen: the experiments show the outcome itself."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def first_line(error: BaseException) -> str:
    """An error on one line: its kind and the first line of its message that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def milliseconds(seconds: float) -> float:
    """Seconds as milliseconds."""
    return seconds * 1e3


def microseconds(seconds: float) -> float:
    """Seconds as microseconds."""
    return seconds * 1e6
