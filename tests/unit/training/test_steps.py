"""The meter of a loop of one's own: what counts, what is timed, what is refused, and what it costs."""

from __future__ import annotations

import math
import subprocess
import sys
import timeit
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import scalestudy
from scalestudy.training import steps
from scalestudy.training.steps import METER, StepMeter, Stepped


class Clock:
    """`time` with seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(steps, "time", clock)
    return clock


def test_the_first_step_after_a_report_is_counted_and_not_timed(clock: Clock) -> None:
    meter = StepMeter()
    for now, samples in ((100.0, 8), (100.5, 16), (102.0, 4)):
        clock.now = now
        meter.step(samples)
    # 16 + 4 examples from the end of the first step, at 100, to that of the last, at 102
    assert meter.take() == Stepped(steps=3, samples=28, timed_samples=20, timed_seconds=2.0)
    clock.now = 150.0  # evaluation, report, checkpoint
    meter.step(8)
    assert meter.take() == Stepped(steps=1, samples=8, timed_samples=0, timed_seconds=0)
    assert meter.take() == Stepped(steps=0, samples=0, timed_samples=0, timed_seconds=0)


@given(st.lists(st.lists(st.tuples(st.integers(0, 512), st.floats(0.001, 10)), max_size=8), max_size=4))
def test_reports_divide_the_steps_and_lose_none(periods: list[list[tuple[int, float]]]) -> None:
    clock, meter = Clock(), StepMeter()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "time", clock)
        for period in periods:
            ends = []
            for samples, seconds in period:
                clock.now += seconds
                ends.append(clock.now)
                meter.step(samples)
            stepped = meter.take()
            assert (stepped.steps, stepped.samples) == (len(period), sum(samples for samples, _ in period))
            assert stepped.timed_samples == sum(samples for samples, _ in period[1:])
            assert stepped.timed_seconds == pytest.approx(sum(end - start for start, end in pairwise(ends)))


@pytest.mark.parametrize("samples", [3, 2.5, np.int64(3), np.float32(3), 0])
def test_numbers_are_counted(samples: float) -> None:
    meter = StepMeter()
    meter.step(samples)
    assert meter.take().samples == samples


@pytest.mark.parametrize("samples", [-1, -0.5, math.nan, math.inf, np.float32("nan")])
def test_a_number_that_counts_no_examples_is_refused(samples: float) -> None:
    meter = StepMeter()
    with pytest.raises(ValueError, match=r"scalestudy.step: samples is (-1|-0.5|nan|inf), .*; pass .*len\(batch\)$"):
        meter.step(samples)
    assert meter.take().steps == 0


@pytest.mark.parametrize("samples", ["3", None, True, [1, 2], torch.tensor(3)])
def test_what_is_no_number_is_refused(samples: object) -> None:
    meter = StepMeter()
    with pytest.raises(TypeError, match=rf"samples is of the type {type(samples).__name__}, not a number; pass .*"):
        meter.step(samples)  # type: ignore[arg-type]
    assert meter.take().steps == 0


def test_the_public_step_feeds_the_meter_of_the_process() -> None:
    METER.take()
    scalestudy.step(32)
    scalestudy.step(16)
    assert (METER.take().samples, METER.take().samples) == (48, 0)


def test_a_step_costs_a_microsecond_at_most() -> None:
    seconds = min(timeit.repeat("scalestudy.step(32)", "import scalestudy", number=10_000, repeat=20)) / 10_000
    METER.take()
    assert seconds < 2e-6  # twice as much, since the machine may be slow; an import at each call takes longer


def test_it_imports_neither_torch_nor_ray() -> None:
    code = "import scalestudy, sys; scalestudy.step(1); print({'torch', 'ray', 'numpy', 'pydantic'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
