"""Stage 5, training loop: stopwatches for epochs and, on sampled steps, for the phases of a step.

An epoch's seconds are wall-clock time between two device synchronisations. Phases are marks on the device's own time
line (CUDA events; on a CPU the clock), read when the epoch has ended, so that no step waits for its measurement.
"""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from training.distributed import synchronise_device

SAMPLING_INTERVAL = 4  # one step in so many has its phases timed
FEWEST_TIMED_STEPS = 5  # fewer than these, in an epoch that has more, give no samples_per_second

Mark = float | torch.cuda.Event


class EpochStopwatch:
    """The seconds of an epoch's steps, and those of its steps after the warm-up."""

    def __init__(self, device: torch.device, warm_up_steps: int) -> None:
        """`warm_up_steps`: how many of this epoch's first steps are warm-up."""
        self._device = device
        self._warm_up_steps = warm_up_steps
        self._start = self._warm = self._now()
        self._samples_at_warm = 0

    def step_starts(self, step: int, samples: int) -> None:
        """Before each step (from 0), with the examples that this rank has trained in the epoch."""
        if step == self._warm_up_steps and step > 0:
            self._warm = self._now()
            self._samples_at_warm = samples

    def stop(self, steps: int, samples: int) -> tuple[float, float, int]:
        """(train_seconds, timed_seconds, timed_samples) after `steps` steps over `samples` examples of this rank."""
        now = self._now()
        if steps <= self._warm_up_steps:
            return now - self._start, 0.0, 0
        return now - self._start, now - self._warm, samples - self._samples_at_warm

    def _now(self) -> float:
        synchronise_device(self._device)
        return time.perf_counter()


def warm_up_steps_left(warm_up_steps: int, steps: int, epoch: int) -> int:
    """How many steps of this epoch (from 1), each with `steps` steps, still belong to the trial's warm-up."""
    return min(max(warm_up_steps - steps * (epoch - 1), 0), steps)


def enough_timed_steps(steps: int, warm_up_steps: int) -> bool:
    """Whether an epoch's steps after its warm-up are enough for a rate: five, or all of a shorter epoch."""
    return steps - warm_up_steps >= min(FEWEST_TIMED_STEPS, steps)


class PhaseTimer:
    """Splits sampled steps into phases: each `mark(phase)` ends the phase that began at the mark before it."""

    def __init__(self, device: torch.device, parameters: Sequence[nn.Parameter], steps: int) -> None:
        """`parameters`: those whose gradients are watched in backward; `steps`: those of the epoch."""
        self._on_cuda = device.type == "cuda"
        self._parameters = parameters
        self._offset = min(SAMPLING_INTERVAL, steps) - 1  # late, so that a trial's cold first step is rarely sampled
        self._marks: list[tuple[str | None, Mark]] = []
        self._sampled = False
        self._last_gradient: Mark | None = None

    def step_starts(self, step: int) -> None:
        """Begin a step (from 0); decides whether its phases are timed."""
        self._sampled = step % SAMPLING_INTERVAL == self._offset
        self._last_gradient = None
        if self._sampled:
            self._marks.append((None, self._mark()))

    def mark(self, phase: str) -> None:
        """The phase has just ended."""
        if self._sampled:
            self._marks.append((phase, self._mark()))

    def mark_last_gradient(self, phase: str) -> None:
        """The phase ended when the last local gradient of `backward` was ready, which may be some time ago."""
        if self._sampled:
            self._marks.append((phase, self._last_gradient or self._mark()))

    @contextmanager
    def backward(self) -> Iterator[None]:
        """Around backward: notes when the last gradient of this worker is ready.

        With overlapped communication the rest of backward is waiting, the exposed part of the synchronisation.
        """
        if not self._sampled:
            yield
            return
        handles = [parameter.register_hook(self._gradient_ready) for parameter in self._parameters]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def phase_seconds(self, train_seconds: float) -> Mapping[str, float]:
        """Each phase's seconds in the epoch: its share of the sampled steps, times the epoch's train_seconds.

        Call it after a device synchronisation.
        """
        sums: defaultdict[str, float] = defaultdict(float)
        for (_, earlier), (phase, later) in itertools.pairwise(self._marks):
            if phase is not None:
                sums[phase] += _seconds_between(earlier, later)
        total = sum(sums.values())
        return defaultdict(float, {phase: seconds / total * train_seconds for phase, seconds in sums.items() if total})

    def _gradient_ready(self, gradient: torch.Tensor) -> None:
        self._last_gradient = self._mark()

    def _mark(self) -> Mark:
        if not self._on_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def _seconds_between(earlier: Mark, later: Mark) -> float:
    if isinstance(earlier, torch.cuda.Event) and isinstance(later, torch.cuda.Event):
        return earlier.elapsed_time(later) / 1000
    assert isinstance(earlier, float) and isinstance(later, float)  # noqa: PT018 - tells mypy that marks are of a kind
    return later - earlier
