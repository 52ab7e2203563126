"""Measures of a period: its seconds, their phases, and the CPU, memory and GPU that the process uses.

A period's seconds are wall-clock time between two device synchronisations. Phases are marks on the device's own time
line (CUDA events; on a CPU the clock). They are read after the period, so that no step waits for its measurement.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from scalestudy.training.device import peak_memory_bytes
from scalestudy.training.distributed import synchronise_device

SAMPLING_INTERVAL = 4  # steps from one step with timed phases to the next, on average
GOLDEN_RATIO = (math.sqrt(5) - 1) / 2  # its multiples, modulo 1, are spread evenly and have no period
FEWEST_TIMED_STEPS = 5  # fewer than these, in a period that has more, give no samples_per_second

COMPUTING = ("forward_backward", "optimizer")
"""The phases in which a worker on a CPU always wants its core: it waits for no data and for no other worker."""


@dataclass(frozen=True)
class Moment:
    """A mark on a CPU, in seconds."""

    at: float
    delayed: float  # as `RunDelay.seconds`


Mark = Moment | torch.cuda.Event


class RunDelay:
    """How long a thread was ready to run and had no core, as Linux counts it in `/proc/…/schedstat`.

    Other processes have its core then, other threads of its own process, or a limit on the container's CPUs holds it
    back. Rejected: CPU seconds over seconds, since a thread also sleeps by itself: it waits for a lock, a file, or the
    helpers of a kernel, which a small model does not need.
    """

    def __init__(self) -> None:
        """Count for the thread that calls this."""
        try:
            self._file: int | None = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        except OSError:  # not Linux, or a kernel that does not count it
            self._file = None

    def seconds(self) -> float:
        """Return the seconds since the thread began; NaN: not known. It takes some 1.5 µs."""
        if self._file is None:
            return math.nan
        try:
            return int(os.pread(self._file, 64, 0).split()[1]) / 1e9
        except (OSError, IndexError):  # the thread has ended; a kernel that does not count it
            return math.nan

    def __del__(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)


class Stopwatch:
    """Seconds of a period's steps, and of its steps after the warm-up."""

    def __init__(self, device: torch.device, warm_up_end: int, samples: int = 0) -> None:
        """Begin a period. `warm_up_end`: index of its first timed step; `samples`: trained by this rank so far."""
        self._device = device
        self._warm_up_end = warm_up_end
        self._start = self._warm = self._now()
        self._samples_at_warm = samples
        self.left_out = 0  # steps after the warm-up that are not timed

    def step_starts(self, step: int, samples: int) -> None:
        """Begin a step (from 0), after so many examples that this rank has trained in the period."""
        if step == self._warm_up_end and step > 0:
            self._warm = self._now()
            self._samples_at_warm = samples
            self.left_out = 0

    def seconds(self) -> float:
        """Return the seconds of the steps so far."""
        return self._now() - self._start

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out what is done inside this context."""
        before = self._now()
        yield
        away = self._now() - before
        self._start += away
        self._warm += away

    @contextmanager
    def out_of_timing(self, samples: int) -> Iterator[None]:
        """Count the step inside this context, and its examples, in the period's seconds alone, as the warm-up."""
        before = self._now()
        yield
        self._warm += self._now() - before
        self._samples_at_warm += samples
        self.left_out += 1

    def stop(self, steps: int, samples: int) -> tuple[float, float, int]:
        """Return train_seconds, timed_seconds and timed_samples after so many steps over so many examples."""
        now = self._now()
        if steps <= self._warm_up_end:
            return now - self._start, 0.0, 0
        return now - self._start, now - self._warm, samples - self._samples_at_warm

    def _now(self) -> float:
        synchronise_device(self._device)
        return time.perf_counter()


def warm_up_end(warm_up_steps: int, steps: int, began_at: int) -> int:
    """Return the index, in a period of `steps` steps, of the first after the trial's warm-up; `steps`: there is none.

    `began_at`: where this process began, in steps from the period's first one; below 0: before it. A resumed training
    is cold again.
    """
    return min(max(began_at + warm_up_steps, 0), steps)


def enough_timed_steps(steps: int, timed_steps: int) -> bool:
    """Return whether a period of `steps` has enough timed steps for a rate: five, or all of a shorter one."""
    return timed_steps >= min(FEWEST_TIMED_STEPS, steps)


def is_sampled(step: int, steps: int) -> bool:
    """Return whether the phases of a step (from 0) are timed, in a period of `steps`: a quarter of them, irregularly.

    A fixed stride would meet the averages of local SGD always or never. In a short period every other step is timed.
    The cold first step is left out unless it is the only one.
    """
    if steps < 4 * SAMPLING_INTERVAL:
        return step % 2 == 1 or steps == 1
    return step * GOLDEN_RATIO % 1.0 > 1.0 - 1.0 / SAMPLING_INTERVAL


class PhaseTimer:
    """Sampled steps, split into phases. Each `mark(phase)` ends the phase that began at the mark before it."""

    def __init__(self, device: torch.device, parameters: Sequence[nn.Parameter], steps: int) -> None:
        """Watch the gradients of `parameters` in backward. `steps`: of the period."""
        self._on_cuda = device.type == "cuda"
        self._parameters = parameters
        self._steps = steps
        self._marks: list[tuple[str | None, Mark]] = []
        self._delay = RunDelay()
        self._sampled = False  # whether the phases of the step in progress are timed
        self._last_gradient: Mark | None = None

    def step_starts(self, step: int) -> None:
        """Begin a step (from 0), and decide whether its phases are timed."""
        self._sampled = is_sampled(step, self._steps)
        self._last_gradient = None
        if self._sampled:
            self._marks.append((None, self._mark()))

    def mark(self, phase: str) -> None:
        """End the phase now."""
        if self._sampled:
            self._marks.append((phase, self._mark()))

    def mark_last_gradient(self, phase: str) -> None:
        """End the phase at the moment, maybe some time ago, when the last local gradient of `backward` was ready."""
        if self._sampled:
            self._marks.append((phase, self._last_gradient or self._mark()))

    def backward(self) -> AbstractContextManager[None]:
        """Note when this worker's last gradient is ready, in the backward inside this context.

        With overlapped communication the rest of backward is waiting, the exposed part of the synchronisation.
        """
        return self._watched() if self._sampled else nullcontext()

    @contextmanager
    def _watched(self) -> Iterator[None]:
        handles = [parameter.register_hook(self._gradient_ready) for parameter in self._parameters]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def forget_step(self) -> None:
        """Drop the marks of the step in progress: it is not sampled after all."""
        while self._sampled and self._marks.pop()[0] is not None:
            pass
        self._sampled = False

    def phase_seconds(self, train_seconds: float) -> Mapping[str, float]:
        """Return each phase's seconds in the period: its share of the sampled steps, times the period's train_seconds.

        Call it after a device synchronisation.
        """
        sums: defaultdict[str, float] = defaultdict(float)
        for (_, earlier), (phase, later) in itertools.pairwise(self._marks):
            if phase is None:
                continue
            if isinstance(earlier, torch.cuda.Event) and isinstance(later, torch.cuda.Event):
                sums[phase] += earlier.elapsed_time(later) / 1000
            else:
                assert isinstance(earlier, Moment)  # for mypy: all marks are of one kind
                assert isinstance(later, Moment)
                sums[phase] += later.at - earlier.at
        total = sum(sums.values())
        return defaultdict(float, {phase: seconds / total * train_seconds for phase, seconds in sums.items() if total})

    def starved_share(self) -> float:
        """Return the share of the sampled computing phases in which this thread had no core; NaN: not measured, GPU."""
        seconds = delayed = 0.0
        for (_, earlier), (phase, later) in itertools.pairwise(self._marks):
            if phase in COMPUTING and isinstance(earlier, Moment) and isinstance(later, Moment):
                seconds += later.at - earlier.at
                delayed += later.delayed - earlier.delayed
        return min(delayed / seconds, 1.0) if seconds > 0 and math.isfinite(delayed) else math.nan

    def _gradient_ready(self, gradient: torch.Tensor) -> None:
        self._last_gradient = self._mark()

    def _mark(self) -> Mark:
        if not self._on_cuda:
            return Moment(time.perf_counter(), self._delay.seconds())
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


@dataclass(frozen=True)
class Usage:
    """The CPU, memory and GPU that a process took in a stretch of time."""

    cpu_cores: float  # mean number of busy cores
    resident_bytes: float  # at its end
    gpu_share: (
        float  # of the GPU's time, at its end; NaN: no GPU, no NVML (`scalestudy[gpu]`), or NVML does not report it
    )


class UsageMeter:
    """A meter of this process from one call to the next, evaluation and waiting included."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._has_nvml = device.type == "cuda"
        self._since = (time.perf_counter(), time.process_time())

    def since_last(self) -> Usage:
        """Return the usage since the last call, or since the meter was made."""
        (wall, cpu), now = self._since, (time.perf_counter(), time.process_time())
        self._since = now
        seconds = now[0] - wall
        cores = (now[1] - cpu) / seconds if seconds > 0 else math.nan
        return Usage(cores, resident_bytes(), self._gpu_share())

    def _gpu_share(self) -> float:
        """Ask NVML, for its last sample period (up to a second)."""
        if not self._has_nvml:
            return math.nan
        try:
            return torch.cuda.utilization(self._device) / 100
        except Exception:  # no nvidia-ml-py, no driver; NVML's own errors (on a part of a GPU) have no other base class
            self._has_nvml = False
            return math.nan


def resident_bytes() -> float:
    """Return the memory that this process holds now; where the system does not report it, the most that it has held."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return peak_memory_bytes(torch.device("cpu"))
    return pages * os.sysconf("SC_PAGE_SIZE")
