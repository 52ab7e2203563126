"""The steps of a loop that a user wrote: how many, of how many examples, and how long they took.

Nothing here imports PyTorch or Ray: outside of a study `step` only counts.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from numbers import Real

from scalestudy.training.exceptions import InputError

PASS = "pass the number of examples that this rank trained, such as len(batch)"


def step(samples: float) -> None:
    """Count an optimizer step of this rank, by which a study measures the speed of a loop of yours.

    Call it after each optimizer step, on every rank, with the number of examples that this rank trained in it. A rank
    without examples passes 0. Outside of a study it does nothing that could be seen. Raises ValueError for a negative
    or infinite number and for NaN, TypeError for what is not a number.
    """
    METER.step(samples)


@dataclass(frozen=True, kw_only=True)
class Stepped:
    """What one rank did from one report to the next. Its samples a second are timed_samples ÷ timed_seconds."""

    steps: int
    samples: float
    timed_samples: float
    """of all steps but the first, before which evaluation, report and checkpoint lie"""
    timed_seconds: float
    """from the end of the first step to the end of the last; 0: fewer than two steps"""


class StepMeter:
    """The steps of one rank since its last report. The thread that trains calls both methods."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._steps = 0
        self._samples = 0.0
        self._first_samples = 0.0
        self._first_end = 0.0  # seconds of time.perf_counter
        self._last_end = 0.0

    def step(self, samples: float) -> None:
        """Count a step that ends now; see the function of the same name."""
        now = time.perf_counter()
        if type(samples) is not int or samples < 0:  # most are an int, and every step asks
            _check(samples)
        if not self._steps:
            self._first_samples, self._first_end = samples, now
        self._steps += 1
        self._samples += samples
        self._last_end = now

    def take(self) -> Stepped:
        """Return what was counted since the last call, and start anew."""
        stepped = Stepped(
            steps=self._steps,
            samples=self._samples,
            timed_samples=self._samples - self._first_samples,
            timed_seconds=self._last_end - self._first_end,
        )
        self._start()
        return stepped


def _check(samples: float) -> None:
    if not isinstance(samples, Real) or isinstance(samples, bool):
        raise TypeError(f"scalestudy.step: samples is of the type {type(samples).__name__}, not a number; {PASS}")
    if not (math.isfinite(samples) and samples >= 0):
        raise InputError(f"scalestudy.step: samples is {samples}, not a number of examples", PASS)


METER = StepMeter()
"""The meter of this process, which `step` feeds."""
